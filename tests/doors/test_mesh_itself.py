"""What only the mesh itself may say to its hub, said by others: alone, through agents and workflows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from tests.requirements import requirement
from tests.system import Hub, Reply, System, Wire, open_system

WORKFLOW = "name: nightly\nsteps:\n  - {id: a, skill: nap}\n"
CALLERS = ("anonymous", "mesh", "runs_code", "through an agent", "through a workflow")


@dataclass(slots=True)
class World:
    """A hub with an agent that passes calls on, and one that is away."""

    system: System
    hub: Hub
    wire: Wire
    tokens: dict[str, dict[str, str]]

    async def say(self, caller: str, skill: str, **arguments: Any) -> Reply:
        given, name = arguments, skill
        if caller == "through an agent":
            given, name = {"skill": skill, "arguments": arguments}, "pass_on"
        elif caller == "through a workflow":
            step = {"id": "a", "skill": skill, "with": arguments}
            given, name = {"workflow": {"name": "x", "steps": [step]}, "input": {}}, "orchestrate_workflow"
        return await self.wire.call(self.hub.url, name, given, **self.tokens.get(caller, {}))

    async def is_away(self) -> bool:
        """Whether the hub still says that the sleeper will be back."""
        reply = await self.wire.call(self.hub.url, "nap", {}, **self.tokens["owner"])
        return "is away" in reply.error["message"]


@pytest.fixture
async def world(tmp_path: Path, wire: Wire) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        system = await stack.enter_async_context(open_system(State(tmp_path)))
        sleeper, relay = Agent("sleeper", version="1.0.0"), Agent("relay", version="1.0.0")

        @sleeper.skill
        async def nap() -> str:
            """Sleeps."""
            return "awake"

        @relay.skill
        async def pass_on(skill: str, arguments: dict[str, Any], ctx: Context) -> Any:
            """Calls a skill for its caller."""
            return await ctx.call(skill, arguments)

        await system.start_agent(sleeper)
        await system.start_agent(relay)
        hub = await system.start_hub()
        file = TokenFile(system.state.keys)
        tokens = {"owner": {"authorization": system.token}}
        for name, scopes in (("mesh", ["mesh"]), ("runs_code", ["mesh", "runs_code"])):
            tokens[name] = {"authorization": f"Bearer {file.issue(scopes, name=name)[1]}"}
        found = World(system, hub, wire, tokens)
        assert (await wire.call(hub.url, "nap", {})).result == "awake"
        await system.home.delete("agents/sleeper", "v1")
        await found.say("owner", "refresh_agents", withdrawn="sleeper")
        assert await found.is_away()
        yield found


@requirement("S-17")
@pytest.mark.parametrize("caller", CALLERS)
async def test_only_the_mesh_itself_says_that_an_agent_is_gone(world: World, caller: str) -> None:
    """A run waits for an agent that is away, and fails for good when it is said to be forgotten."""
    for what in ("forgotten", "withdrawn"):
        for name in ("sleeper", "relay", "nobody"):
            refused = (await world.say(caller, "refresh_agents", **{what: name})).error
            assert "only the mesh itself" in refused["message"], (what, name)
    assert await world.is_away()
    assert "agents" in (await world.say("anonymous", "refresh_agents")).result
    await world.say("owner", "refresh_agents", forgotten="sleeper")
    assert not await world.is_away()


@requirement("S-17")
@pytest.mark.parametrize("caller", CALLERS)
async def test_nobody_else_stores_a_workflow_also_not_through_an_agent(world: World, caller: str) -> None:
    refused = (await world.say(caller, "store_workflow", text=WORKFLOW)).error
    assert "only the mesh itself" in refused["message"]
    listed = (await world.say("owner", "list_workflows", filter="custom")).result["workflows"]
    assert listed == []
    stored = await world.say("owner", "store_workflow", text=WORKFLOW)
    assert stored.result["workflow"] == "nightly"
