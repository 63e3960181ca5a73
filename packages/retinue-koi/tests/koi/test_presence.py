"""A coordinator marks members that do not answer, evicts them after a time, and takes them back."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from structlog.testing import capture_logs

from koi.network import (
    UUID_NODE,
    WITHIN_S,
    events,
    is_joined,
    post,
    publish,
    run_node,
    until,
    url_of,
)
from koi.test_keyed_owners import port_of
from koi.test_unsigned_peers import introduction
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import Bundle, Event, EventType
from retinue_koi.codec.profiles import EdgeProfile, EdgeStatus, EdgeType
from retinue_koi.codec.rids import PERSONALITY_TYPE, edge_rids
from retinue_koi.node import KoiNode
from retinue_koi.peers import FirstContact
from retinue_koi.presence import Presence
from tests.requirements import requirement


class Watched:
    """A presence whose clock a test sets, and which takes no answer of earlier as one of now."""

    def __init__(self, node: KoiNode, evict_after_s: float = 100.0) -> None:
        self.now_s = 0.0
        self.marks: list[tuple[str, str | None]] = []
        self.presence = Presence(
            node,
            lambda rid, reason: self.marks.append((rid, reason)),
            evict_after_s=evict_after_s,
            look_every_s=0.0,
            answer_within_s=WITHIN_S,
            clock=lambda: self.now_s,
        )

    async def look(self, at_s: float) -> None:
        self.now_s = at_s
        await self.presence.look()


@asynccontextmanager
async def run_member(folder: Path, node: KoiNode, port: int = 0) -> AsyncIterator[KoiNode]:
    contact = FirstContact(url_of(node), node.rid)
    async with run_node(folder, "owner", first_contact=contact, port=port) as owner:
        await until(lambda: is_joined(node, owner))
        yield owner


@requirement("K-41")
async def test_a_member_that_does_not_answer_is_marked_evicted_and_taken_back(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        watched = Watched(node)
        async with run_member(tmp_path, node) as owner:
            port, rid = port_of(owner), await publish(owner, "helpful-agent")
            await until(lambda: rid in node.cache)
            await watched.look(at_s=10.0)
            assert watched.marks == []
        await watched.look(at_s=20.0)
        await watched.look(at_s=119.0)
        assert watched.marks == [(owner.rid, "the node does not answer")]
        assert watched.presence.is_silent(owner.rid)
        assert rid in node.cache
        with capture_logs() as logged:
            await watched.look(at_s=120.0)
        assert [line["personalities"] for line in logged if line["event"] == "koi_member_evicted"] == [[rid]]
        assert rid not in node.cache
        # it returns as it was, and tells nothing of its own
        async with run_member(tmp_path, node, port):
            for _ in range(10):
                await watched.look(at_s=130.0)
            assert watched.marks[1:] == [(owner.rid, None)]
            await until(lambda: rid in node.cache)


@requirement("K-41")
async def test_subscribers_are_told_of_an_eviction_and_of_the_return_of_the_same_state(
    tmp_path: Path,
) -> None:
    async with (
        run_node(tmp_path) as node,
        run_node(tmp_path, "reader", first_contact=FirstContact(url_of(node), node.rid)) as reader,
    ):
        await until(lambda: is_joined(node, reader))
        watched = Watched(node)
        async with run_member(tmp_path, node) as owner:
            port, rid = port_of(owner), await publish(owner, "helpful-agent")
            await until(lambda: rid in reader.cache)
        await watched.look(at_s=0.0)
        await watched.look(at_s=100.0)
        await until(lambda: rid not in reader.cache)
        async with run_member(tmp_path, node, port):
            for _ in range(10):
                await watched.look(at_s=110.0)
            await until(lambda: rid in reader.cache)


@requirement("K-41")
async def test_a_member_stays_marked_but_listed_where_eviction_is_off(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        watched = Watched(node, evict_after_s=0.0)
        async with run_member(tmp_path, node) as owner:
            rid = await publish(owner, "helpful-agent")
            await until(lambda: rid in node.cache)
        await watched.look(at_s=0.0)
        await watched.look(at_s=10.0**6)
        assert watched.presence.is_silent(owner.rid)
        assert rid in node.cache


@requirement("K-44")
async def test_a_member_that_polls_is_silent_while_it_does_not_poll(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        edge = EdgeProfile(node.rid, UUID_NODE, EdgeType.POLL, EdgeStatus.PROPOSED, (PERSONALITY_TYPE,))
        bundle = Bundle.generate(edge_rids(edge.source, edge.target)[1], edge.render())
        told = events(introduction(UUID_NODE), Event.from_bundle(EventType.NEW, bundle))
        assert (await post(url_of(node) + p.BROADCAST, told))[0] == 200
        await until(lambda: node.graph.get_neighbors("out", EdgeStatus.APPROVED) == [UUID_NODE])
        watched = Watched(node)
        await watched.look(at_s=0.0)
        await watched.look(at_s=1000.0)
        assert (await post(url_of(node) + p.POLL, {"rid": UUID_NODE}))[0] == 200
        await watched.look(at_s=1001.0)
        assert watched.marks == [(UUID_NODE, "the node does not answer"), (UUID_NODE, None)]


@requirement("K-41")
async def test_a_look_at_a_node_that_has_lost_its_cache_joins_it_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with run_node(tmp_path) as node:
            port, contact = port_of(node), FirstContact(url_of(node), node.rid)
            owner = await stack.enter_async_context(run_node(tmp_path, "owner", first_contact=contact))
            await until(lambda: is_joined(node, owner))
        shutil.rmtree(tmp_path / "coordinator" / "cache")
        again = await stack.enter_async_context(run_node(tmp_path, port=port))
        await Watched(owner).look(at_s=0.0)
        await until(lambda: is_joined(again, owner))
