"""Delivery to peers of different speed, and what is left of a question or a name when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from koi.network import Signer, events, new, personality, post, publish, run_node, until, url_of
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import Bundle, Event, EventType
from retinue_koi.codec.envelopes import decode_json
from retinue_koi.codec.profiles import EdgeProfile, EdgeStatus, EdgeType
from retinue_koi.codec.rids import NODE_TYPE, PERSONALITY_TYPE, edge_rids
from retinue_koi.knowledge import Handled, KnowledgeObject, KnowledgeSource
from retinue_koi.node import KoiNode
from retinue_koi.peers import FirstContact
from retinue_koi.pipeline import PipelineSteps, Processor
from tests.requirements import requirement
from tests.serving import serve_app

OLDER = "orn:koi-net.node:older+7a3c8f50-6a3e-4a3d-8d3a-2f8a6f0d1c11"
NEWER = "orn:koi-net.node:newer+8b4d8f50-6a3e-4a3d-8d3a-2f8a6f0d1c11"


class RecordingPeer:
    """A node that records the personalities that it is told, and answers only while it is not held."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.app = Starlette(routes=[Route("/koi-net/events/broadcast", self.answer, methods=["POST"])])

    async def answer(self, request: Request) -> JSONResponse:
        listed = decode_json(await request.body())["payload"]["events"]
        self.told += [
            (one["rid"], one["contents"].get("mood")) for one in listed if PERSONALITY_TYPE in one["rid"]
        ]
        await self.answers.wait()
        return JSONResponse(None)

    async def join(self, node: KoiNode, name: str, url: str) -> str:
        """Introduce itself; the RID."""
        signer = Signer(name, f"{url}/koi-net")
        assert await signer.send(node, signer.introduction) == (200, None)
        await until(lambda: not node.wire.outbox.count(signer.rid))
        return signer.rid


@requirement("K-44")
async def test_each_peer_is_told_once_however_fast_the_others_are(tmp_path: Path) -> None:
    fast, slow = RecordingPeer(), RecordingPeer()
    async with (
        serve_app(fast.app) as fast_url,
        serve_app(slow.app) as slow_url,
        run_node(tmp_path) as node,
    ):
        targets = [await fast.join(node, "fast", fast_url), await slow.join(node, "slow", slow_url)]
        rid = await publish(node, "helpful-agent", mood="glad")
        slow.answers.clear()
        for target in targets:
            node.wire.outbox.push(target, rid, EventType.NEW)
        await until(lambda: slow.told and not node.wire.outbox.count(targets[0]))
        slow.answers.set()
        await until(lambda: not node.cache.queues)
        assert fast.told == slow.told == [(rid, "glad")]


@requirement("K-44")
async def test_an_update_while_an_event_is_on_its_way_is_sent_as_well(tmp_path: Path) -> None:
    fast, slow = RecordingPeer(), RecordingPeer()
    async with (
        serve_app(fast.app) as fast_url,
        serve_app(slow.app) as slow_url,
        run_node(tmp_path) as node,
    ):
        first, second = await fast.join(node, "fast", fast_url), await slow.join(node, "slow", slow_url)
        rid = await publish(node, "helpful-agent", mood="glad")
        slow.answers.clear()
        node.wire.outbox.push(second, rid, EventType.NEW)
        await until(lambda: slow.told)
        node.wire.outbox.push(first, rid, EventType.NEW)
        await until(lambda: not node.wire.outbox.count(first))
        await publish(node, "helpful-agent", EventType.UPDATE, mood="busy")
        node.wire.outbox.push(second, rid, EventType.UPDATE)
        slow.answers.set()
        await until(lambda: not node.cache.queues)
        assert slow.told == [(rid, "glad"), (rid, "busy")]


@requirement("K-44")
async def test_an_event_that_comes_as_the_last_one_leaves_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = RecordingPeer()
    async with serve_app(peer.app) as url, run_node(tmp_path) as node:
        target = await peer.join(node, "peer", url)
        rids = [await publish(node, name) for name in ("first", "second")]
        dequeue = node.cache.dequeue
        loop = asyncio.get_running_loop()

        def dequeue_and_push(queue: str, gone: list[str]) -> None:
            dequeue(queue, gone)
            monkeypatch.undo()
            # it runs after the task that sends has ended, and before what waits for that end
            loop.call_soon(node.wire.outbox.push, target, rids[1], EventType.NEW)

        monkeypatch.setattr(node.cache, "dequeue", dequeue_and_push)
        node.wire.outbox.push(target, rids[0], EventType.NEW)
        await until(lambda: len(peer.told) == 2, 3.0)
        assert [rid for rid, _ in peer.told] == rids


@requirement("K-41")
@pytest.mark.parametrize("asked", ["too early", "in time", "before a change"])
async def test_a_subscriber_is_sent_what_it_missed_when_it_asked_before_it_subscribed(
    tmp_path: Path, asked: str
) -> None:
    stranger = Signer("stranger")
    async with run_node(tmp_path) as node:
        rids = [await publish(node, "helpful-agent")]
        fetch = p.FetchRids((PERSONALITY_TYPE,))
        refused = {"type": "error_response", "error": "unknown_node"}
        assert await stranger.ask(node, p.RIDS, fetch) == (400, refused)
        await stranger.send(node, stranger.introduction)
        if asked != "too early":
            assert (await stranger.ask(node, p.RIDS, fetch))[0] == 200
        if asked == "before a change":
            rids.append(await publish(node, "second-agent"))
        edge_rid = edge_rids(node.rid, stranger.rid)[0]
        edge = EdgeProfile(
            node.rid, stranger.rid, EdgeType.POLL, EdgeStatus.PROPOSED, (PERSONALITY_TYPE, NODE_TYPE)
        )
        await stranger.send(node, Event.from_bundle(EventType.NEW, Bundle.generate(edge_rid, edge.render())))
        await node.processor.idle()
        taken = node.wire.outbox.take(stranger.rid, 0, "signed")
        waiting = [(event.rid, event.event_type) for event in taken]
        told = [(node.rid, EventType.NEW), (edge_rid, EventType.UPDATE)]
        if asked != "in time":
            told += [(rid, EventType.NEW) for rid in rids]
        assert sorted(waiting) == sorted(told)


@requirement("K-41")
async def test_a_change_between_the_first_fetch_and_the_approved_edge_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_node(tmp_path) as provider:
        rid = await publish(provider, "helpful-agent", mcp_url="http://127.0.0.1:9")

        async def change(contents_url: str) -> None:
            bundle = provider.state.generate_bundle(
                rid, personality("helpful-agent", provider.rid, mcp_url=contents_url)
            )
            await provider.processor.handle(bundle=bundle, event_type=EventType.UPDATE)

        # as a stock node, the provider sends a new subscriber nothing that changed before the edge
        monkeypatch.setattr(provider.joining, "make_up", lambda rid, types: None)
        handle, changed = provider.processor.handle, asyncio.Event()

        def change_and_approve(**kobj: Any) -> Any:
            # the edge is approved after the change, whose event therefore has no subscriber
            bundle = kobj.get("bundle")
            if bundle is not None and bundle.contents.get("status") == "APPROVED" and not changed.is_set():
                changed.set()
                approving.append(asyncio.create_task(approve_later(kobj)))
                return None
            return handle(**kobj)

        async def approve_later(kobj: dict[str, Any]) -> None:
            await until(lambda: held_by(joined) == "http://127.0.0.1:9")
            await change("http://127.0.0.1:10")
            await handle(**kobj)

        def held_by(node: KoiNode) -> Any:
            bundle = node.cache.read(rid)
            return None if bundle is None else bundle.contents["mcp_url"]

        approving: list[asyncio.Task[None]] = []
        monkeypatch.setattr(provider.processor, "handle", change_and_approve)
        contact = FirstContact(url_of(provider), provider.rid)
        async with run_node(tmp_path, "joined", first_contact=contact) as joined:
            await until(lambda: held_by(joined) == "http://127.0.0.1:10")
            await asyncio.gather(*approving)


class _FailingSteps(PipelineSteps):
    """Steps whose question to another node raises."""

    def is_stale(self, kobj: KnowledgeObject) -> bool:
        return False

    def settle(self, kobj: KnowledgeObject) -> Awaitable[bool] | bool:
        return True

    async def fetch(self, kobj: KnowledgeObject) -> bool:
        raise RuntimeError("on purpose")

    def change_cache(self, kobj: KnowledgeObject) -> None:
        raise AssertionError("nothing came that could be kept")

    def send(self, kobj: KnowledgeObject) -> None:
        raise AssertionError("nothing came that could be sent")


@requirement("K-31")
async def test_a_question_that_fails_is_no_longer_waited_for() -> None:
    processor = Processor(_FailingSteps())
    processor.start()
    handled = Handled(2)
    rid = f"{PERSONALITY_TYPE}:quiet/1.0"
    processor.handle_all([KnowledgeObject(rid, source=KnowledgeSource.External, handled=handled)])
    await processor.idle()
    await processor.stop()
    assert handled.asked == 0
    assert not handled.only_asked_left, "the second object has not come yet"


@requirement("K-43")
async def test_a_name_goes_back_to_the_owner_of_the_version_that_is_left(tmp_path: Path) -> None:
    newer = personality("helpful-agent", NEWER, "2.0")
    async with run_node(tmp_path) as node:
        url = url_of(node) + "/events/broadcast"
        await post(url, events(new(personality("helpful-agent", OLDER), "2026-01-01T00:00:00Z")))
        assert node.policy.release_name("helpful-agent")
        await post(url, events(new(newer, "2026-01-02T00:00:00Z")))
        assert node.policy.rules.names == {"helpful-agent": NEWER}
    async with run_node(tmp_path) as node:
        assert node.policy.rules.names == {"helpful-agent": NEWER}, "after a restart the latest state decides"
        await node.processor.handle(rid=newer["rid"], event_type=EventType.FORGET)
        assert node.policy.rules.names == {"helpful-agent": OLDER}
        left = f"{PERSONALITY_TYPE}:helpful-agent/1.0"
        await node.processor.handle(rid=left, event_type=EventType.FORGET)
        assert node.policy.rules.names == {}
