"""Whatever a peer sends to an endpoint, in either dialect, gets an answer below 500, and the node goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json
from structlog.testing import capture_logs

from koi.network import (
    DEAD,
    UUID_NODE,
    Signer,
    events,
    introduced,
    new,
    personality,
    post,
    run_node,
    url_of,
)
from retinue_koi.adapter import MCPAdapter
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import Bundle, WireError
from retinue_koi.codec.rids import EDGE_TYPE, NODE_TYPE, PERSONALITY_TYPE, edge_rids
from retinue_koi.node import KoiNode
from retinue_koi.personality_handlers import register_personality_handlers
from tests.requirements import requirement

OWN, SENDER = "OWN", "SENDER"
"""They stand for the RIDs of the node under test and of who sends the message."""

EXAMPLES = 150
both_dialects = pytest.mark.parametrize("dialect", ["unsigned", "signed"])

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
nodes = st.sampled_from([OWN, SENDER, UUID_NODE, f"{NODE_TYPE}:x", f"{NODE_TYPE}:{'y' * 300}+1"])
urls = st.sampled_from(
    [None, DEAD, "http://169.254.169.254/", "http://[", "ftp://a", "", f"{DEAD}/{'u' * 200}"]
)
rid_types = st.lists(st.sampled_from([PERSONALITY_TYPE, NODE_TYPE, "orn:foo", ""]), max_size=3)
traits = st.lists(
    st.fixed_dictionaries({"name": st.text(max_size=5), "is_callable": st.booleans()}), max_size=2
)
node_profiles = st.fixed_dictionaries(
    {
        "node_type": st.sampled_from(["FULL", "PARTIAL", "X"]),
        "base_url": urls,
        "public_key": st.sampled_from([None, "KEY", "AAAA"]),
        "provides": st.fixed_dictionaries({"event": rid_types, "state": rid_types}),
    }
)
edge_profiles = st.fixed_dictionaries(
    {
        "source": st.sampled_from([OWN, OWN, SENDER, UUID_NODE]),
        "target": st.sampled_from([SENDER, SENDER, OWN, UUID_NODE]),
        "edge_type": st.sampled_from(["POLL", "WEBHOOK"]),
        "status": st.sampled_from(["PROPOSED", "APPROVED"]),
        "rid_types": st.sampled_from([[PERSONALITY_TYPE], [], ["orn:foo"]]),
    }
)
personality_rids = st.sampled_from([f"{PERSONALITY_TYPE}:{name}/1.0" for name in ("a", "b", "é", "x" * 300)])
personalities = st.fixed_dictionaries(
    {
        "rid": personality_rids,
        "node_rid": st.sampled_from([SENDER, SENDER, OWN, UUID_NODE]),
        "base_url": urls,
        "mcp_url": urls,
        "traits": traits,
    }
)
rids = personality_rids | nodes | st.sampled_from([f"{EDGE_TYPE}:zz", "orn:foo.bar:1", "", 7])
kinds = st.one_of(
    st.tuples(personality_rids, personalities),
    st.tuples(st.sampled_from([SENDER, UUID_NODE, OWN]), node_profiles),
    st.tuples(st.just("EDGE"), edge_profiles),
)
stamps = st.sampled_from(["2026-01-01T00:00:00Z", "2026-11-01T00:00:00Z", "9999-12-31T23:59:59Z"])


def spoil(draw: Callable[[st.SearchStrategy[Any]], Any], found: Any) -> None:
    """Replace, remove or add one value somewhere below."""
    while isinstance(found, dict) and found:
        key = draw(st.sampled_from(sorted(found)))
        if isinstance(found[key], dict) and found[key] and draw(st.booleans()):
            found = found[key]
        elif draw(st.integers(0, 3)) == 0:
            del found[key]
            return
        else:
            found[key] = draw(anything)
            return


@st.composite
def some_event(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """An event that is right, or wrong in one or two places."""
    rid, contents = draw(kinds)
    if "rid" in contents:
        rid = contents["rid"]
    event = {
        "rid": rid,
        "event_type": draw(st.sampled_from(["NEW", "NEW", "UPDATE", "FORGET"])),
        "manifest": {"rid": rid, "timestamp": draw(stamps), "sha256_hash": "HASH"},
        "contents": dict(contents),
    }
    for _ in range(draw(st.integers(0, 2))):
        spoil(draw, event)
    return event


questions = st.fixed_dictionaries(
    {},
    optional={
        "rids": st.lists(rids, max_size=4) | anything,
        "rid_types": rid_types | anything,
        "rid": rids,
        "limit": st.integers(-2, 3) | anything,
    },
)
messages = st.one_of(
    st.tuples(st.just(p.BROADCAST), st.fixed_dictionaries({"events": st.lists(some_event(), max_size=4)})),
    st.tuples(st.just(p.BROADCAST), st.fixed_dictionaries({"events": st.lists(some_event(), min_size=1)})),
    st.tuples(st.sampled_from(p.PATHS), questions),
    st.tuples(st.sampled_from(p.PATHS), anything),
)


def collect(count: int) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []

    @settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))
    @given(messages)
    def keep(message: tuple[str, Any]) -> None:
        found.append(message)

    keep()
    return found


def fill_in(value: Any, names: dict[str, str]) -> Any:
    """The message with the RIDs that are known now, and with right hashes where it says so."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [fill_in(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    filled = {key: fill_in(item, names) for key, item in value.items()}
    manifest, contents = filled.get("manifest"), filled.get("contents")
    if isinstance(contents, dict) and filled.get("rid") == "EDGE":
        filled["rid"] = edge_rids(str(contents.get("source")), str(contents.get("target")))[0]
    if isinstance(manifest, dict) and isinstance(contents, dict):
        if manifest.get("rid") == "EDGE":
            manifest["rid"] = filled.get("rid")
        if manifest.get("sha256_hash") == "HASH":
            try:
                manifest["sha256_hash"] = Bundle.generate("orn:any:1", contents).manifest.sha256_hash
            except (WireError, ValueError, OverflowError):
                manifest["sha256_hash"] = "0" * 64
    return filled


def sign(signer: Signer, node: KoiNode, payload: Any) -> bytes:
    data = {"payload": payload, "source_node": signer.rid, "target_node": node.rid}
    message = to_json(data, inf_nan_mode="constants")
    return message[:-1] + b',"signature":"' + signer.key.sign(message).encode() + b'"}'


@requirement("K-31")
@requirement("K-37")
@both_dialects
async def test_nothing_that_a_peer_sends_stops_the_node(tmp_path: Path, dialect: str) -> None:
    adapter = MCPAdapter()
    async with run_node(tmp_path) as node:
        node.wire.peers.timeout_s = 0.5
        register_personality_handlers(node.processor, adapter)
        signer = await introduced(node)
        own, key = node.cache.read(node.rid), node.state.identity.key.public_key
        names = {OWN: node.rid, SENDER: signer.rid if dialect == "signed" else UUID_NODE}
        names["KEY"] = signer.key.public_key
        with capture_logs() as logged:
            for path, message in collect(EXAMPLES):
                payload = fill_in(message, names)
                body = sign(signer, node, payload) if dialect == "signed" else to_json(payload)
                status, _ = await post(url_of(node) + path, body)
                assert status < 500, (path, body)
                if signer.rid not in node.cache:  # it has taken itself back
                    await signer.send(node, signer.introduction)
            await node.processor.idle()
        assert [line for line in logged if line["event"] in ("koi_object_failed", "koi_task_failed")] == []
        assert node.cache.read(node.rid) == own
        profile = node.graph.find_node(node.rid)
        assert profile is not None
        assert profile.public_key == key
        for held in adapter.list_held():
            assert held.profile.node_rid != node.rid
        good = new(personality("good", UUID_NODE))
        assert (await post(url_of(node) + p.BROADCAST, events(good)))[0] == 200
        assert good.rid in node.cache


@requirement("K-37")
@both_dialects
@pytest.mark.parametrize(
    ("path", "payload", "told"),
    [
        (p.BROADCAST, {"events": [{"rid": UUID_NODE, "event_type": "NEW"}] * 2001}, "events: it holds 2001"),
        (p.BROADCAST, {"events": [], "more": "x" * 4_200_000}, "the body is larger"),
        (p.RIDS, {"rid_types": ["x"] * 100_001}, "rid_types: it holds 100001"),
        (p.MANIFESTS, {"rids": ["x:y"] * 100_001}, "rids: it holds 100001"),
        (p.BUNDLES, {"rids": ["x:y"] * 100_001}, "rids: it holds 100001"),
        (p.POLL, {"limit": 0, "more": "x" * 4_200_000}, "the body is larger"),
    ],
)
async def test_bodies_and_batches_over_their_limits_are_413(
    tmp_path: Path, dialect: str, path: str, payload: dict[str, Any], told: str
) -> None:
    async with run_node(tmp_path) as node:
        signer = await introduced(node)
        body = sign(signer, node, payload) if dialect == "signed" else to_json(payload)
        with capture_logs() as logged:
            status, reply = await post(url_of(node) + path, body)
        assert status == 413
        assert told in reply["detail"]
        refused = [line for line in logged if line["event"] == "koi_request_refused"]
        assert [told in line["reason"] for line in refused] == [True]


@requirement("K-44")
@both_dialects
async def test_a_poll_for_more_than_there_is_or_for_no_number_does_no_harm(
    tmp_path: Path, dialect: str
) -> None:
    async with run_node(tmp_path) as node:
        signer = await introduced(node)
        for limit, expected in ((10**12, 200), (-1, 422), (True, 422), ("1", 422), (math.pi, 422)):
            payload = {"limit": limit, "rid": signer.rid if dialect == "signed" else UUID_NODE}
            body = sign(signer, node, payload) if dialect == "signed" else to_json(payload)
            assert (await post(url_of(node) + p.POLL, body))[0] == expected, limit
