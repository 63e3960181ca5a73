"""Agents of one process as targets: whose skills a call may reach, and under which rights."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.authoring.local import LocalFirst, LocalInvoker, LocalLookup, NoMesh, local_dispatcher
from retinue.core.errors import (
    SkillNotOfferedError,
    UnknownAgentError,
    UnknownSkillError,
    VersionConflictError,
)
from retinue.core.record import AgentRecord, Endpoint, Listing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.dispatch import TimeoutSettings
from retinue.mesh.permissions import AgentView
from tests.authoring.meshes import ScriptedMesh, caller_of, go, offering
from tests.mesh.scripted import ScriptedInvoker, make_call


async def test_an_agent_may_call_its_own_private_skills_and_nobody_else_may() -> None:
    agent = caller_of("secret", name="a")
    agent.skill("secret", private=True)(lambda: 42)
    dispatcher = local_dispatcher(agent)
    assert (await dispatcher.dispatch(make_call("go", {}))).value == 42
    assert isinstance((await dispatcher.dispatch(make_call("secret", {}))).error, UnknownSkillError)


async def test_a_relayed_call_has_the_rights_of_its_caller_and_no_more() -> None:
    agent = Agent("hub")
    agent.skill("secret", private=True)(lambda: 42)
    agent.skill("open")(lambda: 1)

    @agent.skill
    async def relay(skill: str, ctx: Context) -> Any:
        return (await ctx.relay(skill, {})).get()

    dispatcher = local_dispatcher(agent)
    assert (await dispatcher.dispatch(make_call("relay", {"skill": "open"}))).value == 1
    outcome = await dispatcher.dispatch(make_call("relay", {"skill": "secret"}))
    assert isinstance(outcome.error, UnknownSkillError)


async def test_a_relayed_call_is_the_same_call_no_hop_deeper() -> None:
    agent = Agent("hub")

    @agent.skill
    async def relay(ctx: Context) -> Any:
        return (await ctx.relay("work", {"a": 1}, agent="far", version=">1")).get()

    mesh = ScriptedMesh(value="done")
    call = make_call("relay", {}, idempotency_key="k")
    assert (await local_dispatcher(agent, mesh=mesh).dispatch(call)).value == "done"
    relayed = mesh.calls[0]
    assert (relayed.id, relayed.principal, relayed.idempotency_key) == (call.id, call.principal, "k")
    assert (relayed.trace.depth, relayed.agent, relayed.version_range) == (0, "far", ">1")


async def test_own_skills_come_before_those_of_the_mesh() -> None:
    mesh = ScriptedMesh(value="far")
    agent = caller_of("work")
    agent.skill("work")(lambda: "own")
    assert (await go(agent, mesh)).value == "own"
    assert (await go(caller_of("work", agent="elsewhere"), mesh)).value == "far"


async def test_an_own_skill_of_another_version_is_not_meant() -> None:
    mesh = ScriptedMesh(value="far")
    agent = caller_of("work", version=">=2")
    agent.skill("work")(lambda: "own")
    assert (await go(agent, mesh)).value == "far"


async def test_without_a_mesh_nobody_offers_what_the_agent_has_not() -> None:
    outcome = await NoMesh().dispatch(make_call("work"))
    assert isinstance(outcome.error, SkillNotOfferedError)


async def test_the_look_up_in_this_process_knows_agents_versions_and_scopes() -> None:
    lookup = LocalLookup({"a": offering("x", name="a"), "b": offering("x", name="b", version="2.0.0")})
    mesh = frozenset({"mesh"})
    assert [one.record.name for one in await lookup.resolve_skill("x", mesh)] == ["a", "b"]
    assert [one.record.name for one in await lookup.resolve_skill("x", mesh, version_range=">=2")] == ["b"]
    with pytest.raises(UnknownAgentError):
        await lookup.resolve_skill("x", mesh, agent="c")
    with pytest.raises(UnknownSkillError):
        await lookup.resolve_skill("x", frozenset({"exposed"}))
    with pytest.raises(VersionConflictError) as caught:
        await lookup.resolve_skill("x", mesh, version_range=">=3")
    assert caught.value.offered == ("1.0.0", "2.0.0")


async def test_an_agent_of_this_process_that_is_not_seen_is_not_told_from_one_that_is_not_there() -> None:
    local = LocalLookup({"a": offering("x", name="a"), "b": offering("x", name="b")})
    invoker = LocalInvoker({}, NoMesh(), TimeoutSettings())
    hub = LocalFirst(Directory(MemoryListings()), invoker)
    hub.add(local, invoker)
    mesh = frozenset({"mesh"})
    for lookup in (local, hub):
        found = await lookup.resolve_skill("x", mesh, view=AgentView(frozenset(), ("a",)))
        assert [one.name for one in found] == ["a"]
        for skill in ("x", "y"):
            with pytest.raises(UnknownAgentError):
                await lookup.resolve_skill(skill, mesh, agent="b", view=AgentView(frozenset(), ("a",)))


def far_agent(*protocols: str, source: str = "home") -> Listing:
    endpoints = tuple(Endpoint(protocol, f"http://far/{protocol}") for protocol in protocols)
    return Listing(AgentRecord("far", endpoints=endpoints), source, "agents/far")


@pytest.mark.parametrize(
    ("listing", "invoker"),
    [
        (far_agent("execute"), "remote"),
        (far_agent("messages", "execute"), "remote"),
        (far_agent("messages"), "by messages"),
        (far_agent("mcp", "messages"), "by messages"),
        (far_agent("toy", "messages"), "by toy"),
        (far_agent("mcp"), "remote"),
        (far_agent(), "remote"),
        (far_agent("execute", source="imports"), "of imports"),
        (far_agent("messages", source="imports"), "of imports"),
        (far_agent("messages", source="local"), "of this process"),
    ],
)
def test_an_invoker_is_that_of_the_source_then_of_the_protocol_of_an_agent_without_execute(
    listing: Listing, invoker: str
) -> None:
    invokers = {
        name: ScriptedInvoker()
        for name in ("remote", "by messages", "by toy", "of imports", "of this process")
    }
    lookup = LocalFirst(Directory(MemoryListings()), invokers["remote"])
    lookup.add(LocalLookup({}), invokers["of this process"])
    lookup.add_invoker("imports", invokers["of imports"])
    lookup.add_protocol("messages", invokers["by messages"])
    lookup.add_protocol("toy", invokers["by toy"])
    assert lookup.invoker_of(listing) is invokers[invoker]
    assert lookup.is_peer(listing) is (listing.source == "home")
