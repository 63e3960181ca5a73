"""The hub's skills for recorded calls: a list with filters, and all calls of one trace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Principal
from retinue.mesh.permissions import Access, is_seen

Json = dict[str, Any]

PAGE = 100
MAX_TRACE_CALLS = 2_000

_HIDDEN = frozenset({"type", "timestamp", "row", "facts"})
"""Keys of rows that no reply has; the facts are for replays of policies, which the owner asks for."""

CallKind = Literal["done", "failed", "needs_input", "refused"]


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Which ended calls are wanted; an empty field accepts every call.

    ``before`` is the place of a row: only older calls. ``failed`` = calls whose status is not done.
    """

    skill: str | None = None
    agent: str | None = None
    caller: str | None = None
    status: CallKind | None = None
    failed: bool = False
    trace: str | None = None
    before: int | None = None


ReadCalls = Callable[[CallFilter, int], Awaitable[Sequence[Mapping[str, Any]]]]
"""Reads at most so many ended calls, newest first; each row has its place as ``row``."""


def add_call_skills(agent: Agent, read_calls: ReadCalls, access: Access) -> None:
    """Add ``list_calls`` and ``show_trace``.

    Callers of the mesh see every call to the agents that they see, others their own calls only.
    """

    def view(principal: Principal) -> Callable[[Mapping[str, Any]], bool]:
        agents = access.view_of(principal)
        return lambda row: row["agent"] is None or is_seen(agents, row["agent"])

    def own(principal: Principal) -> str | None:
        return None if "mesh" in principal.scopes else principal.id

    @agent.skill(read_only=True)
    async def list_calls(
        ctx: Context,
        skill: Annotated[str | None, Field(description="Only calls of this skill")] = None,
        agent: Annotated[str | None, Field(description="Only calls to this agent")] = None,
        caller: Annotated[str | None, Field(description="Only calls of this caller")] = None,
        status: Annotated[CallKind | None, Field(description="Only calls with this outcome")] = None,
        failed: Annotated[bool, Field(description="Only calls that are not done")] = False,
        limit: Annotated[
            int, Field(description="Maximum number of calls, newest first", ge=1, le=1000)
        ] = PAGE,
        before: Annotated[int | None, Field(description="next of the previous reply")] = None,
    ) -> Json:
        """Lists the recorded calls, newest first, without their arguments and results."""
        mine = own(ctx.principal)
        if mine is not None and caller not in (None, mine):
            return {"calls": []}
        wanted = CallFilter(skill, agent, mine or caller, status, failed, None, before)
        rows_read = await read_calls(wanted, limit)
        reply: Json = {"calls": [_render(row) for row in filter(view(ctx.principal), rows_read)]}
        if len(rows_read) == limit:
            reply["next"] = rows_read[-1]["row"]
        return reply

    @agent.skill(read_only=True)
    async def show_trace(trace: str, ctx: Context) -> Json:
        """Shows the recorded calls of one trace in the order of their start."""
        rows_read = await read_calls(CallFilter(trace=trace, caller=own(ctx.principal)), MAX_TRACE_CALLS)
        rows = [_render(row) for row in filter(view(ctx.principal), rows_read)]
        rows.sort(key=lambda row: row["started_at"])
        return {"trace": trace, "calls": rows}


def _render(row: Mapping[str, Any]) -> Json:
    ended_at = datetime.fromisoformat(str(row["timestamp"])).timestamp()
    shown = {key: value for key, value in row.items() if key not in _HIDDEN}
    shown["endpoint"] = shown.pop("door")
    return {**shown, "started_at": ended_at - row["duration_ms"] / 1000, "ended_at": ended_at}
