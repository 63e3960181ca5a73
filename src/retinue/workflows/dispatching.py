"""Steps call out over the one dispatch path: the Caller of every process that runs workflows.

What a run was started with travels in the run itself (`render_origin`), so that a resumed run calls
with the same trace and the same rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.core.call import Call, Hop, Outcome, Principal, TraceContext
from retinue.core.errors import LookupFailedError
from retinue.mesh.channel import NullChannel
from retinue.mesh.dispatch import Calls, Lookup
from retinue.mesh.guards import Departure, TraceGuard, fresh_trace, go_deeper
from retinue.mesh.routing import Strategy, first, order_candidates
from retinue.workflows.caller import Choice
from retinue.workflows.role_choice import Agents, NoAgents, RoleChoice
from retinue.workflows.run_records import RunRequest

_CHANNEL = NullChannel()
_MAX_HOP = 200
"""Characters of a run's name in the path of a trace, which takes 256."""


def render_origin(trace: TraceContext, caller: str, rights: frozenset[str]) -> dict[str, Any]:
    """Who started a run, from where in a chain of calls, and with which rights; JSON values."""
    return {
        "caller": caller,
        "rights": sorted(rights),
        "id": trace.id,
        "depth": trace.depth,
        "path": [[hop.agent, hop.skill] for hop in trace.path],
        "calls_left": trace.calls_left,
        "traceparent": trace.traceparent,
        "tracestate": trace.tracestate,
        "baggage": dict(trace.baggage),
    }


def is_begun_by_agent(request: RunRequest) -> bool:
    """Whether a run, or the one that it is a branch of, was started from within a chain of calls."""
    origin = request.ambient.get("trace") or {}
    return int(origin.get("depth", 0)) > 0


class DispatchCaller:
    """Chooses through the directory and calls through the dispatcher, one hop below the run's origin."""

    def __init__(
        self,
        calls: Calls,
        lookup: Lookup,
        guard: TraceGuard,
        *,
        agent: str,
        strategy: Strategy = first,
        agents: Agents | None = None,
    ) -> None:
        self._calls = calls
        self._lookup = lookup
        self._roles = RoleChoice(agents or NoAgents(), strategy)
        self._guard = guard
        self._agent = agent
        self._strategy = strategy

    async def choose(
        self,
        skill: str,
        agent: str | None = None,
        version_range: str | None = None,
        scopes: frozenset[str] = frozenset(),
    ) -> Choice:
        found = await self._lookup.resolve_skill(skill, scopes, version_range=version_range, agent=agent)
        chosen = order_candidates(found, self._strategy, skill)[0]
        listing = await self._lookup.open(chosen)
        offer = None if listing is None else listing.record.find_skill(skill)
        name = chosen.name
        if sum(one.name == name for one in found) > 1:
            name = f"{name}@{chosen.source}"
        return Choice(
            agent=name,
            skill=skill,
            version=chosen.version,
            url=chosen.url,
            input_schema=None if offer is None else offer.input_schema,
            output_schema=None if offer is None else offer.output_schema,
        )

    async def list_role(
        self, role: str, agents: Sequence[str] = (), scopes: frozenset[str] = frozenset()
    ) -> Sequence[Choice]:
        return await self._roles.list_role(role, agents, scopes)

    async def call(
        self,
        choice: Choice,
        skill: str,
        arguments: Any,
        *,
        run_id: str,
        path: str,
        idempotency_key: str,
        timeout_s: float,
        trace: Mapping[str, Any] | None,
    ) -> Outcome:
        origin = trace or {}
        outgoing = go_deeper(
            _trace_of(origin),
            Hop(self._agent, f"run {run_id}"[:_MAX_HOP]),
            calls_left=origin.get("calls_left"),
            seconds_left=timeout_s,
        )
        scopes = frozenset(origin.get("rights", ()))
        call = Call(
            id=idempotency_key,
            skill=skill,
            arguments=arguments,
            principal=Principal(str(origin.get("caller", "run")), "run", scopes),
            door="workflow",
            trace=outgoing,
            agent=await self._name_here(choice, skill, scopes),
            deadline=asyncio.get_running_loop().time() + timeout_s,
            idempotency_key=idempotency_key,
            run_step=f"{run_id}/{path}",
        )
        with Departure(outgoing, guard=self._guard):
            return await self._calls.dispatch(call, _CHANNEL)

    async def _name_here(self, choice: Choice, skill: str, scopes: frozenset[str]) -> str:
        """What the chosen agent is called in this process: on another machine its source has another name."""
        name = choice.agent.partition("@")[0]
        try:
            found = await self._lookup.resolve_skill(skill, scopes, agent=name)
        except LookupFailedError:
            return choice.agent
        same = next((one for one in found if one.url == choice.url), None)
        if same is None:
            return choice.agent
        return name if len(found) == 1 else f"{name}@{same.source}"


def _trace_of(origin: Mapping[str, Any]) -> TraceContext:
    if not origin.get("id"):
        return fresh_trace()
    return TraceContext(
        id=str(origin["id"]),
        depth=int(origin.get("depth", 0)),
        path=tuple(Hop(agent, skill) for agent, skill in origin.get("path", ())),
        traceparent=origin.get("traceparent"),
        tracestate=origin.get("tracestate"),
        baggage=origin.get("baggage") or {},
        trusted=True,
    )
