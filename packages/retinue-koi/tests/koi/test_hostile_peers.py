"""Peers that lie, flood, send garbage or never answer; each refusal is logged with its reason."""

from __future__ import annotations

import asyncio
import json
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from koi.network import (
    DEAD,
    UUID_NODE,
    Refusals,
    Signer,
    events,
    introduced,
    new,
    personality,
    post,
    publish,
    run_joined,
    run_node,
    until,
    url_of,
)
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import Bundle, Event, EventType
from retinue_koi.codec.profiles import EdgeProfile, EdgeStatus, EdgeType, NodeProfile, NodeType
from retinue_koi.codec.rids import EDGE_TYPE, PERSONALITY_TYPE, edge_rids
from retinue_koi.rules import default_trust
from tests.requirements import requirement
from tests.serving import serve_app

# Envelopes


@requirement("K-37")
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("stranger", "unknown_node"),
        ("key", "invalid_key"),
        ("signature", "invalid_signature"),
        ("target", "invalid_target"),
    ],
)
async def test_a_wrong_envelope_is_refused_in_the_form_of_a_stock_node(
    tmp_path: Path, change: str, fault: str
) -> None:
    async with run_node(tmp_path) as node:
        signer = Signer("signer") if change in ("stranger", "key") else await introduced(node)
        payload: p.Request = p.FetchRids()
        target = node.rid
        path = p.RIDS
        if change == "key":
            profile = NodeProfile(NodeType.PARTIAL, public_key=Signer("other").key.public_key)
            own = Bundle.generate(signer.rid, profile.render())
            payload, path = p.EventsPayload((Event.from_bundle(EventType.NEW, own),)), p.BROADCAST
        if change == "signature":
            signer.key = Signer("other").key
        if change == "target":
            target = Signer("other").rid
        with capture_logs() as logged:
            status, reply = await post(url_of(node) + path, signer.body(payload, target))
        assert (status, reply) == (400, {"type": "error_response", "error": fault})
        assert [line["fault"] for line in logged if line["event"] == "koi_request_refused"] == [fault]


@requirement("K-37")
async def test_a_personality_is_taken_from_the_node_that_owns_it_only(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        owner, thief = await introduced(node, "owner"), await introduced(node, "thief")
        true = new(personality("helpful-agent", owner.rid, mood="glad"))
        await owner.send(node, true)
        with capture_logs() as logged:
            refused = Refusals(logged)
            await thief.send(node, new(personality("helpful-agent", owner.rid, mood="stolen")))
            await until(lambda: "which cannot be asked" in refused)
            await thief.send(node, new(personality("helpful-agent", thief.rid, mood="stolen")))
            assert "the name belongs to" in refused
            await thief.send(node, new(personality("helpful-agent", thief.rid, "9.9")))
            await thief.send(node, Event.from_rid(EventType.FORGET, true.rid))
            assert f"it belongs to {owner.rid}, not to {thief.rid}" in refused
            body = events(new(personality("helpful-agent", owner.rid, mood="unsigned")))
            assert (await post(url_of(node) + p.BROADCAST, body))[0] == 200
            await node.processor.idle()
        assert node.cache.list_rids([PERSONALITY_TYPE]) == [true.rid]
        held = node.cache.read(true.rid)
        assert held is not None
        assert held.contents["mood"] == "glad"


@requirement("K-37")
async def test_what_another_passes_on_is_taken_as_its_owner_confirms_it(tmp_path: Path) -> None:
    async with run_joined(tmp_path) as (node, owner):
        contents = personality("helpful-agent", owner.rid, mood="glad")
        owner.cache.write(owner.state.generate_bundle(contents["rid"], contents))
        gossip = await introduced(node, "gossip")
        await gossip.send(node, new({**contents, "mood": "stolen"}))
        await until(lambda: contents["rid"] in node.cache)
        held = node.cache.read(contents["rid"])
        assert held is not None
        assert held.contents["mood"] == "glad"


@requirement("K-37")
async def test_older_and_replayed_messages_are_refused(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        owner = await introduced(node, "owner")
        old = new(personality("a", owner.rid, mood="old"), "2026-01-01T00:00:00+00:00")
        await owner.send(node, new(personality("a", owner.rid, mood="new"), "2026-01-02T00:00:00+00:00"))
        with capture_logs() as logged:
            await owner.send(node, old)
            assert "it is of 2026-01-01" in Refusals(logged)
        forget = owner.body(p.EventsPayload((Event.from_rid(EventType.FORGET, old.rid),)), node.rid)
        url = url_of(node) + p.BROADCAST
        assert (await post(url, forget))[0] == 200
        assert old.rid not in node.cache
        with capture_logs() as logged:
            await owner.send(node, old)
            assert "it was forgotten after this state" in Refusals(logged)
        await owner.send(node, new(personality("a", owner.rid)))
        with capture_logs() as logged:
            assert (await post(url, forget))[0] == 200
            assert "it is replayed" in Refusals(logged)
        assert old.rid in node.cache
    async with run_node(tmp_path, port=int(url.split(":")[2].split("/")[0])) as node:
        assert (await post(url, forget))[0] == 200
        assert old.rid in node.cache, "a message that is replayed after a restart"


async def test_objects_of_other_types_are_not_kept(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        await post(url_of(node) + p.BROADCAST, events(new({"rid": "orn:foo.bar:1"})))
        assert "orn:foo.bar:1" not in node.cache


async def test_no_edge_is_made_or_approved_by_another(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        signer, third = await introduced(node), await introduced(node, "third")

        def edge(rid: str | None = None, **changes: Any) -> Event:
            fields: dict[str, Any] = {
                "source": node.rid,
                "target": signer.rid,
                "edge_type": EdgeType.POLL,
                "status": EdgeStatus.PROPOSED,
                "rid_types": (PERSONALITY_TYPE,),
                **changes,
            }
            profile = EdgeProfile(**fields)
            rid = rid or edge_rids(profile.source, profile.target)[0]
            return Event.from_bundle(EventType.NEW, Bundle.generate(rid, profile.render()))

        nonsense = Bundle.generate(f"{EDGE_TYPE}:zz", {"nonsense": 1})
        with capture_logs() as logged:
            refused = Refusals(logged)
            await signer.send(node, Event.from_bundle(EventType.NEW, nonsense))
            assert "source: it is not the RID of a node" in refused
            await signer.send(node, edge(f"{EDGE_TYPE}:zz"))
            assert "its RID is not made from its source and target" in refused
            await signer.send(node, edge(status=EdgeStatus.APPROVED))
            assert "only the source of an edge approves it" in refused
            await third.send(node, edge())
            assert "and comes from" in refused
            await signer.send(node, edge(source=third.rid))
            assert "does not concern this node" in refused
            await signer.send(node, edge(rid_types=("orn:foo.bar",)))
            await signer.send(node, edge(edge_type=EdgeType.WEBHOOK))
            assert "does not provide orn:foo.bar" in refused
            assert "it polls" in refused
        assert not node.cache.list_rids([EDGE_TYPE])
        await signer.send(node, edge())
        await until(lambda: node.graph.get_neighbors("out", EdgeStatus.APPROVED) == [signer.rid])


# The unsigned dialect


async def test_an_unsigned_forget_is_obeyed_only_if_the_owner_does_not_have_it(tmp_path: Path) -> None:
    async with run_joined(tmp_path) as (node, owner):
        rid = await publish(owner, "helpful-agent")
        await until(lambda: rid in node.cache)
        forget = events(Event.from_rid(EventType.FORGET, rid), Event.from_rid(EventType.FORGET, owner.rid))
        with capture_logs() as logged:
            await post(url_of(node) + p.BROADCAST, forget)
            await until(lambda: f"{owner.rid} still has it" in Refusals(logged))
            await node.processor.idle()
        assert rid in node.cache
        assert owner.rid in node.cache
        owner.cache.delete(rid)
        await post(url_of(node) + p.BROADCAST, forget)
        await until(lambda: rid not in node.cache)


async def test_a_name_is_bound_to_a_node_while_that_node_is_alive(tmp_path: Path) -> None:
    first, second = UUID_NODE, UUID_NODE.replace("7a3c", "8b4d")
    async with run_node(tmp_path) as node:
        url = url_of(node) + p.BROADCAST
        await post(url, events(new(personality("a", first))))
        with capture_logs() as logged:
            await post(url, events(new(personality("a", second, "2.0"))))
            assert "the name belongs to" in Refusals(logged)
        assert node.policy.release_name("a")
        await post(url, events(new(personality("a", second, "2.0"))))
        assert f"{PERSONALITY_TYPE}:a/2.0" in node.cache
    async with run_node(tmp_path) as node:
        # after a restart nobody has been heard, and the owner has no address
        with capture_logs() as logged:
            await post(url_of(node) + p.BROADCAST, events(new(personality("a", first, "3.0"))))
            await until(lambda: f"{PERSONALITY_TYPE}:a/3.0" in node.cache)
            assert "koi_name_rebound" in [line["event"] for line in logged]


async def test_the_name_of_an_agent_of_this_node_is_not_released(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        rid = await publish(node, "own")
        assert not node.policy.release_name("own")
        with capture_logs() as logged:
            await post(url_of(node) + p.BROADCAST, events(new(personality("own", UUID_NODE, "9.9"))))
            assert f"the name belongs to {node.rid}" in Refusals(logged)
        assert node.cache.list_rids([PERSONALITY_TYPE]) == [rid]


async def test_an_unsigned_message_does_not_move_a_node_that_has_a_key(tmp_path: Path) -> None:
    async with run_joined(tmp_path) as (node, owner):
        moved = NodeProfile(NodeType.FULL, DEAD, public_key=owner.state.identity.key.public_key)
        body = events(Event.from_bundle(EventType.NEW, Bundle.generate(owner.rid, moved.render())))
        with capture_logs() as logged:
            await post(url_of(node) + p.BROADCAST, body)
            await until(lambda: "would change a node that has a key" in Refusals(logged))
        profile = node.graph.find_node(owner.rid)
        assert profile is not None
        assert profile.base_url == url_of(owner)


# Trust


def test_trust_is_open_on_loopback_and_known_elsewhere() -> None:
    assert [
        default_trust(url) for url in (None, "http://127.0.0.1:1", "http://localhost", "http://[::1]")
    ] == ["open"] * 4
    assert default_trust("http://192.0.2.1/koi-net") == "known"
    assert default_trust("https://example.org/koi-net") == "known"


async def test_the_policy_signed_takes_no_unsigned_request(tmp_path: Path) -> None:
    async with run_node(tmp_path, trust="signed") as node:
        status, reply = await post(url_of(node) + p.RIDS, {"rid_types": []})
        assert status == 403
        assert "signed requests only" in reply["detail"]
        signer = await introduced(node)
        assert (await signer.ask(node, p.RIDS, p.FetchRids()))[0] == 200


async def test_the_policy_known_takes_requests_of_nodes_that_it_knows(tmp_path: Path) -> None:
    friend, stranger = Signer("friend"), Signer("stranger")
    async with run_node(tmp_path, trust="known", known=["friend"]) as node:
        assert await friend.send(node, friend.introduction) == (200, None)
        assert (await stranger.send(node, stranger.introduction))[1]["error"] == "unknown_node"
        assert (await post(url_of(node) + p.RIDS, {"rid_types": []}))[0] == 403
        await post(url_of(node) + p.BROADCAST, events(new(personality("a", UUID_NODE))))
        await friend.send(node, new(personality("b", friend.rid)))
        assert node.cache.list_rids([PERSONALITY_TYPE]) == [f"{PERSONALITY_TYPE}:b/1.0"]


# Limits and garbage


async def test_long_rids_large_bodies_and_large_batches_are_refused(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        url = url_of(node) + p.BROADCAST
        long = {"rid": f"{PERSONALITY_TYPE}:{'a' * 300}/1.0", "event_type": "NEW"}
        with capture_logs() as logged:
            assert (
                await post(url, {"events": [long, events(new(personality("a", UUID_NODE)))["events"][0]]})
            )[0] == 200
            assert "more than 184 bytes" in Refusals(logged)
        assert node.cache.list_rids([PERSONALITY_TYPE]) == [f"{PERSONALITY_TYPE}:a/1.0"]
        assert (await post(url, b'{"events":[' + b" " * 5_000_000 + b"]}"))[0] == 413
        assert (await post(url, {"events": [long] * 3000}))[0] == 413


garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["payload", "signature", "source_node", "target_node", "events", "rid", "rids", "limit"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)


async def test_garbage_gets_an_error_and_the_node_goes_on(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        bodies: list[Any] = [
            b"",
            b"nonsense",
            b"\xff\xfe",
            b"[" * 5000,
            b'{"events":[{}]}',
            b"null",
            b"1e999",
        ]

        @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(garbage)
        def collect(value: Any) -> None:
            bodies.append(value)

        collect()
        for body in bodies:
            for path in p.PATHS:
                status, _ = await post(url_of(node) + path, body if isinstance(body, bytes) else _dump(body))
                assert status in (200, 400, 422), (path, body)
        await post(url_of(node) + p.BROADCAST, events(new(personality("a", UUID_NODE))))
        assert f"{PERSONALITY_TYPE}:a/1.0" in node.cache


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "replace")


async def test_a_flood_is_answered_with_503_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        node.processor.max_waiting = 150
        bodies = [
            events(*[new(personality(f"agent-{batch}-{i}", UUID_NODE)) for i in range(100)])
            for batch in range(12)
        ]
        replies = await asyncio.gather(*(post(url_of(node) + p.BROADCAST, body) for body in bodies))
        statuses = [status for status, _ in replies]
        assert set(statuses) <= {200, 503}
        for status, body in zip(statuses, bodies, strict=True):
            kept = [event["rid"] in node.cache for event in body["events"]]
            assert all(kept) or status == 503
        node.processor.max_waiting = 0
        assert (await post(url_of(node) + p.BROADCAST, bodies[0]))[0] == 503
        node.processor.max_waiting = 1000
        assert (await post(url_of(node) + p.BROADCAST, bodies[0]))[0] == 200


@pytest.mark.parametrize("kind", ["silent", "garbage", "errors"])
async def test_a_peer_that_does_not_answer_well_holds_up_nobody(tmp_path: Path, kind: str) -> None:
    asked = asyncio.Event()

    async def bad(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        asked.set()
        if kind == "silent":
            await asyncio.Event().wait()
        status = 500 if kind == "errors" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": secrets.token_bytes(50)})

    async with serve_app(bad) as bad_url, run_node(tmp_path) as node:
        node.wire.peers.timeout_s = 0.5
        signer = await introduced(node, "bad", f"{bad_url}/koi-net")
        async with asyncio.timeout(60):
            await asked.wait()
        # an event without contents has to be fetched from it
        await signer.send(node, Event.from_rid(EventType.NEW, f"{PERSONALITY_TYPE}:quiet/1.0"))
        body = events(new(personality("a", UUID_NODE)))
        async with asyncio.timeout(20):
            assert (await post(url_of(node) + p.BROADCAST, body))[0] == 200
        assert f"{PERSONALITY_TYPE}:a/1.0" in node.cache


# Clocks


async def test_a_clock_that_went_back_does_not_lock_an_owner_out(tmp_path: Path) -> None:
    ahead = datetime.now(UTC) + timedelta(days=400)
    async with run_joined(tmp_path) as (node, owner):
        contents = personality("a", owner.rid, mood="from the future")
        future = Bundle.generate(contents["rid"], contents, now=ahead)
        await owner.processor.handle(bundle=future, event_type=EventType.NEW)
        await until(lambda: future.rid in node.cache)
        # the owner's clock is set right, and its cache is lost
        owner.cache.delete(future.rid)
        now = Bundle.generate(contents["rid"], {**contents, "mood": "now"})
        await owner.processor.handle(bundle=now, event_type=EventType.NEW)
        await owner.wire.peers.broadcast_events(node.rid, [Event.from_bundle(EventType.UPDATE, now)])
        await until(lambda: (held := node.cache.read(now.rid)) is not None and held.contents["mood"] == "now")


async def test_an_own_update_is_later_than_the_last_even_if_the_clock_went_back(tmp_path: Path) -> None:
    clock = [datetime(2030, 1, 1, tzinfo=UTC)]
    async with run_node(tmp_path, now=lambda: clock[0]) as node:
        await publish(node, "a", mood="first")
        clock[0] = datetime(2029, 1, 1, tzinfo=UTC)
        rid = await publish(node, "a", mood="second")
        held = node.cache.read(rid)
        assert held is not None
        assert held.contents["mood"] == "second"


async def test_an_external_change_of_the_nodes_own_profile_is_refused(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        before = node.cache.read(node.rid)
        moved = NodeProfile(NodeType.FULL, DEAD, public_key=node.state.identity.key.public_key)
        event = Event.from_bundle(EventType.UPDATE, Bundle.generate(node.rid, moved.render()))
        body = events(event, Event.from_rid(EventType.FORGET, node.rid))
        with capture_logs() as logged:
            assert (await post(url_of(node) + p.BROADCAST, body))[0] == 200
            assert "a node speaks for itself only" in Refusals(logged)
        assert node.cache.read(node.rid) == before
