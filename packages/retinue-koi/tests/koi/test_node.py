"""A node of ours with others: handshake, edges, delivery, the five endpoints, restarts."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koi.network import (
    Signer,
    events,
    is_joined,
    make_node,
    new,
    personality,
    post,
    publish,
    run_node,
    until,
    url_of,
)
from retinue.core.errors import InvalidSettingError, StateError
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import Event, EventType, has_hash
from retinue_koi.codec.profiles import EdgeStatus
from retinue_koi.codec.rids import NODE_TYPE, PERSONALITY_TYPE
from retinue_koi.knowledge import STOP_CHAIN, HandlerType, KnowledgeObject, KnowledgeSource, handler
from retinue_koi.node import KoiNode
from retinue_koi.peers import FirstContact
from retinue_koi.pipeline import Processor
from tests.requirements import requirement
from tests.support.small_disk import small_file_system

UUID_NODE = f"{NODE_TYPE}:helpful-agent+6f2c8a4e-7f6e-4a52-9a55-1f0a5c1c1b11"
RID = f"{PERSONALITY_TYPE}:helpful-agent/1.0"


@requirement("K-41")
@pytest.mark.parametrize("dialect", ["url only", "with RID"])
async def test_two_nodes_join_and_exchange_what_each_has(tmp_path: Path, dialect: str) -> None:
    async with run_node(tmp_path) as coordinator:
        early = await publish(coordinator, "early")
        contact = FirstContact(url_of(coordinator), coordinator.rid if dialect == "with RID" else None)
        async with run_node(tmp_path, "agent", first_contact=contact) as agent:
            own = await publish(agent, "helpful-agent", mood="glad é", level=1.0)
            await until(lambda: is_joined(agent, coordinator) and own in coordinator.cache)
            await until(lambda: early in agent.cache)
            await publish(agent, "helpful-agent", EventType.UPDATE, mood="busy")
            await until(lambda: _read(coordinator, own)["mood"] == "busy")
            await agent.processor.handle(rid=own, event_type=EventType.FORGET)
            await until(lambda: own not in coordinator.cache)
            assert own not in agent.cache


def _read(node: KoiNode, rid: str) -> dict[str, Any]:
    bundle = node.cache.read(rid)
    assert bundle is not None
    return bundle.contents


@requirement("K-19")
async def test_a_coordinator_passes_a_personality_on_to_its_other_subscribers_only(tmp_path: Path) -> None:
    async with (
        run_node(tmp_path) as coordinator,
        run_node(tmp_path, "one", first_contact=url_of(coordinator)) as one,
        run_node(tmp_path, "two", first_contact=url_of(coordinator)) as two,
    ):
        await until(lambda: is_joined(one, coordinator) and is_joined(two, coordinator))
        rid = await publish(one, "one-agent")
        await until(lambda: rid in two.cache)
        await until(lambda: not coordinator.cache.queues and not one.cache.queues)
        assert _read(two, rid)["node_rid"] == one.rid
        await one.processor.handle(rid=rid, event_type=EventType.FORGET)
        await until(lambda: rid not in two.cache)


@requirement("K-44")
async def test_a_partial_node_polls_and_the_rest_stays_for_the_next_poll(tmp_path: Path) -> None:
    async with run_node(tmp_path) as coordinator:
        options: dict[str, Any] = {"event": [PERSONALITY_TYPE], "interest": [PERSONALITY_TYPE]}
        contact = FirstContact(url_of(coordinator), coordinator.rid)
        folder = tmp_path / "poller"
        node = make_node("poller", folder=folder, first_contact=contact, poll_interval_s=0.1, **options)
        await node.start()
        await until(lambda: coordinator.graph.get_neighbors("out", EdgeStatus.APPROVED) == [node.rid])
        rid = await publish(coordinator, "helpful-agent")
        await until(lambda: rid in node.cache)

        @node.processor.register_handler(HandlerType.Network, [PERSONALITY_TYPE])
        def tell_all(processor: Processor, kobj: KnowledgeObject) -> None:
            kobj.network_targets |= set(processor.network.graph.get_neighbors())

        own = await publish(node, "poller-agent")
        await until(lambda: own in coordinator.cache and not coordinator.cache.queues)
        await node.stop()
        names = [await publish(coordinator, f"agent-{number}") for number in range(3)]
        await until(lambda: coordinator.wire.outbox.count(node.rid) == 3)
        poller = Signer("poller")
        poller.key, poller.rid = node.state.identity.key, node.rid
        for expected in (names[:2], names[2:], []):
            status, reply = await poller.ask(coordinator, p.POLL, p.PollEvents(2, node.rid))
            assert status == 200
            assert [event["rid"] for event in reply["payload"]["events"]] == expected


@requirement("K-44")
async def test_what_could_not_be_sent_is_sent_after_a_restart_of_both(tmp_path: Path) -> None:
    async with run_node(tmp_path) as coordinator:
        port = int(url_of(coordinator).split(":")[2].split("/")[0])
        async with run_node(tmp_path, "agent", first_contact=url_of(coordinator)) as agent:
            await until(lambda: is_joined(agent, coordinator))
            rid = agent.rid
    agent = make_node(
        "agent", base_url="http://127.0.0.1:9/koi-net", folder=tmp_path / "agent", event=[PERSONALITY_TYPE]
    )
    await agent.start()
    assert agent.rid == rid
    own = await publish(agent, "late")
    assert own in next(iter(agent.cache.queues.values()))
    await agent.stop()
    async with run_node(tmp_path, port=port) as coordinator:
        assert own not in coordinator.cache
        async with run_node(tmp_path, "agent") as agent:
            await until(lambda: own in coordinator.cache)
            await until(lambda: not agent.cache.queues)


@requirement("K-13")
@requirement("K-15")
@pytest.mark.parametrize("prefix", ["/koi-net", ""])
async def test_a_broadcast_personality_is_fetched_at_once_with_the_keys_of_the_seed(
    tmp_path: Path, prefix: str
) -> None:
    async with run_node(tmp_path) as node:
        url = url_of(node).removesuffix("/koi-net") + prefix
        contents = personality("helpful-agent", UUID_NODE)
        body = events(new(contents))
        assert await post(url + p.BROADCAST, body) == (200, None)
        manifest = body["events"][0]["manifest"]
        bundle = {"manifest": manifest, "contents": contents}
        missing = f"{PERSONALITY_TYPE}:nobody/1.0"
        assert await post(url + p.BUNDLES, {"rids": [RID, missing]}) == (
            200,
            {"bundles": [bundle], "not_found": [missing], "deferred": []},
        )
        assert await post(url + p.MANIFESTS, {"rids": [RID, missing], "rid_types": []}) == (
            200,
            {"manifests": [manifest], "not_found": [missing]},
        )
        assert await post(url + p.RIDS, {"rid_types": [PERSONALITY_TYPE]}) == (200, {"rids": [RID]})
        assert (await post(url + p.RIDS, {"rid_types": []}))[1] == {"rids": [node.rid, RID]}


@requirement("K-05")
async def test_handlers_run_once_each_in_the_order_of_the_stages(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        trace: list[tuple[str, str | None]] = []
        for stage in HandlerType:

            def record(processor: Processor, kobj: KnowledgeObject, stage: HandlerType = stage) -> None:
                event_type = kobj.normalized_event_type
                trace.append((stage.name, event_type and event_type.value))

            node.processor.add_handler(handler(stage, [PERSONALITY_TYPE])(record))
        contents = personality("helpful-agent", UUID_NODE)
        await post(url_of(node) + p.BROADCAST, events(new(contents)))
        later = [("Manifest", "NEW"), ("Bundle", "NEW"), ("Network", "NEW"), ("Final", "NEW")]
        assert trace == [("RID", None), *later]
        trace.clear()
        await post(url_of(node) + p.BROADCAST, events(new(contents)))
        assert trace == [("RID", None)]
        trace.clear()
        await post(url_of(node) + p.BROADCAST, events(new({**contents, "mood": "busy"})))
        assert [event_type for _, event_type in trace] == [None, *["UPDATE"] * 4]


@requirement("K-31")
async def test_a_handler_that_raises_or_stops_the_chain_ends_its_object_only(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:

        @node.processor.register_handler(HandlerType.Bundle, [PERSONALITY_TYPE])
        async def choose(processor: Processor, kobj: KnowledgeObject) -> Any:
            await asyncio.sleep(0)
            if "raises" in kobj.rid_text:
                raise RuntimeError("on purpose")
            return STOP_CHAIN if "stops" in kobj.rid_text else kobj

        listed = [new(personality(name, UUID_NODE)) for name in ("raises", "stops", "passes")]
        assert (await post(url_of(node) + p.BROADCAST, events(*listed)))[0] == 200
        assert node.cache.list_rids([PERSONALITY_TYPE]) == [f"{PERSONALITY_TYPE}:passes/1.0"]


@requirement("K-42")
async def test_an_event_without_contents_is_fetched_from_its_source_or_another_provider(
    tmp_path: Path,
) -> None:
    async with (
        run_node(tmp_path) as coordinator,
        run_node(tmp_path, "agent", first_contact=url_of(coordinator)) as agent,
    ):
        await until(lambda: is_joined(agent, coordinator))
        contents = personality("quiet", agent.rid)
        bundle = agent.state.generate_bundle(contents["rid"], contents)
        agent.cache.write(bundle)
        event = Event(bundle.rid, EventType.NEW, bundle.manifest)
        await agent.wire.peers.broadcast_events(coordinator.rid, [event])
        await until(lambda: bundle.rid in coordinator.cache)
        # an unsigned event has no source: another provider is asked
        second = personality("quiet", agent.rid, "2.0")
        held = agent.state.generate_bundle(second["rid"], second)
        agent.cache.write(held)
        body = events(Event(held.rid, EventType.NEW))
        assert (await post(url_of(coordinator) + p.BROADCAST, body))[0] == 200
        await until(lambda: held.rid in coordinator.cache)


async def test_one_node_serves_both_dialects_each_with_its_hash(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        contents = personality("helpful-agent", UUID_NODE, mood="é")
        await post(url_of(node) + p.BROADCAST, events(new(contents)))
        signer = Signer("stock")
        assert await signer.send(node, signer.introduction) == (200, None)
        status, reply = await signer.ask(node, p.MANIFESTS, p.FetchManifests((), (RID,)))
        assert status == 200
        (signed,) = reply["payload"]["manifests"]
        _, unsigned = await post(url_of(node) + p.MANIFESTS, {"rids": [RID]})
        assert signed["sha256_hash"] != unsigned["manifests"][0]["sha256_hash"]
        assert has_hash(contents, signed["sha256_hash"])
        assert list(reply) == ["payload", "source_node", "target_node", "signature"]


@requirement("K-07")
async def test_identity_cache_and_names_survive_a_restart(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        await post(url_of(node) + p.BROADCAST, events(new(personality("helpful-agent", UUID_NODE))))
        rid = node.rid
    key = tmp_path / "coordinator" / "priv_key.pem"
    assert key.stat().st_mode & 0o777 == 0o600
    async with run_node(tmp_path) as node:
        assert node.rid == rid
        assert node.cache.list_rids([PERSONALITY_TYPE]) == [RID]
        assert node.policy.rules.names == {"helpful-agent": UUID_NODE}


@requirement("K-43")
async def test_forget_deletes_the_entry_and_an_older_state_does_not_come_back(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:
        event = new(personality("helpful-agent", UUID_NODE))
        await post(url_of(node) + p.BROADCAST, events(event))
        forget = events(Event.from_rid(EventType.FORGET, RID))
        assert (await post(url_of(node) + p.BROADCAST, forget))[0] == 200
        await until(lambda: RID not in node.cache)
        await post(url_of(node) + p.BROADCAST, events(event))
        assert RID not in node.cache
        await post(url_of(node) + p.BROADCAST, events(new(personality("helpful-agent", UUID_NODE))))
        assert RID in node.cache


async def test_an_internal_object_passes_where_an_external_one_is_stopped(tmp_path: Path) -> None:
    async with run_node(tmp_path) as node:

        @node.processor.register_handler(HandlerType.RID, [PERSONALITY_TYPE], source=KnowledgeSource.External)
        def stop(processor: Processor, kobj: KnowledgeObject) -> Any:
            return STOP_CHAIN

        rid = await publish(node, "own")
        assert rid in node.cache
        await post(url_of(node) + p.BROADCAST, events(new(personality("other", UUID_NODE))))
        assert node.cache.list_rids([PERSONALITY_TYPE]) == [rid]


@pytest.mark.parametrize("name", ["", "..", "../elsewhere", "a/b", "a:b", "a+b", "a\nb"])
def test_a_name_that_no_rid_or_folder_can_have_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSettingError, match="is no name of a node"):
        make_node(name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["foo", "ftp://127.0.0.1/koi-net", "http://", "http://[::1", ""])
def test_a_first_contact_that_is_no_url_is_refused_at_once(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidSettingError, match="first_contact"):
        make_node("one", folder=tmp_path / "one", first_contact=url)


async def test_a_folder_in_use_leaves_nothing_open_behind(tmp_path: Path) -> None:
    first, second = (make_node("one", folder=tmp_path / "one") for _ in range(2))
    await first.start()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(StateError, match="in use by another node"):
            await second.start()
        del second
        gc.collect()
    await first.stop()
    assert not [str(one.message) for one in caught if issubclass(one.category, ResourceWarning)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; only root can mount one, and `test_cache` limits the file size for others."""
    folder = tmp_path / "small"
    folder.mkdir()
    with small_file_system(folder, "1m") as is_mounted:
        if not is_mounted:
            pytest.skip("only root can mount a tmpfs; tests/koi/test_cache.py has the case with RLIMIT_FSIZE")
        yield folder


async def test_no_space_left_is_507_and_what_was_acknowledged_is_there_after_a_restart(
    small_disk: Path,
) -> None:
    batches = [
        [new(personality(f"agent-{batch}-{i}", UUID_NODE, notes="x" * 1_000)) for i in range(20)]
        for batch in range(100)
    ]
    acknowledged: list[str] = []
    with capture_logs() as logs:
        async with run_node(small_disk, journal_bytes=100_000) as node:
            statuses = set()
            for batch in batches:
                status, _ = await post(url_of(node) + p.BROADCAST, events(*batch))
                statuses.add(status)
                if status == 200:
                    acknowledged += [event.rid for event in batch]
            assert statuses == {200, 507}
            assert set(acknowledged) <= set(node.cache.list_rids([PERSONALITY_TYPE]))
            # it goes on answering
            assert (await post(url_of(node) + p.RIDS, {}))[0] == 200
    assert any(line["event"] == "koi_object_not_kept" for line in logs)
    assert len(acknowledged) > 100
    remount = await asyncio.create_subprocess_exec("mount", "-o", "remount,size=20m", str(small_disk))
    assert await remount.wait() == 0
    async with run_node(small_disk, journal_bytes=100_000) as node:
        for rid in acknowledged:
            assert node.cache.read(rid) is not None, rid
        assert (await post(url_of(node) + p.BROADCAST, events(*batches[-1])))[0] == 200
