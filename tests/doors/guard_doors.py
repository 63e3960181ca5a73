"""The doors through which the agents of the guard's matrix call each other: one entry in ``DOORS`` each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from retinue.authoring.context import Context
from retinue.core.errors import RemoteFaultError
from retinue.protocols.jsonrpc import Fault, find_refusal, parse_response
from tests.system import System, Wire


@dataclass(frozen=True, slots=True)
class Link:
    """One call from inside a skill: of ``skill`` at ``agent``; ``urls`` are those of all agents."""

    ctx: Context
    agent: str
    skill: str
    urls: Mapping[str, str]
    system: System
    wire: Wire


class GuardDoor(Protocol):
    """A way from one agent's skill to the next agent's."""

    @property
    def name(self) -> str: ...

    @property
    def hops(self) -> int:
        """How much deeper the next skill runs."""

    async def call(self, link: Link) -> Any:
        """The value; raises what the call failed with, a GuardError where the guard refused."""


class ExecuteDoor:
    """``ctx.call``: the hub's ``/execute``, then the agent's."""

    name = "execute"
    hops = 1

    async def call(self, link: Link) -> Any:
        return await link.ctx.call(link.skill)


class WorkflowDoor:
    """A step of a workflow, in a branch; the run itself is a hop."""

    name = "workflow step"
    hops = 2

    async def call(self, link: Link) -> Any:
        steps = [{"id": "p", "parallel": {"mode": "all"}, "steps": [{"id": "go", "skill": link.skill}]}]
        arguments = {"workflow": {"name": "onward", "steps": steps}, "input": {}}
        found = await link.ctx.call("orchestrate_workflow", arguments)
        return found["output"]["go"]


class SeedPeerDoor:
    """``/execute`` by a client written from seed 004: id and depth, nothing signed, no path."""

    name = "execute without a signature"
    hops = 1

    async def call(self, link: Link) -> Any:
        trace = link.ctx.trace
        headers = {"x_openstarry_trace_id": trace.id, "x_openstarry_trace_depth": str(trace.depth + 1)}
        reply = await link.wire.call(link.urls[link.agent], link.skill, **headers)
        return value_of(reply.body)


def value_of(body: bytes) -> Any:
    """The value of a JSON-RPC reply; raises its error."""
    found = parse_response(body)
    if isinstance(found, Fault):
        refusal = find_refusal(found.code, found.message, found.data)
        raise refusal or RemoteFaultError("peer", found.code, found.message, found.data)
    return found.value


DOORS: tuple[GuardDoor, ...] = (ExecuteDoor(), WorkflowDoor(), SeedPeerDoor())
