"""What a hostile peer tries without signing, over real sockets; and what a damaged file costs a node."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koi.network import (
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
from koi.test_cache import path_of
from koi.test_hostile_contents import both_dialects
from retinue_koi.adapter import MCPAdapter
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import Bundle, Event, EventType
from retinue_koi.codec.profiles import EdgeProfile, EdgeStatus, EdgeType, NodeProfile, NodeType
from retinue_koi.codec.rids import EDGE_TYPE, PERSONALITY_TYPE, edge_rids
from retinue_koi.node import KoiNode
from retinue_koi.peers import FirstContact
from retinue_koi.personality_handlers import fill_adapter
from tests.requirements import requirement

THIRD = UUID_NODE.replace("plain", "third")


async def tell(node: KoiNode, *listed: Event) -> None:
    """Broadcast events unsigned, and wait until the questions that they cause are answered."""
    assert (await post(url_of(node) + p.BROADCAST, events(*listed)))[0] == 200
    await node.processor.idle()


def introduction(rid: str) -> Event:
    """The profile of a node that polls."""
    return Event.from_bundle(EventType.NEW, Bundle.generate(rid, NodeProfile(NodeType.PARTIAL).render()))


@requirement("K-37")
@pytest.mark.parametrize(
    ("changes", "rid", "reason"),
    [
        ({"nonsense": 1}, None, "source: it is not the RID of a node"),
        ({}, f"{EDGE_TYPE}:zz", "its RID is not made from its source and target"),
        ({"status": EdgeStatus.APPROVED}, None, "only the source of an edge approves it"),
        ({"source": THIRD}, None, "does not concern this node"),
        ({"target": THIRD}, None, f"{THIRD} is not known to this node"),
        ({"rid_types": ("orn:foo.bar",)}, None, "does not provide orn:foo.bar"),
        ({"edge_type": EdgeType.WEBHOOK}, None, "it polls"),
    ],
)
async def test_a_bad_edge_is_refused_and_the_node_goes_on(
    tmp_path: Path, changes: dict[str, Any], rid: str | None, reason: str
) -> None:
    async with run_node(tmp_path) as node:
        await tell(node, introduction(UUID_NODE))
        fields: dict[str, Any] = {
            "source": node.rid,
            "target": UUID_NODE,
            "edge_type": EdgeType.POLL,
            "status": EdgeStatus.PROPOSED,
            "rid_types": (PERSONALITY_TYPE,),
        }
        contents = changes if "nonsense" in changes else EdgeProfile(**{**fields, **changes}).render()
        made_of = [contents.get(end, fields[end]) for end in ("source", "target")]
        bad = Bundle.generate(rid or edge_rids(*made_of)[1], contents)
        with capture_logs() as logged:
            await tell(node, Event.from_bundle(EventType.NEW, bad))
            assert reason in Refusals(logged)
        assert not node.cache.list_rids([EDGE_TYPE])
        good = Bundle.generate(edge_rids(node.rid, UUID_NODE)[1], EdgeProfile(**fields).render())
        await tell(node, Event.from_bundle(EventType.NEW, good))
        await until(lambda: node.graph.get_neighbors("out", EdgeStatus.APPROVED) == [UUID_NODE])


@requirement("K-37")
async def test_a_replayed_forget_does_not_end_what_its_owner_has_published_again(tmp_path: Path) -> None:
    async with run_joined(tmp_path) as (node, owner):
        rid = await publish(owner, "helpful-agent")
        await until(lambda: rid in node.cache)
        await owner.processor.handle(rid=rid, event_type=EventType.FORGET)
        await until(lambda: rid not in node.cache)
        await publish(owner, "helpful-agent")
        await until(lambda: rid in node.cache)
        with capture_logs() as logged:
            await tell(node, Event.from_rid(EventType.FORGET, rid))
            assert f"{owner.rid} still has it" in Refusals(logged)
        assert rid in node.cache


@requirement("K-37")
async def test_a_name_of_a_living_node_is_not_given_to_another(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        true = new(personality("helpful-agent", UUID_NODE, mood="glad"))
        await tell(node, true)
        with capture_logs() as logged:
            await tell(node, new(personality("helpful-agent", THIRD, mood="stolen")))
            await tell(node, new(personality("helpful-agent", THIRD, "9.9", mood="stolen")))
        refused = [line["reason"] for line in logged if line["event"] == "koi_event_refused"]
        assert refused == [f"the name belongs to {UUID_NODE}, which is alive"] * 2
        assert node.cache.list_rids([PERSONALITY_TYPE]) == [true.rid]
        held = node.cache.read(true.rid)
        assert held is not None
        assert held.contents["mood"] == "glad"


@requirement("K-37")
@both_dialects
@pytest.mark.parametrize(
    ("url", "private", "reason"),
    [
        ("http://169.254.169.254/koi-net", True, "base_url: link-local"),
        ("http://[fe80::1]/koi-net", True, "base_url: link-local"),
        ("file:///etc/passwd", True, "base_url: it is not an http or https url"),
        ("http://10.0.0.1:9000/koi-net", False, "base_url: "),
    ],
)
async def test_a_node_at_an_address_that_could_do_harm_is_refused(
    tmp_path: Path, dialect: str, url: str, private: bool, reason: str
) -> None:
    async with run_node(tmp_path, allow_private_urls=private) as node:
        signer = await introduced(node)
        own = dialect == "signed"
        key = signer.key.public_key if own else None
        profile = NodeProfile(NodeType.FULL, url, (PERSONALITY_TYPE,), (), key)
        rid = signer.rid if own else UUID_NODE
        event = Event.from_bundle(EventType.UPDATE, Bundle.generate(rid, profile.render()))
        with capture_logs() as logged:
            if own:
                assert (await signer.send(node, event))[0] == 200
            else:
                await tell(node, event)
            assert reason in Refusals(logged)
        held = node.graph.find_node(rid)
        assert held is None or held.base_url is None


@requirement("K-36")
@requirement("K-41")
async def test_what_a_cut_file_held_is_not_listed_until_its_owner_has_told_it_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with run_node(tmp_path) as node:
            port = int(url_of(node).split(":")[2].split("/")[0])
            joining = run_node(tmp_path, "owner", first_contact=FirstContact(url_of(node), node.rid))
            owner = await stack.enter_async_context(joining)
            await until(lambda: is_joined(node, owner))
            rid = await publish(owner, "helpful-agent", mood="glad")
            await until(lambda: rid in node.cache)
        file = path_of(tmp_path / "coordinator" / "cache", rid)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with capture_logs() as logged:
            async with run_node(tmp_path, port=port) as node:
                adapter = MCPAdapter()
                fill_adapter(adapter, node.cache)
                assert adapter.list_agents() == []
                await until(lambda: rid in node.cache)
                held = node.cache.read(rid)
                assert held is not None
                assert held.contents["mood"] == "glad"
        [line] = [line for line in logged if line["event"] == "koi_cache_file_set_aside"]
        assert line["reason"]
