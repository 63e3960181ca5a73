"""The hub's skill ``list_agents``: all of them page by page, those of a role, those that fit some words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from retinue.agents.hub_search import list_missing
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.errors import InvalidSettingError
from retinue.core.record import ListingKey
from retinue.mesh.access import Access, is_seen
from retinue.mesh.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.search.agent_ranking import AgentSearch
from retinue.mesh.search.ranking import SkillSearch
from retinue.protocols.agent_row import render_agent_row

Json = dict[str, Any]

PAGE = 1_000
"""Agents of one reply, where nobody asks for less."""

_OPENED = 200
"""Listings that are read whole while others wait: some 20 ms."""


def add_skills(agent: Agent, directory: Directory, search: SkillSearch, access: Access) -> None:
    """Give the hub's agent its list; ``access`` says which agents a caller sees."""
    agents = AgentSearch(search)

    @agent.skill(expose=True, read_only=True)
    async def list_agents(
        ctx: Context,
        role: Annotated[str | None, Field(description="Only agents with this role")] = None,
        query: Annotated[
            str, Field(description="Words of what is wanted: only agents that fit, best first")
        ] = "",
        limit: Annotated[int, Field(ge=1, le=PAGE, description="At most so many at once")] = PAGE,
        after: Annotated[str | None, Field(description="Go on behind here: next of the reply before")] = None,
    ) -> Json:
        """Lists the agents of the mesh: what they offer, whether they answer, and what is missing."""
        await directory.ensure_fresh()
        scopes, view = ctx.principal.scopes, access.view_of(ctx.principal)

        def accept(entry: Entry) -> bool:
            return (
                is_seen(view, entry.name)
                and (role is None or entry.has_role(role, scopes))
                and directory.stands(entry)
            )

        following = None
        if query.strip():
            # or those that the caller sees not would take the places of those that it sees
            within = None if view is None else [one.id for one in await _list_page(directory, accept)]
            hits = agents.find_agents(query, scopes, limit=limit, within=within, accept=accept)
            entries = [hit.entry for hit in hits]
        else:
            entries = await _list_page(directory, accept, _parse_place(after), limit + 1)
            if len(entries) > limit:
                entries = entries[:limit]
                following = _render_place(entries[-1].id)
        reply: Json = {"agents": await _render_rows(directory, entries, scopes)}
        if following is not None:
            reply["next"] = following
        return {**reply, "missing": list_missing(directory, view)}


async def _list_page(
    directory: Directory,
    accept: Callable[[Entry], bool],
    after: ListingKey | None = None,
    limit: int | None = None,
) -> list[Entry]:
    """Those that are accepted behind ``after``, at most ``limit``."""
    found: list[Entry] = []
    async for page in directory.iterate_pages(after):
        found += filter(accept, page)
        if limit is not None and len(found) >= limit:
            break
    return found[:limit]


async def _render_rows(directory: Directory, entries: Sequence[Entry], scopes: frozenset[str]) -> list[Json]:
    rows: list[Json] = []
    for start in range(0, len(entries), _OPENED):
        listings = directory.open_all(entries[start : start + _OPENED])
        rows += [render_agent_row(one, scopes=scopes) for one in listings]
        await asyncio.sleep(0)
    return rows


def _render_place(listing_id: ListingKey) -> str:
    return f"{listing_id.key} {listing_id.source}"


def _parse_place(text: str | None) -> ListingKey | None:
    if text is None:
        return None
    key, space, source = text.partition(" ")
    if not space:
        raise InvalidSettingError("after", "no place in the list", remedy="give next of the reply before")
    return ListingKey(source, key)
