"""Hubs and agents of a mesh on KOI networks: what is listed where, how it is called, what never echoes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from koi.network import until
from retinue import Agent, Context
from retinue.cards.pallet_card import encode_card, render_card
from retinue.oci.registry import forget
from retinue.runtime.loading.publishables import PUBLISHED_SCOPES
from retinue.storage.state import State
from retinue_koi.codec.personality import AgentPersonality
from retinue_koi.codec.rids import PERSONALITY_TYPE
from retinue_koi.membership import KoiHub, KoiMember, make_node
from retinue_koi.peers import FirstContact, NodeAddress
from retinue_koi.programs.nodes import CoordinatorAdapterNode
from retinue_koi.table import KoiTable
from tests.mcp.clients import connect, texts
from tests.requirements import requirement
from tests.seeds.koi_nodes import Later, Net, contact, read
from tests.serving import serve_app
from tests.system import Hub, System, Wire, open_system, publish


def make_agent(name: str, skill: str) -> Agent:
    agent = Agent(name, version="1.0.0", description=f"Does {skill}", topics=["words"])

    @agent.skill(skill, expose=True)
    async def run(word: str) -> str:
        """Does something with a word."""
        return f"{skill} {word}"

    return agent


def names(hub: Hub) -> set[str]:
    return {entry.name for entry in hub.mesh.directory.list_entries()}


@requirement("K-12")
@requirement("K-33")
async def test_a_hub_is_a_coordinator_and_its_agents_are_personalities(
    system: System, wire: Wire, tmp_path: Path
) -> None:
    await system.start_agent(make_agent("greeter", "greet"))
    koi = KoiHub()
    hub = await system.start_hub(koi=koi)
    async with AsyncExitStack() as stack:
        net = Net(tmp_path, stack)
        outside = await net.agent("helpful-agent", f"{hub.url}/koi-net", traits={"double": double})
        await until(lambda: "helpful-agent" in names(hub))
        # a personality of the network is an agent of the hub
        called = await wire.call(hub.url, "double", {"x": 4}, authorization=system.token)
        assert called.result == 8
        rest = await wire.post(f"{hub.url}/agents/helpful-agent/tools/call/double", {"x": 5})
        assert read(rest) == {"result": 10}
        async with connect(f"{hub.url}/mcp") as client:
            assert texts(await client.call_tool("helpful-agent__double", {"x": 6})) == ["12"]
        # an agent of the hub is a personality of the network
        rid = AgentPersonality("greeter", "1.0.0")
        await until(lambda: outside.node.cache.exists(rid))
        profile = outside.node.cache.read(rid)
        assert profile is not None
        told = await wire.post(f"{profile.contents['mcp_url']}/tools/call/greet", {"word": "Ada"})
        assert read(told) == {"result": "greet Ada"}
        rows = (
            await wire.call(hub.url, "list_agents", {"detailed": True}, authorization=system.token)
        ).result
        [row] = [one for one in rows["agents"] if one["name"] == "helpful-agent"]
        assert row["source"] == "koi"
        assert row["reference"] == "orn:agent.personality:helpful-agent:1.0"
        assert row["owner"] == outside.node.rid
        await outside.forget()
        await until(lambda: "helpful-agent" not in names(hub))


def double(x: int) -> int:
    """Doubles a number."""
    return 2 * x


@requirement("K-33")
@requirement("K-38")
async def test_an_agent_of_the_mesh_joins_a_coordinator_follows_its_record_and_leaves(
    system: System, wire: Wire, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        net = Net(tmp_path, stack)
        coordinator = await net.coordinator()
        agent = make_agent("greeter", "greet")
        served = await system.start_agent(agent)
        later = Later()
        node_url = await stack.enter_async_context(serve_app(later))
        node = make_node(
            "greeter", node_url, system.state, KoiTable(), contact(coordinator), allow_private=True
        )
        member = KoiMember(agent, served.url, node)
        later.app = Routes(member)
        async with member.running():
            await until(lambda: "greeter" in coordinator.mcp_adapter.agents)
            assert tools(coordinator) == ["greeter.greet"]
            [tool] = read(await wire.get(f"{coordinator.url}/tools/list"))["tools"]
            assert read(await wire.post(tool["url"], "Ada")) == {"result": "greet Ada"}

            @agent.skill("part", expose=True)
            async def part() -> str:
                """Says goodbye."""
                return "bye"

            await until(lambda: tools(coordinator) == ["greeter.greet", "greeter.part"])
        await until(lambda: not coordinator.mcp_adapter.agents)


class Routes:
    """The KOI endpoints of a member as an app."""

    def __init__(self, member: KoiMember) -> None:
        from starlette.routing import Router

        self._app = Router(routes=list(member.routes))

    async def __call__(self, *arguments: Any) -> None:
        await self._app(*arguments)


def tools(coordinator: CoordinatorAdapterNode) -> list[str]:
    return [tool["name"] for tool in coordinator.mcp_adapter.get_all_tools()]


@requirement("K-39")
@requirement("S-15")
async def test_two_hubs_exchange_their_agents_without_echo_and_a_loop_is_cut(
    tmp_path: Path, wire: Wire
) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(open_system(State(tmp_path / "one")))
        two = await stack.enter_async_context(open_system(State(tmp_path / "two")))
        ping, pong = Agent("ping", version="1.0.0"), Agent("pong", version="1.0.0")

        @ping.skill("serve_ball", expose=True)
        async def serve_ball(ctx: Context) -> Any:
            """Plays on to the other hub's agent."""
            return await ctx.call("return_ball")

        @pong.skill("return_ball", expose=True)
        async def return_ball(ctx: Context) -> Any:
            """Plays back."""
            return await ctx.call("serve_ball")

        await one.start_agent(make_agent("left", "go_left"))
        await two.start_agent(make_agent("right", "go_right"))
        first, second = KoiHub(), KoiHub()
        hub_one = await one.start_hub(hub_id="hub-one", koi=first)
        hub_two = await two.start_hub(hub_id="hub-two", koi=second, koi_join=f"{hub_one.url}/koi-net")
        await one.start_agent(ping)
        await two.start_agent(pong)
        await hub_one.mesh.directory.refresh()
        await hub_two.mesh.directory.refresh()
        every = {"left", "right", "ping", "pong"}
        await until(lambda: names(hub_one) == every and names(hub_two) == every)
        over = await wire.call(hub_one.url, "go_right", {"word": "now"}, authorization=one.token)
        assert over.result == "go_right now"
        back = await wire.call(hub_two.url, "go_left", {"word": "now"}, authorization=two.token)
        assert back.result == "go_left now"
        # each personality belongs to the node of the hub that has the agent, and to no other
        for koi, own in ((first, {"left", "ping"}), (second, {"right", "pong"})):
            assert koi.node is not None
            held = {one.profile.rid.name: str(one.profile.node_rid) for one in koi.adapter.list_held()}
            assert held.keys() == every
            assert {name for name, node in held.items() if node == koi.node.rid} == own
        looped = await wire.call(hub_one.url, "serve_ball", {}, authorization=one.token)
        error = looped.json["error"]
        path = " → ".join([*["ping:serve_ball", "pong:return_ball"] * 3, "ping:serve_ball"])
        cycle = "ping → pong → ping"
        told = f"Call chain too deep: hop 6 of at most 5: {path}; the cycle is {cycle}"
        assert (error["code"], error["message"]) == (-33007, told)
        seen = {key: error["data"][key] for key in ("type", "depth", "max_depth", "path", "cycle")}
        assert seen == {
            "type": "recursion_limit",
            "depth": 6,
            "max_depth": 5,
            "path": path,
            "cycle": cycle,
        }
        # both hubs wrote down one chain; its sixth hop was asked of the second hub, and reached no agent
        trace = error["data"]["trace_id"]
        rows = {name: list_calls(hub, trace) for name, hub in (("one", hub_one), ("two", hub_two))}
        assert {row["error"] for listed in rows.values() for row in listed} == {"recursion_limit"}
        too_deep = [(name, row) for name, listed in rows.items() for row in listed if row["depth"] > 5]
        assert [(name, row["depth"], row["caller"], row["skill"]) for name, row in too_deep] == [
            ("two", 6, "pong", "serve_ball")
        ]
        assert too_deep[0][1].get("agent") is None


def list_calls(hub: Hub, trace: str) -> Sequence[Mapping[str, Any]]:
    """The ended calls of a trace that a hub wrote down."""
    audit = hub.audit
    audit.flush()
    return audit.list_calls({"trace_id": trace}, failed=False, before=None, limit=100)


@requirement("K-39")
async def test_a_change_at_one_of_three_hubs_reaches_each_other_hub_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        systems: dict[str, System] = {}
        hubs: dict[str, Hub] = {}
        nodes: dict[str, KoiHub] = {}
        for name in ("one", "two", "three"):
            systems[name] = await stack.enter_async_context(open_system(State(tmp_path / name)))
            nodes[name] = KoiHub()
            joined = f"{hubs['one'].url}/koi-net" if hubs else None
            hubs[name] = await systems[name].start_hub(hub_id=f"hub-{name}", koi=nodes[name], koi_join=joined)
        agents = {name: make_agent(f"agent-{name}", f"go_{name}") for name in systems}
        urls = {name: (await systems[name].start_agent(agents[name])).url for name in systems}
        for hub in hubs.values():
            await hub.mesh.directory.refresh()
        every = {agent.name for agent in agents.values()}
        await until(lambda: all(names(hub) == every for hub in hubs.values()))
        await until(lambda: is_quiet(nodes.values()))
        marks = {name: len(system.recording.exchanges) for name, system in systems.items()}
        changed: list[str] = []
        # the last change shows that nothing came late after the ones before it
        for name in ("one", "two", "three", "one"):
            agent, skill = agents[name], f"more_{len(changed)}"
            add_skill(agent, skill)
            card = encode_card(render_card(agent.record(urls[name]), scopes=PUBLISHED_SCOPES))
            await publish(systems[name].home, card)
            await hubs[name].mesh.directory.refresh()
            await until(lambda: all(f"agent-{name}.{skill}" in tools_of(koi) for koi in nodes.values()))  # noqa: B023
            await until(lambda: is_quiet(nodes.values()))
            changed.append(name)
            # hub one passes on what two and three tell; nobody tells what came from elsewhere as its own
            for other, system in systems.items():
                told = [(f"agent-{one}", "UPDATE") for one in changed if one != other]
                assert list_told(system, marks[other]) == told


def is_quiet(hubs: Iterable[KoiHub]) -> bool:
    """Whether no event waits for another node."""
    return not any(koi.node.cache.queues for koi in hubs if koi.node is not None)


def list_told(system: System, since: int) -> list[tuple[str, str]]:
    """The events of personalities that a hub was sent, as names of agents with the types."""
    found = []
    for exchange in system.recording.exchanges[since:]:
        if exchange.path.endswith("/events/broadcast"):
            request = exchange.request
            for event in request.get("payload", request)["events"]:
                kind, _, reference = event["rid"].rpartition(":")
                if kind == PERSONALITY_TYPE:
                    found.append((reference.partition("/")[0], event["event_type"]))
    return found


def add_skill(agent: Agent, name: str) -> None:
    @agent.skill(name, expose=True)
    async def run() -> str:
        """Does more."""
        return name


async def test_a_forgotten_name_is_released(system: System, wire: Wire, tmp_path: Path) -> None:
    koi = KoiHub()
    hub = await system.start_hub(koi=koi)
    assert koi.node is not None
    koi.node.policy.rules.names["helpful-agent"] = "orn:koi-net.node:gone+1"
    given = {"forgotten": "helpful-agent"}
    reply = await wire.call(hub.url, "refresh_agents", given, authorization=system.token)
    assert reply.result["released"] is True
    assert "helpful-agent" not in koi.node.policy.rules.names
    again = await wire.call(hub.url, "refresh_agents", given, authorization=system.token)
    assert "released" not in again.result


async def test_a_name_is_told_by_the_hub_that_has_it_and_by_another_once_it_is_free(
    tmp_path: Path, wire: Wire
) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(open_system(State(tmp_path / "one")))
        two = await stack.enter_async_context(open_system(State(tmp_path / "two")))
        await one.start_agent(make_agent("greeter", "greet"))
        first, second = KoiHub(), KoiHub()
        hub_one = await one.start_hub(hub_id="hub-one", koi=first)
        hub_two = await two.start_hub(hub_id="hub-two", koi=second, koi_join=f"{hub_one.url}/koi-net")
        assert first.node is not None
        assert second.node is not None
        await until(lambda: "greeter" in second.adapter.agents)
        with capture_logs() as logs:
            await two.start_agent(make_agent("greeter", "welcome"))
            await hub_two.mesh.directory.refresh()
            await until(lambda: any(line["event"] == "agent has no personality" for line in logs))
        [told] = [line for line in logs if line["event"] == "agent has no personality"]
        assert first.node.rid in told["reason"]
        assert str(second.adapter.agents["greeter"].node_rid) == first.node.rid
        assert list(first.adapter.agents) == ["greeter"]
        # the lists of the second hub tell the two apart
        tools = read(await wire.get(f"{hub_two.url}/tools/list"))["tools"]
        listed = {tool["name"]: tool["url"] for tool in tools}
        assert len(listed) == len(tools) == 2
        for name, url in listed.items():
            skill = name.rpartition(".")[2]
            assert read(await wire.post(url, {"word": "Ada"})) == {"result": f"{skill} Ada"}
        # the first hub's agent goes: the second one's is told, and can be called from there
        await forget(one.home, "greeter")
        await hub_one.mesh.directory.refresh()
        await until(lambda: tools_of(first) == ["greeter.welcome"])
        called = await wire.call(hub_one.url, "welcome", {"word": "Ada"}, authorization=one.token)
        assert called.result == "welcome Ada"


@requirement("K-38")
async def test_a_name_is_told_once_its_holder_is_dead_without_any_change(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(open_system(State(tmp_path / "hub")))
        koi = KoiHub(look_again_s=0.1)
        hub = await system.start_hub(koi=koi)
        assert koi.node is not None
        koi.node.state.memory.seen_s = 0.0  # a node counts as alive while it answers
        async with AsyncExitStack() as alive:
            await Net(tmp_path, alive).agent("greeter", f"{hub.url}/koi-net", version="1.0.0")
            await until(lambda: "greeter" in names(hub))
            with capture_logs() as logs:
                await system.start_agent(make_agent("greeter", "welcome"))
                await hub.mesh.directory.refresh()
                await until(lambda: any(line["event"] == "agent has no personality" for line in logs))
            assert tools_of(koi) == ["greeter.calculate"]
        # nobody says that it has ended
        await until(lambda: tools_of(koi) == ["greeter.welcome"])
        assert [(entry.name, entry.source) for entry in hub.mesh.directory.list_entries()] == [
            ("greeter", "home")
        ]


async def test_a_member_that_does_not_answer_is_marked_at_the_hub_and_evicted(
    system: System, tmp_path: Path
) -> None:
    now_s = 0.0
    koi = KoiHub(look_every_s=0.01, clock=lambda: now_s)
    hub = await system.start_hub(koi=koi)
    async with AsyncExitStack() as alive:
        agent = await Net(tmp_path, alive).agent("helper", f"{hub.url}/koi-net", keep_on_stop=True)
        await until(lambda: "helper" in names(hub))
        await until(lambda: len(koi.list_links()) == 2)
    await until(lambda: koi.presence is not None and koi.presence.is_silent(agent.node.rid))
    [row] = [entry for entry in hub.mesh.directory.list_entries() if entry.name == "helper"]
    assert (row.health, row.last_error) == ("unreachable", "the node does not answer")
    assert {link.status for link in koi.list_links()} == {"silent"}
    now_s = 3600.0
    await until(lambda: "helper" not in names(hub))


def tools_of(koi: KoiHub) -> list[str]:
    return [tool["name"] for tool in koi.adapter.get_all_tools()]


async def test_hubs_that_had_one_name_before_they_met_both_keep_it(tmp_path: Path, wire: Wire) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(open_system(State(tmp_path / "one")))
        two = await stack.enter_async_context(open_system(State(tmp_path / "two")))
        await one.start_agent(make_agent("greeter", "greet"))
        await one.start_agent(make_agent("left", "go_left"))
        await two.start_agent(make_agent("greeter", "welcome"))
        await two.start_agent(make_agent("right", "go_right"))
        hubs = first, second = KoiHub(), KoiHub()
        hub_one = await one.start_hub(hub_id="hub-one", koi=first)
        await until(lambda: {"greeter", "left"} <= first.adapter.agents.keys())
        hub_two = await two.start_hub(hub_id="hub-two", koi=second)
        await until(lambda: {"greeter", "right"} <= second.adapter.agents.keys())
        with capture_logs() as logs:
            for koi, other in ((first, hub_two), (second, hub_one)):
                assert koi.node is not None
                koi.node.wire.peers.first_contact = FirstContact(f"{other.url}/koi-net")
                await koi.node.wire.introductions.introduce(
                    NodeAddress(f"{other.url}/koi-net", None, "unsigned")
                )
            await until(lambda: "right" in first.adapter.agents and "left" in second.adapter.agents)
        for koi in hubs:
            assert koi.node is not None
            assert str(koi.adapter.agents["greeter"].node_rid) == koi.node.rid
        assert any("refused" in line["event"] and "greeter" in str(line.get("rid")) for line in logs)
