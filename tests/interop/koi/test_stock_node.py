"""A stock koi-net 2.1.2 node and a node of ours, each joining the other, on the signed dialect.

``KOI_RECORD=FILE`` writes what they say to a file; ``tests/koi/recorded.jsonl`` was made so.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from structlog.testing import capture_logs

from koi.network import ALL, events, make_node, new, personality, post, until, url_of
from koi.test_recorded_exchange import verify_recording
from retinue.web.http_client import HttpClient
from retinue_koi.codec.bundles import Event, EventType, has_hash
from retinue_koi.codec.profiles import EdgeStatus
from retinue_koi.codec.rids import PERSONALITY_TYPE, edge_rids
from retinue_koi.node import KoiNode
from retinue_koi.peers import FirstContact
from retinue_koi.server import routes
from tests.interop.koi.driving import Recorder, RecordingClient, StockNode, run_stock_node
from tests.requirements import requirement
from tests.serving import serve_app

pytestmark = pytest.mark.timeout(600)

ODD: dict[str, Any] = {
    "mood": "glad é 😀",
    "level": 1.0,
    "tiny": 1e-7,
    "none": None,
    "big": 12345678901234567890,
}


@asynccontextmanager
async def run_ours(
    folder: Path, recorder: Recorder, name: str = "ours", **options: Any
) -> AsyncIterator[KoiNode]:
    app = Starlette()
    async with HttpClient() as http, serve_app(recorder.incoming(app)) as url:
        client = RecordingClient(http, recorder)
        base_url = f"{url}/koi-net"
        node = make_node(name, base_url=base_url, folder=folder / name, http=client, **{**ALL, **options})
        app.router.routes.extend(routes(node))
        await node.start()
        try:
            yield node
        finally:
            await node.stop()


async def publish(node: KoiNode, name: str, kind: EventType = EventType.NEW, **more: Any) -> str:
    contents = personality(name, node.rid, **more)
    bundle = node.state.generate_bundle(contents["rid"], contents)
    await node.processor.handle(bundle=bundle, event_type=kind)
    return bundle.rid


async def joined(ours: KoiNode, stock: StockNode, also: Sequence[str] = ()) -> None:
    """Wait until both have subscribed to each other, and both know it; ours has ``also`` joined others."""
    await until(
        lambda: all(
            set(ours.graph.get_neighbors(way, EdgeStatus.APPROVED)) == {stock.rid, *also}
            for way in ("in", "out")
        ),
        20.0,
    )
    await stock.until(lambda state: [edge["status"] for edge in state["edges"]] == ["APPROVED", "APPROVED"])


async def exchange(ours: KoiNode, stock: StockNode) -> None:
    """Each publishes, changes and forgets a personality; the other follows."""
    await stock.do("publish", name="theirs", contents=ODD)
    theirs = f"{PERSONALITY_TYPE}:theirs/1.0"
    await until(lambda: theirs in ours.cache)
    held = ours.cache.read(theirs)
    assert held is not None
    assert held.contents["tiny"] == 1e-7
    assert has_hash(held.contents, held.manifest.sha256_hash)
    await stock.do("publish", name="theirs", contents={"mood": "busy"})
    await until(lambda: (b := ours.cache.read(theirs)) is not None and b.contents["mood"] == "busy")

    own = await publish(ours, "our-agent", **ODD)
    state = await stock.until(lambda state: own in state["personalities"])
    assert state["personalities"][own]["mood"] == ODD["mood"]
    await publish(ours, "our-agent", EventType.UPDATE, mood="busy")
    await stock.until(lambda state: state["personalities"][own].get("mood") == "busy")

    found = await stock.do("fetch", **{"from": ours.rid})
    assert sorted(found["rids"]) == sorted([own, theirs])
    assert sorted(one["rid"] for one in found["manifests"]) == sorted([own, theirs])
    assert {one["manifest"]["rid"]: one["contents"]["mood"] for one in found["bundles"]} == {
        own: "busy",
        theirs: "busy",
    }
    assert found["events"] == []
    assert sorted(await ours.wire.peers.fetch_rids(stock.rid, [PERSONALITY_TYPE])) == sorted([own, theirs])
    assert len(await ours.wire.peers.fetch_manifests(stock.rid, [PERSONALITY_TYPE])) == 2
    assert [b.rid for b in await ours.wire.peers.fetch_bundles(stock.rid, [own])] == [own]
    assert await ours.wire.peers.poll_events(stock.rid) == ()

    await ours.processor.handle(rid=own, event_type=EventType.FORGET)
    await stock.until(lambda state: own not in state["personalities"])
    await stock.do("forget", name="theirs")
    await until(lambda: theirs not in ours.cache)
    assert stock.runs


@requirement("K-05")
async def test_a_stock_node_joins_ours_and_both_dialects_are_served_at_once(tmp_path: Path) -> None:
    recorder = Recorder()
    async with run_ours(tmp_path, recorder) as ours:
        early = await publish(ours, "early")
        async with run_stock_node("stock", tmp_path / "stock", ours.rid, url_of(ours)) as stock:
            await joined(ours, stock)
            await stock.until(lambda state: early in state["personalities"])
            await ours.processor.handle(rid=early, event_type=EventType.FORGET)
            await stock.until(lambda state: early not in state["personalities"])
            await exchange(ours, stock)
            _keep(recorder)
            verify_recording(recorder.lines, at_least=20)
            # a node of the seed's time joins the same coordinator; its personality reaches the stock node
            plain = personality("plain", "orn:koi-net.node:plain+0b0f7bb5-62a2-4a43-9d1c-1f3f67cf6d0e")
            assert await post(url_of(ours) + "/events/broadcast", events(new(plain))) == (200, None)
            await stock.until(lambda state: plain["rid"] in state["personalities"])


@requirement("K-05")
async def test_our_node_joins_a_stock_node(tmp_path: Path) -> None:
    recorder = Recorder()
    async with run_stock_node("stock", tmp_path / "stock") as stock:
        await stock.do("publish", name="early", contents={})
        contact = FirstContact(stock.url, stock.rid)
        async with run_ours(tmp_path, recorder, first_contact=contact) as ours:
            await joined(ours, stock)
            early = f"{PERSONALITY_TYPE}:early/1.0"
            await until(lambda: early in ours.cache)
            await stock.do("forget", name="early")
            await until(lambda: early not in ours.cache)
            await exchange(ours, stock)
            verify_recording(recorder.lines, at_least=20)


async def test_a_stock_node_cannot_take_from_others_what_they_own(tmp_path: Path) -> None:
    async with (
        run_ours(tmp_path, Recorder()) as ours,
        run_ours(
            tmp_path, Recorder(), "victim", first_contact=FirstContact(url_of(ours), ours.rid)
        ) as victim,
        run_stock_node("stock", tmp_path / "stock", ours.rid, url_of(ours)) as stock,
    ):
        rid = await publish(victim, "victim-agent", mood="glad")
        await until(lambda: rid in ours.cache)
        await joined(ours, stock, also=[victim.rid])
        edge_rid = edge_rids(ours.rid, stock.rid)[0]
        before = {one: ours.cache.read(one) for one in (rid, edge_rid)}
        stolen = new(personality("victim-agent", victim.rid, mood="stolen"))
        claimed = new(personality("victim-agent", stock.rid))
        bad = new({"rid": "orn:koi-net.edge:zz", "nonsense": 1})
        forged = [stolen, claimed, Event.from_rid(EventType.FORGET, rid), bad]
        with capture_logs() as logs:
            for event in forged:
                await stock.do("send", to=ours.rid, events=events(event)["events"])
            await ours.processor.idle()
        # the owner was asked about the first, and confirmed what is held
        refused = [line for line in logs if line["event"] == "koi_event_refused"]
        assert [(line["event_type"], line["rid"], line["node"]) for line in refused] == [
            (event.event_type.value, event.rid, stock.rid) for event in forged[1:]
        ]
        alive, owned, malformed = [line["reason"] for line in refused]
        assert alive == f"the name belongs to {victim.rid}, which is alive"
        assert owned == f"it belongs to {victim.rid}, not to {stock.rid}"
        assert "source" in malformed
        assert {one: ours.cache.read(one) for one in (rid, edge_rid)} == before
        assert bad.rid not in ours.cache
        # the owner is still heard, and so is the stock node where it speaks for itself
        await publish(victim, "victim-agent", EventType.UPDATE, mood="busy")
        await until(lambda: (held := ours.cache.read(rid)) is not None and held.contents["mood"] == "busy")
        await stock.do("publish", name="theirs", contents={})
        await until(lambda: f"{PERSONALITY_TYPE}:theirs/1.0" in ours.cache)


def _keep(recorder: Recorder) -> None:
    target = os.environ.get("KOI_RECORD")
    if target:
        Path(target).write_text("".join(json.dumps(line) + "\n" for line in recorder.lines))
