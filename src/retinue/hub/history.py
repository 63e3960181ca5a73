"""The hub's skills about the history of calls: rate a call, show and forget the history, list wishes."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Principal
from retinue.core.errors import InsufficientScopeError, InvalidParametersError, Problem
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.history.wishes import cluster_wishes
from retinue.mesh.permissions import is_mesh_itself

Json = dict[str, Any]

_ROWS = 100


def add_history_skills(agent: Agent, history: SearchHistory) -> None:
    """Add ``rate_call``, ``show_history``, ``forget_history`` and ``list_wishes`` to the hub's agent."""

    @agent.skill(expose=True, listed=False, idempotent=True)
    async def rate_call(
        skill: Annotated[str, Field(description="Id of the skill that was called")],
        verdict: Literal["good", "bad"],
        ctx: Context,
        search: Annotated[str, Field(description="Id of the search that led to the call")] = "",
        agent: Annotated[str, Field(description="The agent that was called; default: any")] = "",
    ) -> Json:
        """Says whether the caller's last call of a skill, found by words, was what it asked for."""
        is_good = verdict == "good"
        key = history.rate(ctx.principal, skill, is_good=is_good, search_id=search, agent=agent)
        if key is None:
            what = f"{skill[:100]} of {agent[:100]}" if agent else skill[:100]
            problem = f"no call of {what} by you that a search by words led to"
            error = InvalidParametersError([Problem("skill", problem)])
            find = "find the skill with find_skills and call it, then rate it"
            error.remedy = find if history.is_on else f"no history here: {history.why_off}"
            raise error
        return {"agent": key.agent, "skill": key.skill, "verdict": verdict}

    @agent.skill(read_only=True, listed=False)
    async def show_history(
        ctx: Context, limit: Annotated[int, Field(description="Skills", ge=1, le=1000)] = _ROWS
    ) -> Json:
        """Shows what came of calls that were found by words, by skill; no text of a request is kept."""
        _check_owner(ctx.principal)
        counts: dict[tuple[str, str, str], Counter[str]] = {}
        last: dict[tuple[str, str, str], float] = {}
        for record in history.list_records():
            counts.setdefault(record.key, Counter())[record.verdict] += 1
            last[record.key] = max(last.get(record.key, 0.0), record.at)
        rows = [
            {
                "agent": key[1],
                "source": key[0],
                "skill": key[2],
                "calls": sum(found.values()),
                "verdicts": dict(found),
                "last": _render_time(last[key]),
            }
            for key, found in sorted(counts.items(), key=lambda item: (-item[1].total(), item[0]))
        ]
        because = {} if history.is_on else {"because": history.why_off}
        return {"kept": history.is_on, **because, "skills": rows[:limit], "more": max(0, len(rows) - limit)}

    @agent.skill(listed=False, destructive=True)
    async def forget_history(ctx: Context) -> Json:
        """Removes the whole history and all wishes; results of exams and receipts stay."""
        _check_owner(ctx.principal)
        return {"forgotten": await history.forget()}

    @agent.skill(read_only=True, listed=False)
    async def list_wishes(
        ctx: Context, limit: Annotated[int, Field(description="Clusters", ge=1, le=1000)] = _ROWS
    ) -> Json:
        """Lists what was asked for and not found; similar requests are one row, most callers first."""
        _check_owner(ctx.principal)
        clusters = await asyncio.to_thread(cluster_wishes, history.wishes.list_all())
        rows = [
            {
                "requests": cluster.count,
                "callers": cluster.callers,
                "first": _render_time(cluster.first_at),
                "last": _render_time(cluster.last_at),
                "texts": list(cluster.texts[:5]),
            }
            for cluster in clusters[:limit]
        ]
        policy = history.wishes.policy if history.is_on else "off"
        why_off = "history.wishes is off" if history.is_on else history.why_off
        because = {"because": why_off} if policy == "off" else {}
        return {"kept": policy, **because, "wishes": rows, "more": max(0, len(clusters) - limit)}


def _check_owner(principal: Principal) -> None:
    if not is_mesh_itself(principal):
        raise InsufficientScopeError(
            "the history of calls is the affair of the owner",
            scopes=("mesh",),
            remedy="use the command line of the owner: retinue history",
        )


def _render_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
