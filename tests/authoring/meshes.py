"""Agents that call on, and a mesh behind them that answers what a test tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.authoring.local import local_dispatcher
from retinue.core.call import Call, Outcome
from retinue.core.errors import RetinueError
from retinue.mesh.channel import Channel
from tests.mesh.scripted import make_call


@dataclass
class ScriptedMesh:
    """The rest of the mesh: answers every call with this outcome, and keeps the calls."""

    value: Any = None
    error: RetinueError | None = None
    calls: list[Call] = field(default_factory=list)

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        self.calls.append(call)
        status: Any = "done" if self.error is None else "failed"
        return Outcome(call.id, call.skill, status, value=self.value, error=self.error)


def caller_of(skill: str, *, name: str = "caller", **options: Any) -> Agent:
    """An agent whose skill ``go`` calls ``skill`` and returns its value."""
    agent = Agent(name, version="1.0.0")

    @agent.skill
    async def go(ctx: Context) -> Any:
        return await ctx.call(skill, {}, **options)

    return agent


def offering(skill: str, value: Any = "here", *, name: str = "callee", version: str = "1.0.0") -> Agent:
    agent = Agent(name, version=version)
    agent.skill(skill)(lambda: value)
    return agent


async def go(agent: Agent, mesh: Any = None, **fields: Any) -> Outcome:
    dispatcher = local_dispatcher(agent, mesh=mesh, **fields)
    return await dispatcher.dispatch(make_call("go", {}))
