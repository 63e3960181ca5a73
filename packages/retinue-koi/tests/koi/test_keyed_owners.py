"""What an unsigned message cannot do to a node that has a key, or that has signed a message."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from structlog.testing import capture_logs

from koi.network import (
    DEAD,
    UUID_NODE,
    Refusals,
    events,
    introduced,
    is_joined,
    new,
    personality,
    post,
    publish,
    run_joined,
    run_node,
    until,
    url_of,
)
from retinue.web.http_client import HttpClient
from retinue.web.transport import HttpResponse
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import Bundle, Event, EventType
from retinue_koi.codec.profiles import EdgeProfile, EdgeStatus, EdgeType, NodeProfile, NodeType
from retinue_koi.codec.rids import EDGE_TYPE, PERSONALITY_TYPE, edge_rids, type_of
from retinue_koi.memory import NodeMemory
from retinue_koi.node import KoiNode
from retinue_koi.peers import FirstContact
from retinue_koi.storage.cache import KoiCache
from tests.requirements import requirement


@requirement("K-37")
async def test_an_unsigned_version_of_a_keyed_owners_name_is_asked_back(tmp_path: Path) -> None:
    async with run_joined(tmp_path) as (node, owner):
        true = await publish(owner, "helpful-agent")
        await until(lambda: true in node.cache)
        foreign = new(personality("helpful-agent", owner.rid, "9.9", mcp_url=DEAD))
        with capture_logs() as logged:
            assert (await post(url_of(node) + p.BROADCAST, events(foreign)))[0] == 200
            await node.processor.idle()
            assert f"it belongs to {owner.rid}, which does not have it" in Refusals(logged)
        assert node.cache.list_rids([PERSONALITY_TYPE]) == [true]


def _edge(source: str, target: str) -> Event:
    edge = EdgeProfile(source, target, EdgeType.POLL, EdgeStatus.PROPOSED, (PERSONALITY_TYPE,))
    return Event.from_bundle(EventType.NEW, Bundle.generate(edge_rids(source, target)[0], edge.render()))


@requirement("K-37")
@requirement("K-44")
async def test_the_queue_of_a_node_that_has_signed_is_not_given_to_an_unsigned_poll(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        signer = await introduced(node)
        await signer.send(node, _edge(node.rid, signer.rid))
        await until(lambda: node.graph.get_neighbors("out", EdgeStatus.APPROVED) == [signer.rid])
        rid = await publish(node, "helpful-agent")
        waiting = node.wire.outbox.count(signer.rid)
        unsigned = {"rid": signer.rid, "limit": 0}
        status, reply = await post(url_of(node) + p.POLL, unsigned)
        assert (status, node.wire.outbox.count(signer.rid)) == (403, waiting)
        assert "must sign its polls" in reply["detail"]
        # neither a message in its name nor a restart changes that
        own = Event.from_rid(EventType.FORGET, signer.rid)
        await post(url_of(node) + p.BROADCAST, events(own, signer.introduction))
        assert node.graph.get_neighbors("out", EdgeStatus.APPROVED) == [signer.rid]
        port = int(url_of(node).split(":")[2].split("/")[0])
    async with run_node(tmp_path, port=port) as node:
        assert (await post(url_of(node) + p.POLL, unsigned))[0] == 403
        _, reply = await signer.ask(node, p.POLL, p.PollEvents(0, signer.rid))
        assert rid in [event["rid"] for event in reply["payload"]["events"]]


@requirement("K-37")
async def test_an_unsigned_edge_of_a_node_that_has_signed_is_refused(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        signer = await introduced(node)
        with capture_logs() as logged:
            body = events(_edge(node.rid, signer.rid))
            assert (await post(url_of(node) + p.BROADCAST, body))[0] == 200
            assert f"{signer.rid} has signed messages" in Refusals(logged)
        assert not node.cache.list_rids([EDGE_TYPE])


@requirement("K-44")
async def test_an_unsigned_poll_takes_nothing_from_a_node_that_is_sent_its_events(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        profile = NodeProfile(NodeType.FULL, DEAD)
        edge = EdgeProfile(node.rid, UUID_NODE, EdgeType.WEBHOOK, EdgeStatus.PROPOSED, (PERSONALITY_TYPE,))
        bundles = (
            Bundle.generate(UUID_NODE, profile.render()),
            Bundle.generate(edge_rids(node.rid, UUID_NODE)[1], edge.render()),
        )
        body = events(*(Event.from_bundle(EventType.NEW, bundle) for bundle in bundles))
        assert (await post(url_of(node) + p.BROADCAST, body))[0] == 200
        await until(lambda: node.graph.get_neighbors("out", EdgeStatus.APPROVED) == [UUID_NODE])
        await publish(node, "helpful-agent")
        waiting = node.wire.outbox.count(UUID_NODE)
        assert waiting
        assert await post(url_of(node) + p.POLL, {"rid": UUID_NODE}) == (200, {"events": []})
        assert node.wire.outbox.count(UUID_NODE) == waiting


@requirement("K-37")
async def test_a_forget_that_was_not_taken_is_obeyed_when_it_comes_again(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        owner = await introduced(node, "owner")
        event = new(personality("a", owner.rid))
        await owner.send(node, event)
        forget = owner.body(p.EventsPayload((Event.from_rid(EventType.FORGET, event.rid),)), node.rid)
        node.processor.max_waiting = 0
        assert (await post(url_of(node) + p.BROADCAST, forget))[0] == 503
        node.processor.max_waiting = 1000
        assert (await post(url_of(node) + p.BROADCAST, forget))[0] == 200
        assert event.rid not in node.cache


@requirement("K-37")
async def test_no_sender_pushes_out_the_signatures_of_another(tmp_path: Path) -> None:
    cache = KoiCache(tmp_path / "cache")
    cache.open()
    memory = NodeMemory("own", cache, max_signatures=50, max_signatures_of_one=20)
    memory.note_signature("orn:koi-net.node:victim+1", "aa")
    for number in range(200):
        memory.note_signature(f"orn:koi-net.node:flood+{number % 4}", f"{number:x}")
    again = NodeMemory("own", cache)
    again.load()
    for read in (memory, again):
        assert read.has_signature("orn:koi-net.node:victim+1", "aa")
        assert read.has_signature("orn:koi-net.node:flood+3", f"{199:x}")
        assert not read.has_signature("orn:koi-net.node:flood+0", "0")
    assert len(cache.notes) == 50
    await cache.close()


@requirement("K-37")
async def test_an_unsigned_handshake_in_its_name_does_not_reset_the_edges_of_a_node_that_signs(
    tmp_path: Path,
) -> None:
    async with run_joined(tmp_path) as (node, owner):
        profile = node.cache.read(owner.rid)
        assert profile is not None
        handshake = events(
            Event.from_rid(EventType.FORGET, owner.rid), Event.from_bundle(EventType.NEW, profile)
        )
        with capture_logs() as logged:
            assert (await post(url_of(node) + p.BROADCAST, handshake))[0] == 200
            await node.processor.idle()
            assert f"{owner.rid} still has its edges" in Refusals(logged)
        assert is_joined(node, owner)
        rid = await publish(node, "helpful-agent")
        await until(lambda: rid in owner.cache)


class WatchedClient(HttpClient):
    """A client that keeps the events of its broadcasts, and can hold the first broadcast on its way."""

    def __init__(self) -> None:
        super().__init__(allow_private=True)
        self.sent: list[dict[str, Any]] = []
        self.is_reached, self.released = asyncio.Event(), asyncio.Event()
        self.released.set()

    def hold(self) -> None:
        self.released.clear()

    async def request(self, method: str, url: str, **options: Any) -> HttpResponse:
        if url.endswith(p.BROADCAST):
            body = orjson.loads(options["body"])
            self.sent += body.get("payload", body)["events"]
            if not self.is_reached.is_set():
                self.is_reached.set()
                await self.released.wait()
        return await super().request(method, url, **options)


def port_of(node: KoiNode) -> int:
    port = urlsplit(url_of(node)).port
    assert port is not None
    return port


@requirement("K-37")
@pytest.mark.parametrize("given", ["url", "url and RID"])
async def test_a_node_that_signs_and_has_lost_its_cache_joins_again(tmp_path: Path, given: str) -> None:
    client = WatchedClient()
    async with client, run_node(tmp_path, http=client) as node:

        def contact() -> FirstContact:
            return FirstContact(url_of(node), node.rid if given == "url and RID" else None)

        async with run_node(tmp_path, "owner", first_contact=contact()) as owner:
            await until(lambda: is_joined(node, owner))
            port = port_of(owner)
        shutil.rmtree(tmp_path / "owner" / "cache")
        async with run_node(tmp_path, "owner", first_contact=contact(), port=port) as again:
            assert again.rid == owner.rid
            await until(lambda: is_joined(node, again))
            rid = await publish(node, "helpful-agent")
            await until(lambda: rid in again.cache)
        # it would end an edge that the other node has proposed meanwhile
        forgotten = [event["rid"] for event in client.sent if event["event_type"] == EventType.FORGET]
        assert not [rid for rid in forgotten if type_of(rid) == EDGE_TYPE]


@requirement("K-37")
async def test_nodes_that_introduce_themselves_to_each_other_at_once_join(tmp_path: Path) -> None:
    """The later introduction ends the edge that the earlier one has brought."""
    client = WatchedClient()
    async with client, run_node(tmp_path) as node:
        contact = FirstContact(url_of(node), node.rid)
        async with run_node(tmp_path, "owner", first_contact=contact) as owner:
            await until(lambda: is_joined(node, owner))
            port = port_of(owner)
        shutil.rmtree(tmp_path / "owner" / "cache")
        client.hold()
        async with run_node(tmp_path, "owner", first_contact=contact, port=port, http=client) as again:
            await client.is_reached.wait()
            await node.wire.introductions.introduce_again(again.rid)
            await until(lambda: again.graph.get_neighbors("in", EdgeStatus.APPROVED))
            client.released.set()
            await until(lambda: is_joined(node, again))
            rid = await publish(node, "helpful-agent")
            await until(lambda: rid in again.cache)


@requirement("K-37")
async def test_a_member_joins_a_coordinator_again_that_has_lost_its_cache_while_it_was_away(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        async with run_node(tmp_path) as node:
            contact = FirstContact(url_of(node), node.rid)
            owner = await stack.enter_async_context(run_node(tmp_path, "owner", first_contact=contact))
            await until(lambda: is_joined(node, owner))
            port = port_of(node)
        shutil.rmtree(tmp_path / "coordinator" / "cache")
        with capture_logs() as logged:
            rid = await publish(owner, "helpful-agent")
            await until(lambda: any(line["event"] == "koi_events_not_sent" for line in logged))
        async with run_node(tmp_path, port=port) as again:
            await until(lambda: is_joined(again, owner) and rid in again.cache)


@requirement("K-37")
async def test_an_unsigned_forget_of_a_node_that_signs_is_refused_while_it_is_away(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        async with run_node(tmp_path, "owner", first_contact=FirstContact(url_of(node), node.rid)) as owner:
            await until(lambda: is_joined(node, owner))
        edges = node.graph.list_edges_of(owner.rid)
        body = events(*(Event.from_rid(EventType.FORGET, rid) for rid in (owner.rid, *edges)))
        with capture_logs() as logged:
            assert (await post(url_of(node) + p.BROADCAST, body))[0] == 200
            await node.processor.idle()
            refused = [line["rid"] for line in logged if line["event"] == "koi_event_refused"]
        assert sorted(refused) == sorted([owner.rid, *edges])
        assert node.graph.find_node(owner.rid) is not None
        assert node.graph.list_edges_of(owner.rid) == edges
