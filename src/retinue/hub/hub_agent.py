"""The hub's agent ``retinue``: the directory, the runs and the workflows of the mesh as skills.

The command line and every endpoint call these skills; nothing here depends on a protocol. The skill
``list_agents`` is in this module, the others are in the modules next to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.rows import render_agent_row
from retinue.core.call import Answer
from retinue.core.errors import InvalidSettingError
from retinue.core.record import HUB_NAME, Listing, ListingKey, Stats
from retinue.hub.resources import add_agent_resources, render_agent
from retinue.hub.run_access import RunAccess
from retinue.hub.runs import add_run_skills
from retinue.hub.search import add_search_skills, list_missing
from retinue.hub.workflows import add_workflow_skills
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import Access, is_seen
from retinue.mesh.search.agents import AgentSearch
from retinue.mesh.search.ranking import SkillSearch
from retinue.workflows.library import Library
from retinue.workflows.orchestrator import Orchestrator

Json = dict[str, Any]

PAGE = 1_000
"""Default and maximum number of agents in one reply."""

_LISTINGS_PER_BATCH = 200
"""Listings read before other tasks may run: about 20 ms."""

_NO_ACCESS_LISTS = Access()


def hub_agent(
    directory: Directory,
    search: SkillSearch,
    orchestrator: Orchestrator,
    library: Library,
    *,
    version: str,
    stats_of: Callable[[Listing], Stats] = lambda listing: listing.stats,
    access: Access = _NO_ACCESS_LISTS,
) -> Agent:
    """The agent ``retinue`` over a directory and an orchestrator.

    ``stats_of`` returns the statistics of an agent; ``access`` decides which agents a caller sees.
    """
    agent = Agent(
        HUB_NAME,
        version=version,
        title="Retinue",
        description="Finds agents by what they can do, calls them, and runs workflows of them.",
    )

    @agent.skill(expose=True)
    async def call_skill(
        skill: Annotated[str, Field(description="The skill's id")],
        ctx: Context,
        arguments: Annotated[
            Json | None, Field(description="Arguments that match the skill's input schema")
        ] = None,
        agent: Annotated[str | None, Field(description="Only this agent")] = None,
        version: Annotated[str | None, Field(description="Only versions such as >=1.2,<2")] = None,
    ) -> Any:
        """Calls a skill of the mesh, found by its id, with the caller's own rights."""
        outcome = await ctx.relay(skill, arguments or {}, agent=agent, version=version)
        value = outcome.get()
        if outcome.warnings or outcome.usage is not None:
            return Answer(value, warnings=outcome.warnings, usage=outcome.usage)
        return value

    @agent.skill(read_only=True)
    async def show_agent(name: str, ctx: Context) -> Json:
        """Shows one agent: its card, its status and its statistics."""
        await directory.ensure_fresh()
        listing = await directory.open_named(name, view=access.view_of(ctx.principal))
        return render_agent(listing, ctx.principal.scopes, stats_of)

    @agent.skill(idempotent=True)
    async def refresh_agents(
        ctx: Context,
        withdrawn: Annotated[
            str | None, Field(description="Agent that has withdrawn its card and will be back")
        ] = None,
        forgotten: Annotated[str | None, Field(description="Agent that somebody removed")] = None,
    ) -> Json:
        """Reads the registries again now."""
        if withdrawn is None:
            await directory.refresh()
        else:
            await directory.note_withdrawal(withdrawn)
        if forgotten is not None:
            directory.forget_away(forgotten)
        view = access.view_of(ctx.principal)
        seen = [one for one in directory.list_entries() if is_seen(view, one.name)]
        return {"agents": len(seen), "missing": list_missing(directory, view)}

    add_listing_skills(agent, directory, search, access)
    add_search_skills(agent, directory, search, access)
    run_access = RunAccess(orchestrator.runs, access)
    add_workflow_skills(agent, orchestrator, library, run_access)
    add_run_skills(agent, orchestrator.runs, run_access)
    add_agent_resources(agent, directory, stats_of, access)
    return agent


def add_listing_skills(agent: Agent, directory: Directory, search: SkillSearch, access: Access) -> None:
    """Add the skill ``list_agents``; ``access`` decides which agents a caller sees."""
    agents = AgentSearch(search)

    @agent.skill(expose=True, read_only=True)
    async def list_agents(
        ctx: Context,
        role: Annotated[str | None, Field(description="Only agents with this role")] = None,
        query: Annotated[
            str, Field(description="What the agent should do, in words: only matching agents, best first")
        ] = "",
        limit: Annotated[
            int, Field(ge=1, le=PAGE, description="Maximum number of agents in the reply")
        ] = PAGE,
        after: Annotated[
            str | None, Field(description="Continue after this place: next of the previous reply")
        ] = None,
    ) -> Json:
        """Lists the agents of the mesh: what they offer, whether they answer, and what is missing."""
        await directory.ensure_fresh()
        scopes, view = ctx.principal.scopes, access.view_of(ctx.principal)

        def accept(entry: Entry) -> bool:
            return (
                is_seen(view, entry.name)
                and (role is None or entry.has_role(role, scopes))
                and directory.represents_agent(entry)
            )

        next_place = None
        if query.strip():
            # otherwise hidden agents would use up the limit
            within = None if view is None else [one.id for one in await _list_page(directory, accept)]
            hits = agents.find_agents(query, scopes, limit=limit, within=within, accept=accept)
            entries = [hit.entry for hit in hits]
        else:
            entries = await _list_page(directory, accept, _parse_place(after), limit + 1)
            if len(entries) > limit:
                entries = entries[:limit]
                next_place = _render_place(entries[-1].id)
        reply: Json = {"agents": await _render_rows(directory, entries, scopes)}
        if next_place is not None:
            reply["next"] = next_place
        return {**reply, "missing": list_missing(directory, view)}


async def _list_page(
    directory: Directory,
    accept: Callable[[Entry], bool],
    after: ListingKey | None = None,
    limit: int | None = None,
) -> list[Entry]:
    """The accepted entries after the place ``after``, at most ``limit``."""
    found: list[Entry] = []
    async for page in directory.iterate_pages(after):
        found += filter(accept, page)
        if limit is not None and len(found) >= limit:
            break
    return found[:limit]


async def _render_rows(directory: Directory, entries: Sequence[Entry], scopes: frozenset[str]) -> list[Json]:
    rows: list[Json] = []
    for start in range(0, len(entries), _LISTINGS_PER_BATCH):
        listings = directory.open_all(entries[start : start + _LISTINGS_PER_BATCH])
        rows += [render_agent_row(one, scopes=scopes) for one in listings]
        await asyncio.sleep(0)
    return rows


def _render_place(listing_id: ListingKey) -> str:
    return f"{listing_id.key}:{listing_id.tag} {listing_id.source}"


def _parse_place(text: str | None) -> ListingKey | None:
    if text is None:
        return None
    place, space, source = text.partition(" ")
    key, colon, tag = place.rpartition(":")
    if not (space and colon):
        raise InvalidSettingError(
            "after", "not a place in the list", remedy="pass next of the previous reply"
        )
    return ListingKey(source, key, tag)
