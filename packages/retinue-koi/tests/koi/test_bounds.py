"""What waits has a limit: events for peers that never answer, nodes with queues; handlers that raise."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koi.network import UUID_NODE, events, new, personality, post, publish, run_node, until, url_of
from koi.test_delivery import RecordingPeer
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import EventType
from retinue_koi.codec.rids import PERSONALITY_TYPE
from retinue_koi.knowledge import HandlerType, KnowledgeObject
from retinue_koi.pipeline import Processor
from tests.requirements import requirement
from tests.serving import serve_app


def dropped(logged: list[Any]) -> list[tuple[str, str, str]]:
    return [
        (line["node"], line["rid"], line["reason"]) for line in logged if line["event"] == "koi_event_dropped"
    ]


@requirement("K-31")
@requirement("K-44")
async def test_a_peer_that_never_answers_fills_its_own_queue_only(tmp_path: Path) -> None:
    silent, other = RecordingPeer(), RecordingPeer()
    async with (
        serve_app(silent.app) as silent_url,
        serve_app(other.app) as other_url,
        run_node(tmp_path) as node,
    ):
        targets = [await silent.join(node, "silent", silent_url), await other.join(node, "other", other_url)]
        rids = [await publish(node, f"agent-{number}") for number in range(6)]
        node.wire.outbox.max_queued = 4
        silent.answers.clear()
        with capture_logs() as logged:
            for rid in rids:
                node.wire.outbox.push(targets[0], rid, EventType.NEW)
                node.wire.outbox.push(targets[1], rid, EventType.NEW)
                await until(lambda: not node.wire.outbox.count(targets[1]))
            node.wire.outbox.push(targets[0], rids[0], EventType.UPDATE)
        assert [rid for rid, _ in other.told] == rids, "the other peer gets every event"
        assert node.wire.outbox.count(targets[0]) == 4, (
            "the newest are dropped; of the rest the last state waits"
        )
        assert dropped(logged) == [(targets[0], rid, "4 events wait already") for rid in rids[4:]]
        silent.answers.set()
        await until(lambda: not node.cache.queues)
        assert {rid for rid, _ in silent.told} == set(rids[:4])


@requirement("K-31")
async def test_nodes_with_queues_have_a_limit(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        rid = await publish(node, "helpful-agent")
        node.wire.outbox.max_queues = 2
        targets = [UUID_NODE.replace("plain", name) for name in ("one", "two", "three")]
        with capture_logs() as logged:
            for target in targets:
                node.wire.outbox.push(target, rid, EventType.NEW)
        assert list(node.cache.queues) == targets[:2]
        assert dropped(logged) == [(targets[2], rid, "2 nodes have queues")]
        node.wire.outbox.drop(targets[0])
        node.wire.outbox.push(targets[2], rid, EventType.NEW)
        assert list(node.cache.queues) == targets[1:]


@requirement("K-31")
async def test_nothing_is_left_of_a_peer_that_was_told_all(tmp_path: Path) -> None:
    peer = RecordingPeer()
    async with serve_app(peer.app) as url, run_node(tmp_path) as node:
        target = await peer.join(node, "peer", url)
        node.wire.outbox.push(target, await publish(node, "helpful-agent"), EventType.NEW)
        await until(lambda: bool(peer.told) and node.wire.outbox.is_empty)


@requirement("K-31")
@pytest.mark.parametrize("stage", list(HandlerType))
async def test_a_handler_that_raises_is_logged_and_the_next_event_is_processed(
    tmp_path: Path, stage: HandlerType
) -> None:
    async with run_node(tmp_path) as node:

        @node.processor.register_handler(stage, [PERSONALITY_TYPE])
        async def fail(processor: Processor, kobj: KnowledgeObject) -> None:
            await asyncio.sleep(0)
            if "raises" in kobj.rid_text:
                raise RuntimeError("on purpose")

        bad, good = (new(personality(name, UUID_NODE)) for name in ("raises", "passes"))
        with capture_logs() as logged:
            for event in (bad, good):
                assert (await post(url_of(node) + p.BROADCAST, events(event)))[0] == 200
        [line] = [line for line in logged if line["event"] == "koi_object_failed"]
        assert (line["rid"], line["reason"]) == (bad.rid, "RuntimeError('on purpose')")
        assert good.rid in node.cache
