"""The tools ``list_agents`` and ``get_capabilities``, which show agents and their capabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.rows import render_agent_row
from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError
from retinue.core.record import Listing, ListingKey
from retinue.hub.orchestration.roster import Roster
from retinue.hub.orchestration.tool_schemas import CHECKED, DESCRIPTIONS
from retinue.hub.resources import decide_and_keep
from retinue.hub.search import list_missing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.routing import parse_role
from retinue.mesh.entry import Entry
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.permissions import Access, AgentView, decide_listings, is_seen, narrow_record
from retinue.mesh.search.agents import AgentSearch
from retinue.workflows.definitions.definition import DEFAULT_ROLE

Json = dict[str, Any]

SpendingOf = Callable[[str], Mapping[str, Any] | None]
"""Today's spending of a model agent, and its limits; None for an agent that is no model of this machine."""

PAGE = 1_000
"""Default and maximum number of agents in one reply."""

_LISTINGS_PER_BATCH = 200
"""Listings read before other tasks may run: about 20 ms."""


def add_capability_skills(
    agent: Agent,
    directory: Directory,
    search: AgentSearch,
    roster: Roster,
    access: Access,
    history: SearchHistory,
    spending_of: SpendingOf = lambda agent: None,
) -> None:
    """Add ``list_agents`` and ``get_capabilities``; ``spending_of`` gives the spending of a model agent.

    Both take the order that ``history`` has learned.
    """
    _add_list_agents(agent, _AgentList(directory, search, roster, history, spending_of), access)
    _add_get_capabilities(agent, search, roster, history)


def _add_list_agents(agent: Agent, agents: _AgentList, access: Access) -> None:
    @agent.skill(
        "list_agents",
        description=DESCRIPTIONS["list_agents"],
        input_schema=CHECKED["list_agents"],
        expose=True,
        read_only=True,
    )
    async def list_all_agents(
        ctx: Context,
        role: str | None = None,
        includeMetrics: bool = False,  # noqa: N803 - the seed's name
        query: str = "",
        detailed: bool = False,
        limit: int = PAGE,
        after: str | None = None,
    ) -> Json:
        await agents.directory.ensure_fresh()
        view = access.view_of(ctx.principal)
        page = await agents.choose(ctx.principal, view, role=role, query=query, limit=limit, after=after)
        scopes = ctx.principal.scopes
        return await agents.render(page, scopes, view, with_metrics=includeMetrics, detailed=detailed)


@dataclass(frozen=True, slots=True)
class _Page:
    """The agents of one reply, and the place after which the next reply begins; None for the last one."""

    entries: Sequence[Entry]
    next_place: str | None = None

    @classmethod
    def of(cls, entries: Sequence[Entry], limit: int) -> Self:
        """The first ``limit`` of these entries."""
        if len(entries) <= limit:
            return cls(entries)
        entries = entries[:limit]
        return cls(entries, _render_place(entries[-1].id))


@dataclass(frozen=True, slots=True)
class _AgentList:
    """Chooses and renders the agents that a caller sees."""

    directory: Directory
    search: AgentSearch
    roster: Roster
    history: SearchHistory
    spending_of: SpendingOf

    async def choose(
        self,
        principal: Principal,
        view: AgentView | None,
        *,
        role: str | None,
        query: str,
        limit: int,
        after: str | None,
    ) -> _Page:
        """The agents for words, those of a role with the best first, or all in the order of the directory."""
        scopes = principal.scopes
        required_role = None if role is None else parse_role(role)

        def accept(entry: Entry) -> bool:
            return (
                is_seen(view, entry.name)
                and (required_role is None or entry.has_role(required_role, scopes))
                and self.directory.represents_agent(entry)
            )

        async def keep(page: Sequence[Entry]) -> Sequence[Entry]:
            return await decide_and_keep(self.directory, list(filter(accept, page)), view, scopes)

        if query.strip():
            # otherwise hidden agents would use up the limit
            within = None if view is None else [entry.id for entry in await self._list_entries(keep)]
            learn = self.history.learn_for(principal, query)
            hits = self.search.find_agents(
                query, scopes, limit=limit, within=within, accept=accept, learn=learn
            )
            return _Page([hit.entry for hit in hits])
        if required_role is None:
            return _Page.of(await self._list_entries(keep, _parse_place(after), limit + 1), limit)
        ranked = {
            member.listing.id: rank
            for rank, member in enumerate(await self.roster.list_with_role(required_role, principal))
        }
        entries = await self._list_entries(keep)
        entries.sort(key=lambda entry: ranked.get(entry.id, len(ranked)))
        return _Page.of(_after(entries, _parse_place(after)), limit)

    async def _list_entries(
        self,
        keep: Callable[[Sequence[Entry]], Awaitable[Sequence[Entry]]],
        after: ListingKey | None = None,
        limit: int | None = None,
    ) -> list[Entry]:
        """The entries after the place ``after`` that ``keep`` leaves of each page, at most ``limit``."""
        entries: list[Entry] = []
        async for page in self.directory.iterate_pages(after):
            entries += await keep(page)
            if limit is not None and len(entries) >= limit:
                break
        return entries[:limit]

    async def render(
        self,
        page: _Page,
        scopes: frozenset[str],
        view: AgentView | None,
        *,
        with_metrics: bool,
        detailed: bool,
    ) -> Json:
        """The reply with a row of each agent; detailed rows show card, exam and spending, too."""
        rows: list[Json] = []
        if detailed and view is not None:
            for listings in self._open(page.entries):
                await decide_listings(view, listings)
        for listings in self._open(page.entries):
            for listing in listings:
                row = self.roster.render_row(listing, with_metrics=with_metrics)
                rows.append(self._add_details(row, listing, scopes, view) if detailed else row)
            await asyncio.sleep(0)
        reply: Json = {"agents": rows}
        if page.next_place is not None:
            reply["next"] = page.next_place
        missing = list_missing(self.directory, view)
        return {**reply, "missing": missing} if missing or detailed else reply

    def _open(self, entries: Sequence[Entry]) -> Iterator[Sequence[Listing]]:
        for start in range(0, len(entries), _LISTINGS_PER_BATCH):
            yield self.directory.open_all(entries[start : start + _LISTINGS_PER_BATCH])

    def _add_details(
        self, row: Json, listing: Listing, scopes: frozenset[str], view: AgentView | None
    ) -> Json:
        shown = replace(listing, record=narrow_record(view, listing, listing.record))
        details = render_agent_row(shown, scopes=scopes)
        if (exam := self.roster.find_exam(listing, with_problems="mesh" in scopes)) is not None:
            details["exam"] = exam
        # what a model costs is the affair of the mesh, not of its clients
        if "mesh" in scopes and (spending := self.spending_of(listing.name)) is not None:
            details["spending"] = dict(spending)
        if (full_name := self.directory.name_of(listing)) != listing.name:
            details["full_name"] = full_name
        return {**details, **row, "health": details["status"]}


def _after(entries: list[Entry], place: ListingKey | None) -> list[Entry]:
    """The entries behind the one at a place; all where it is gone."""
    position = next((number for number, entry in enumerate(entries, 1) if entry.id == place), 0)
    return entries[position:]


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


def _add_get_capabilities(agent: Agent, search: AgentSearch, roster: Roster, history: SearchHistory) -> None:
    @agent.skill(
        "get_capabilities",
        description=DESCRIPTIONS["get_capabilities"],
        input_schema=CHECKED["get_capabilities"],
        expose=True,
        read_only=True,
    )
    async def get_capabilities(ctx: Context, task: str = "", requirements: Json | None = None) -> Json:
        requirements = requirements or {}
        ranked = await roster.recommend(
            requirements.get("role") or DEFAULT_ROLE,
            ctx.principal,
            language=requirements.get("language"),
            context_size=requirements.get("contextSize") or 0,
        )
        if task.strip():
            # the task decides among agents that are equal otherwise: those whose skills fit its words first
            ids = [fit.member.listing.id for fit in ranked]
            learn = history.learn_for(ctx.principal, task)
            hits = search.find_agents(
                task, ctx.principal.scopes, limit=len(ids) or 1, within=ids, learn=learn
            )
            places = {hit.entry.id: place for place, hit in enumerate(hits)}
            ranked = sorted(
                ranked,
                key=lambda fit: (
                    fit.member.status == "unavailable",
                    -(fit.member.score or 0.0),
                    len(fit.warnings),
                    places.get(fit.member.listing.id, len(places)),
                ),
            )
        return {"recommendations": [roster.render_recommendation(fit) for fit in ranked]}
