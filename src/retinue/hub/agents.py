"""The hub's skills about single agents: call, show, list and refresh them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.rows import render_version
from retinue.core.call import Answer, Call, Outcome
from retinue.core.errors import InvalidParametersError, NotAllowedError, Problem
from retinue.core.record import Listing, Stats
from retinue.hub.mesh_map import map_agents
from retinue.hub.resources import open_listed, render_agent
from retinue.hub.search import list_missing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.dispatch import AskedSkill
from retinue.mesh.entry import Entry
from retinue.mesh.exams import ExamBook
from retinue.mesh.permissions import Access, is_mesh_itself, is_seen

Json = dict[str, Any]

RELAYS = ("call_skill", "call_read_only_skill")

ExpectCall = Callable[[str, str, str], None]
"""Takes the trace of a call, its skill, and the search that it names ("" = none); `SearchHistory.expect`."""

_MAX_NAMED = 5

_MAX_DRAWN = 100
"""Characters of a name in the path of a refusal."""

_RELAYED_S = 86_400.0
"""Longer than any limit of the skill that ``call_skill`` calls: that one ends it, and its error says so."""


def find_relayed(call: Call) -> AskedSkill | None:
    """The skill that a call of ``call_skill`` or ``call_read_only_skill`` hands its arguments to."""
    if call.skill not in RELAYS or not isinstance(call.arguments, Mapping):
        return None
    skill, agent, version = (call.arguments.get(key) or None for key in ("skill", "agent", "version"))
    if not isinstance(skill, str):
        return None
    return AskedSkill(
        skill[:_MAX_DRAWN],
        agent[:_MAX_DRAWN] if isinstance(agent, str) else None,
        version if isinstance(version, str) else None,
    )


def _answer_of(outcome: Outcome) -> Any:
    """The result of a relayed call with everything that came with it; raises its error.

    Its usage is added to that of the relaying call by the guard.
    """
    value = outcome.get()
    if outcome.parts or outcome.warnings:
        return Answer(value, outcome.parts, warnings=outcome.warnings)
    return value


def _check_read_only(directory: Directory, skill: str, candidates: Sequence[Entry]) -> None:
    """Raise InvalidParametersError unless each agent that may get the call marks the skill as read-only."""
    readers: list[str] = []
    writers: list[str] = []
    for candidate in candidates:
        offer = directory.find_skill(candidate, skill)
        if offer is not None:
            (readers if offer.hints.read_only else writers).append(directory.name_of(candidate))
    if not writers:
        return
    error = InvalidParametersError(
        [Problem("skill", f"skill {skill} of agent {writers[0]} is not marked read-only")]
    )
    others = [name for name in dict.fromkeys(readers) if name not in writers][:_MAX_NAMED]
    error.remedy = f"name one of these agents: {', '.join(others)}" if others else "call it with call_skill"
    raise error


def add_call_skills(agent: Agent, directory: Directory, access: Access, expect: ExpectCall) -> None:
    """Add ``call_skill`` and ``call_read_only_skill``; ``expect`` is told of a call that names its search."""

    @agent.skill(expose=True, timeout_s=_RELAYED_S)
    async def call_skill(
        skill: Annotated[str, Field(description="Its id")],
        ctx: Context,
        arguments: Annotated[Json | None, Field(description="As its schema says")] = None,
        agent: Annotated[str | None, Field(description="Only this agent")] = None,
        version: Annotated[str | None, Field(description="Such as >=1.2,<2")] = None,
        search: str = "",
    ) -> Any:
        """Calls a skill with the caller's own rights."""
        expect(ctx.trace.id, skill, search)
        return _answer_of(await ctx.relay(skill, arguments or {}, agent=agent, version=version))

    @agent.skill(expose=True, read_only=True, timeout_s=_RELAYED_S)
    async def call_read_only_skill(
        skill: str,
        ctx: Context,
        arguments: Json = {},  # noqa: B006 - it is not changed, and its schema is short
        agent: str = "",
        version: str = "",
    ) -> Any:
        """As call_skill, for skills marked read_only only."""
        candidates = await directory.resolve_skill(
            skill,
            ctx.principal.scopes,
            version_range=version or None,
            agent=agent or None,
            view=access.view_of(ctx.principal),
        )
        _check_read_only(directory, skill, candidates)
        return _answer_of(await ctx.relay(skill, arguments, agent=agent or None, version=version or None))


def add_agent_skills(
    agent: Agent,
    directory: Directory,
    access: Access,
    stats_of: Callable[[Listing], Stats],
    exams: ExamBook,
) -> None:
    """Add ``show_agent``, ``map_agents`` and ``refresh_agents``."""

    @agent.skill(read_only=True)
    async def show_agent(name: str, ctx: Context) -> Json:
        """Shows one agent: its card, its status and its statistics, and the versions of its name."""
        await directory.ensure_fresh()
        view, scopes = access.view_of(ctx.principal), ctx.principal.scopes
        listing = await open_listed(directory, name, view, scopes)
        versions = map(render_version, directory.list_named(listing.name, view=view))
        shown = render_agent(listing, scopes, stats_of) | {"versions": list(versions)}
        if (exam := exams.find(listing)) is not None:
            shown["exam"] = exam.render(with_problems="mesh" in scopes)
        return shown

    @agent.skill("map_agents", expose=True, listed=False, read_only=True)
    async def map_all_agents(
        ctx: Context,
        limit: Annotated[int | None, Field(ge=1, description="Rows; those that do not answer first")] = None,
        source: Annotated[str | None, Field(description="Rows of this source only")] = None,
        names: Annotated[list[str], Field(description="Agents that have a row within the limit")] = [],  # noqa: B006
    ) -> Json:
        """Lists name, status and source of every agent, without their cards."""
        await directory.ensure_fresh()
        view = access.view_of(ctx.principal)
        return await map_agents(
            directory, view, ctx.principal.scopes, limit=limit, source=source, names=names
        )

    @agent.skill(idempotent=True)
    async def refresh_agents(
        ctx: Context,
        withdrawn: Annotated[
            str | None, Field(description="Agent that has withdrawn its card and will be back")
        ] = None,
        forgotten: Annotated[str | None, Field(description="Agent that somebody removed")] = None,
    ) -> Json:
        """Reads the registries again now."""
        if (withdrawn is not None or forgotten is not None) and not is_mesh_itself(ctx.principal):
            # what waits for an agent that is away fails when it is forgotten, and its name on KOI is free
            raise NotAllowedError(
                "only the mesh itself says that an agent has gone",
                remedy="leave withdrawn and forgotten out; or use the command: retinue forget NAME",
            )
        if withdrawn is None:
            await directory.refresh()
        else:
            await directory.note_withdrawal(withdrawn)
        released = forgotten is not None and directory.forget_away(forgotten)
        view = access.view_of(ctx.principal)
        count = sum(directory.count_facts().values())
        if view is not None:
            count = 0
            async for page in directory.iterate_pages():
                count += sum(is_seen(view, entry.name) for entry in page)
        reply: Json = {"agents": count, "missing": list_missing(directory, view)}
        return {**reply, "released": True} if released else reply
