"""Exchanges 3-3 … 3-5, 3-10 … 3-12 and 3-15 of seed 003: agents and a coordinator, over real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router

from koi.network import until
from retinue.core.errors import InvalidSettingError
from retinue_koi.codec.bundles import Bundle, EventType, has_hash
from retinue_koi.codec.envelopes import NodeKey
from retinue_koi.codec.personality import AgentPersonality
from retinue_koi.codec.profiles import EdgeProfile, EdgeStatus, EdgeType, NodeProfile, NodeType
from retinue_koi.codec.rids import PERSONALITY_TYPE, edge_rids, node_rid
from retinue_koi.knowledge import STOP_CHAIN, HandlerType, KnowledgeSource
from retinue_koi.programs.nodes import CoordinatorAdapterNode, KoiAgentNode
from tests.mcp.clients import connect, texts
from tests.requirements import requirement
from tests.seeds.koi_nodes import Later, Net, contact, read
from tests.seeds.koi_nodes import net as net
from tests.serving import serve_app
from tests.system import Wire


def count_letters(word: str) -> int:
    return len(word)


def personality(name: str = "a", version: str = "1.0", **more: Any) -> dict[str, Any]:
    """The contents of a bundle, as an agent of koi-net 1.0.0b12 writes them."""
    return {
        "rid": f"orn:agent.personality:{name}/{version}",
        "node_rid": f"orn:koi-net.node:{name}+6f1e8d0a-0000-4000-8000-000000000000",
        "base_url": None,
        "mcp_url": "http://127.0.0.1:9",
        "traits": [
            {"name": "say", "description": "Says", "type": "str", "value": "hi", "is_callable": True},
        ],
        **more,
    }


def event(contents: dict[str, Any], kind: EventType = EventType.NEW) -> dict[str, Any]:
    bundle = Bundle.generate(contents["rid"], contents)
    return {
        "rid": bundle.rid,
        "event_type": kind.value,
        "manifest": {
            "rid": bundle.rid,
            "timestamp": bundle.manifest.timestamp,
            "sha256_hash": bundle.manifest.sha256_hash,
        },
        "contents": contents,
    }


class FakeCoordinator:
    """Keeps what is sent to it; answers with ``status``."""

    def __init__(self, status: int = 200) -> None:
        self.bodies: list[Any] = []
        self.status = status
        self.on_body: Callable[[], None] = lambda: None
        self.app = Router(routes=[Route("/koi-net/{path:path}", self.answer, methods=["POST"])])

    async def answer(self, request: Request) -> JSONResponse:
        body = await request.json()
        if request.url.path.endswith("/events/broadcast"):
            self.bodies.append(body)
            self.on_body()
        return JSONResponse(None, self.status)

    @property
    def personalities(self) -> list[list[Any]]:
        """The events of each body that holds one of a personality."""
        bodies = [body.get("events") or body["payload"]["events"] for body in self.bodies]
        return [events for events in bodies if any("agent.personality" in one["rid"] for one in events)]


@requirement("K-06")
@requirement("K-07")
@requirement("K-08")
@requirement("K-09")
async def test_an_agent_tells_its_first_contact_only_its_personality(net: Net, wire: Wire) -> None:
    fake = FakeCoordinator()
    url = await net.stack.enter_async_context(serve_app(fake.app))
    rid = "orn:agent.personality:helpful-agent/1.0"
    cached: list[bool] = []
    fake.on_body = lambda: cached.append(any((net.folder / "helpful-agent" / "cache").rglob("*")))
    agent = await net.agent(first_contact=f"{url}/koi-net")
    await until(lambda: bool(fake.personalities))
    [[told]] = fake.personalities
    assert set(told) == {"rid", "event_type", "manifest", "contents"}
    assert (told["rid"], told["event_type"]) == (rid, "NEW")
    assert set(told["manifest"]) == {"rid", "timestamp", "sha256_hash"}
    assert has_hash(told["contents"], told["manifest"]["sha256_hash"])
    assert told["contents"] == agent.profile.model_dump()
    assert all(cached)
    assert agent.node.cache.exists(rid)
    profile = agent.node.state.identity.profile
    assert "orn:agent.personality" in profile.event
    assert "orn:agent.personality" in profile.state
    served = agent.profile.mcp_url
    assert [one["name"] for one in read(await wire.get(f"{served}/tools/list"))["tools"]] == ["calculate"]


@requirement("K-34")
async def test_an_agent_serves_while_its_coordinator_is_away_and_joins_when_it_answers(
    net: Net, wire: Wire
) -> None:
    later = Later()
    fake = FakeCoordinator(status=503)
    later.app = fake.app
    url = await net.stack.enter_async_context(serve_app(later))
    agent = await net.agent(first_contact=f"{url}/koi-net")
    assert read(await wire.post(f"{agent.profile.mcp_url}/tools/call/calculate", {})) == {"result": None}
    before = len(fake.personalities)
    assert before >= 1
    fake.status = 200
    await until(lambda: len(fake.personalities) > before)


@requirement("K-12")
@requirement("K-13")
@requirement("K-14")
@requirement("K-15")
@requirement("K-16")
@requirement("K-32")
@requirement("K-35")
async def test_a_personality_is_listed_and_fetched_as_soon_as_its_broadcast_returns(
    net: Net, wire: Wire
) -> None:
    coordinator = await net.coordinator()
    stages: list[tuple[str, str | None]] = []
    for stage in HandlerType:

        @coordinator.node.processor.register_handler(stage, [AgentPersonality])
        def note(_: Any, kobj: Any, stage: HandlerType = stage) -> None:
            kind = kobj.normalized_event_type
            stages.append((stage.name, None if kind is None else kind.value))

    contents = personality()
    told = await wire.post(f"{contact(coordinator)}/events/broadcast", {"events": [event(contents)]})
    assert told.status == 200
    listed = read(await wire.get(f"{coordinator.url}/resources/list"))
    assert [one["id"] for one in listed["resources"]] == ["agent:a"]
    tools = read(await wire.get(f"{coordinator.url}/tools/list"))
    assert [one["name"] for one in tools["tools"]] == ["a.say"]
    fetched = read(await wire.post(f"{contact(coordinator)}/bundles/fetch", {"rids": [contents["rid"]]}))
    assert [bundle["contents"] for bundle in fetched["bundles"]] == [contents]
    assert [stage for stage, _ in stages] == ["RID", "Manifest", "Bundle", "Network", "Final"]
    assert stages[-1][1] == "NEW"
    stages.clear()
    again = event(personality())
    assert (await wire.post(f"{contact(coordinator)}/events/broadcast", {"events": [again]})).status == 200
    assert not {"Bundle", "Network", "Final"} & {stage for stage, _ in stages}
    stages.clear()
    changed = event(personality(traits=[]))
    assert (await wire.post(f"{contact(coordinator)}/events/broadcast", {"events": [changed]})).status == 200
    assert stages[-1] == ("Final", "UPDATE")
    assert read(await wire.get(f"{coordinator.url}/tools/list")) == {"tools": []}


async def join_unsigned(wire: Wire, coordinator: CoordinatorAdapterNode) -> str:
    """The RID of a node with a key that subscribes and polls, but never signs; nothing waits for it."""
    key = NodeKey.generate().public_key
    poller = node_rid("poller", key)
    profile = NodeProfile(NodeType.PARTIAL, public_key=key)
    wanted = (PERSONALITY_TYPE,)
    edge = EdgeProfile(coordinator.node.rid, poller, EdgeType.POLL, EdgeStatus.PROPOSED, wanted)
    edge_rid = edge_rids(edge.source, edge.target)[1]
    told = [event({"rid": rid, **one.render()}) for rid, one in ((poller, profile), (edge_rid, edge))]
    reply = await wire.post(f"{contact(coordinator)}/events/broadcast", {"events": told})
    assert reply.status == 200
    await until(lambda: coordinator.node.graph.get_neighbors("out", EdgeStatus.APPROVED) == [poller])
    await coordinator.node.processor.idle()
    await wire.post(f"{contact(coordinator)}/events/poll", {"rid": poller, "limit": 0})
    return poller


@requirement("K-13")
@requirement("K-44")
async def test_the_five_endpoints_answer_below_koi_net_and_at_the_root(net: Net, wire: Wire) -> None:
    """Exchange 3-10, in the unsigned dialect: exact keys, polled queues, and what is not found."""
    coordinator = await net.coordinator()
    poller = await join_unsigned(wire, coordinator)

    bases = (contact(coordinator), coordinator.url)
    names = ["a", "b", "c", "d"]
    for number, name in enumerate(names):
        told = await wire.post(
            f"{bases[number % 2]}/events/broadcast", {"events": [event(personality(name))]}
        )
        assert (told.status, json.loads(told.body)) == (200, None)
    await until(lambda: coordinator.node.wire.outbox.count(poller) == len(names))

    rids = [personality(name)["rid"] for name in names]
    for base, expected in ((bases[0], rids[:3]), (bases[1], rids[3:]), (bases[0], [])):
        polled = read(await wire.post(f"{base}/events/poll", {"rid": poller, "limit": 3}))
        assert set(polled) == {"events"}
        assert [one["rid"] for one in polled["events"]] == expected
        assert all(set(one) == {"rid", "event_type", "manifest", "contents"} for one in polled["events"])

    nobody = f"{PERSONALITY_TYPE}:nobody/1.0"
    for base in bases:
        found = read(await wire.post(f"{base}/rids/fetch", {"rid_types": [PERSONALITY_TYPE]}))
        assert found == {"rids": rids}
        found = read(await wire.post(f"{base}/manifests/fetch", {"rids": [rids[0], nobody]}))
        assert (set(found), found["not_found"]) == ({"manifests", "not_found"}, [nobody])
        assert [set(one) for one in found["manifests"]] == [{"rid", "timestamp", "sha256_hash"}]
        found = read(await wire.post(f"{base}/bundles/fetch", {"rids": [rids[0], nobody]}))
        assert (set(found), found["not_found"]) == ({"bundles", "not_found", "deferred"}, [nobody])
        assert [set(one) for one in found["bundles"]] == [{"manifest", "contents"}]
        assert found["bundles"][0]["contents"] == personality("a")


@requirement("K-18")
@pytest.mark.parametrize("traits", ["none", [{"description": "no name"}], 7])
async def test_an_invalid_profile_is_neither_listed_nor_kept_and_the_next_one_is(
    net: Net, wire: Wire, traits: Any
) -> None:
    coordinator = await net.coordinator()
    bad = event(personality("bad", traits=traits))
    good = event(personality("good"))
    told = await wire.post(f"{contact(coordinator)}/events/broadcast", {"events": [bad, good]})
    assert told.status == 200
    listed = read(await wire.get(f"{coordinator.url}/resources/list"))["resources"]
    assert [one["id"] for one in listed] == ["agent:good"]
    assert not coordinator.node.cache.exists(bad["rid"])
    assert coordinator.node.cache.exists(good["rid"])


@requirement("K-14")
@requirement("K-40")
async def test_what_a_later_handler_stops_is_not_listed(net: Net, wire: Wire) -> None:

    coordinator = await net.coordinator()

    @coordinator.node.processor.register_handler(HandlerType.Bundle, [AgentPersonality])
    def stop(_: Any, kobj: Any) -> Any:
        return STOP_CHAIN if "spam" in kobj.rid_text else None

    for name in ("spam", "ham"):
        sent = {"events": [event(personality(name))]}
        assert (await wire.post(f"{contact(coordinator)}/events/broadcast", sent)).status == 200
    listed = read(await wire.get(f"{coordinator.url}/resources/list"))["resources"]
    assert [one["id"] for one in listed] == ["agent:ham"]


@requirement("K-10")
@requirement("K-18")
async def test_updated_traits_are_told_with_a_new_hash_and_a_later_time(net: Net, wire: Wire) -> None:
    coordinator = await net.coordinator()
    agent = await net.agent(first_contact=contact(coordinator))
    await until(lambda: "helpful-agent" in coordinator.mcp_adapter.agents)
    first = agent.node.cache.read(agent.personality_rid)
    await until(lambda: agent.node.rid in coordinator.node.graph.get_neighbors())
    await agent.update_traits(
        {"mood": "curious", "new": {"description": "Adds", "is_callable": True, "value": lambda a, b: a + b}}
    )
    second = agent.node.cache.read(agent.personality_rid)
    assert first is not None
    assert second is not None
    assert second.manifest.sha256_hash != first.manifest.sha256_hash
    assert second.manifest.instant_us > first.manifest.instant_us

    def mood() -> Any:
        trait = coordinator.mcp_adapter.agents["helpful-agent"].get_trait("mood")
        return None if trait is None else trait.value

    await until(lambda: mood() == "curious")
    tools = read(await wire.get(f"{coordinator.url}/tools/list"))["tools"]
    assert [tool["name"] for tool in tools] == ["helpful-agent.calculate", "helpful-agent.new"]
    assert read(await wire.post(tools[1]["url"], {"a": 1, "b": 2})) == {"result": 3}


@requirement("K-11")
@requirement("K-17")
async def test_nobody_else_changes_an_agents_own_personality(net: Net, wire: Wire) -> None:
    agent = await net.agent()
    before = agent.node.cache.read(agent.personality_rid)
    stolen = {**agent.profile.model_dump(), "traits": []}
    told = await wire.post(
        f"{contact(agent)}/events/broadcast", {"events": [event(stolen, EventType.UPDATE)]}
    )
    assert told.status == 200
    forget = {"rid": str(agent.personality_rid), "event_type": "FORGET"}
    assert (await wire.post(f"{contact(agent)}/events/broadcast", {"events": [forget]})).status == 200
    assert agent.node.cache.read(agent.personality_rid) == before
    assert agent.profile.get_trait("mood") is not None
    inside = Bundle.generate(agent.personality_rid, stolen)
    await agent.node.processor.handle(
        bundle=inside, event_type=EventType.UPDATE, source=KnowledgeSource.Internal
    )
    after = agent.node.cache.read(agent.personality_rid)
    assert after is not None
    assert after.contents["traits"] == []


@requirement("K-19")
@requirement("K-24")
@requirement("K-41")
async def test_each_arrow_of_the_flowchart_is_walked(net: Net, wire: Wire) -> None:
    coordinator = await net.coordinator()
    first = await net.agent("helpful-agent", contact(coordinator))
    await until(lambda: "helpful-agent" in coordinator.mcp_adapter.agents)
    second = await net.agent(
        "creative-agent", contact(coordinator), traits={"rhyme": {"description": "", "value": count_letters}}
    )
    # agent -> coordinator
    await until(lambda: set(coordinator.mcp_adapter.agents) == {"helpful-agent", "creative-agent"})
    # coordinator -> agent: the late joiner gets what was known, the early one what came
    await until(lambda: second.node.cache.exists(first.personality_rid))
    await until(lambda: first.node.cache.exists(second.personality_rid))
    # client -> registry, client -> agent
    tools = read(await wire.get(f"{coordinator.url}/tools/list"))["tools"]
    assert [tool["name"] for tool in tools] == ["creative-agent.rhyme", "helpful-agent.calculate"]
    async with connect(f"{coordinator.url}/mcp") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"creative-agent__rhyme", "helpful-agent__calculate"}
    async with connect(f"{second.profile.mcp_url}/mcp") as client:
        called = await client.call_tool("rhyme", {"word": "four"})
        assert texts(called) == ["4"]


@requirement("K-41")
async def test_two_agents_without_a_coordinator_exchange_their_personalities(net: Net) -> None:
    first = await net.agent("helpful-agent")
    second = await net.agent("creative-agent", contact(first))
    await until(lambda: first.node.cache.exists(second.personality_rid))
    await until(lambda: second.node.cache.exists(first.personality_rid))


@requirement("K-36")
@requirement("K-39")
async def test_a_restarted_coordinator_lists_its_agents_before_any_speaks(net: Net, wire: Wire) -> None:
    async with net.coordinating() as coordinator:
        events = [event(personality(name)) for name in ("a", "b")]
        told = await wire.post(f"{contact(coordinator)}/events/broadcast", {"events": events})
        assert told.status == 200
    async with net.coordinating() as coordinator:
        listed = read(await wire.get(f"{coordinator.url}/resources/list"))["resources"]
        assert [one["id"] for one in listed] == ["agent:a", "agent:b"]
        async with connect(f"{coordinator.url}/mcp") as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"a__say", "b__say"}


@requirement("K-38")
@requirement("K-43")
async def test_forget_removes_an_agent_and_falls_back_to_its_previous_version(net: Net, wire: Wire) -> None:
    coordinator = await net.coordinator()
    old = await net.agent("helpful-agent", contact(coordinator))
    await until(lambda: bool(coordinator.mcp_adapter.list_versions("helpful-agent")))
    newer = {**old.profile.model_dump(), "rid": "orn:agent.personality:helpful-agent/2.0"}
    rid = AgentPersonality("helpful-agent", "2.0")
    await until(lambda: old.node.rid in coordinator.node.graph.get_neighbors())
    await old.node.processor.handle(bundle=Bundle.generate(rid, newer), event_type=EventType.NEW)

    def version() -> str | None:
        found = coordinator.mcp_adapter.get_agent("helpful-agent")
        return None if found is None else found.rid.version

    await until(lambda: version() == "2.0")
    await old.node.processor.handle(rid=rid, event_type=EventType.FORGET)
    await until(lambda: version() == "1.0")
    assert not coordinator.node.cache.exists(rid)
    await old.forget()
    await until(lambda: version() is None)
    assert read(await wire.get(f"{coordinator.url}/resources/list")) == {"resources": []}


async def test_the_apps_lifespan_starts_the_node(tmp_path: Path) -> None:
    coordinator = CoordinatorAdapterNode("c", "http://127.0.0.1:9/koi-net", 9, folder=tmp_path / "c")
    async with serve_app(coordinator.registry_server.app):
        assert coordinator.node.cache.exists(coordinator.node.rid)


def test_the_names_of_the_seed_are_under_its_import_paths() -> None:
    from importlib import import_module

    for module, name in (
        ("personality.rid", "AgentPersonality"),
        ("personality.models.trait", "PersonalityTrait"),
        ("personality.models.profile", "PersonalityProfile"),
        ("koi.node.agent", "KoiAgentNode"),
        ("koi.node.coordinator", "CoordinatorAdapterNode"),
        ("koi.handlers.personality_handlers", "register_personality_handlers"),
        ("server.adapter.mcp_adapter", "MCPAdapter"),
        ("server.registry.registry_server", "AgentRegistryServer"),
        ("server.agent.agent_server", "AgentPersonalityServer"),
        ("config", "load_config"),
        ("main", "main"),
        ("utils.async.retry", "with_retry"),
    ):
        assert callable(getattr(import_module(f"koi_mcp.{module}"), name))


@pytest.mark.parametrize(("name", "version"), [("a/b", "1.0"), ("a", ""), ("a", "1/0")])
def test_an_agent_that_no_rid_can_name_is_refused_with_the_remedy(
    tmp_path: Path, name: str, version: str
) -> None:
    with pytest.raises(InvalidSettingError, match="has a slash"):
        KoiAgentNode(name, version, {}, "http://127.0.0.1:1/koi-net", 1, folder=tmp_path)
