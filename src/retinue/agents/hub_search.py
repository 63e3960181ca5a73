"""The hub's skill ``find_skills``: by id, by words, by agent, each narrowed by version and labels."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import structlog
from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.errors import RetinueError, StateError
from retinue.core.record import Listing, ListingKey, Skill
from retinue.mesh.access import Access, AgentView, is_seen
from retinue.mesh.directory import Directory
from retinue.mesh.entry import Candidate, Entry
from retinue.mesh.routing import select_candidates
from retinue.mesh.search.explaining import explain_place
from retinue.mesh.search.ranking import Found, SkillSearch, rank_skills
from retinue.mesh.search.words import stem_words
from retinue.protocols.agent_row import render_skill_row

Json = dict[str, Any]
Offer = tuple[Candidate, Skill]

_GLANCED = 5_000
"""Entries looked at before others may run."""

_READ_WHOLE = 500
"""Listings that are read whole while others wait: some 50 ms."""

_log = structlog.get_logger("retinue.search")


def add_skills(agent: Agent, directory: Directory, search: SkillSearch, access: Access) -> None:
    """Give the hub's agent its search; ``access`` says which agents a caller sees."""
    finder = _Finder(directory, search)

    @agent.skill(expose=True, read_only=True)
    async def find_skills(
        ctx: Context,
        query: Annotated[str, Field(description="Words of what is wanted; empty for everything")] = "",
        skill: Annotated[str | None, Field(description="Exactly this skill id")] = None,
        agent: Annotated[str | None, Field(description="Only of this agent")] = None,
        version: Annotated[str | None, Field(description="Only of versions such as >=1.2,<2")] = None,
        labels: Annotated[
            dict[str, str] | None, Field(description="Only of agents with all of these labels; * = any value")
        ] = None,
        why: Annotated[
            str | None, Field(description="Explain the place of this agent, or its absence")
        ] = None,
        limit: Annotated[int, Field(ge=1, le=1000)] = 50,
    ) -> Json:
        """Finds skills by words, by id or by agent, best first."""
        scopes, view = ctx.principal.scopes, access.view_of(ctx.principal)
        said: Json = {}
        if skill is not None:
            offering = await directory.resolve_skill(
                skill, scopes, version_range=version, agent=agent, view=view
            )
            chosen = select_candidates(offering, labels=labels)
            offers, more = finder.open_offers([(one, skill) for one in chosen[:limit]]), len(chosen) - limit
        else:
            await directory.ensure_fresh()
            within = None
            if view is not None or agent is not None or version is not None or labels or not query.strip():
                within = await finder.narrow(agent, version, labels, view)
            if query.strip():
                offers, said = await finder.find(query, scopes, within, limit, why, view)
                more = len(offers) - limit
            else:
                offers, more = await finder.list_offers(within or [], scopes, limit)
        return {
            "skills": [render_skill_row(one, offer) for one, offer in offers[:limit]],
            "more": max(0, more),
            **said,
            "missing": list_missing(directory, view),
        }


class _Finder:
    """Looks into the directory, by words through the search."""

    def __init__(self, directory: Directory, search: SkillSearch) -> None:
        self._directory = directory
        self._search = search

    async def narrow(
        self,
        agent: str | None = None,
        version: str | None = None,
        labels: Mapping[str, str] | None = None,
        view: AgentView | None = None,
    ) -> list[Entry]:
        """The enabled agents of this name, version and labels, within what the caller sees."""
        found: list[Entry] = []
        async for page in self._directory.iterate_pages():
            seen = [one for one in page if is_seen(view, one.name)]
            found += select_candidates(seen, agent=agent, version_range=version, labels=labels)
        return found

    async def list_offers(
        self, entries: Sequence[Entry], scopes: frozenset[str], limit: int
    ) -> tuple[list[Offer], int]:
        """The first of the visible skills of these agents, and how many more there are."""
        first: list[tuple[Entry, str]] = []
        count = 0
        for number, entry in enumerate(entries):
            visible = entry.list_skills(scopes)
            count += len(visible)
            if len(first) < limit:
                first += [(entry, skill_id) for skill_id in visible]
            if number % _GLANCED == 0:
                await asyncio.sleep(0)
        return self.open_offers(first[:limit]), count - limit

    def open_offers(self, wanted: Sequence[tuple[Entry, str]]) -> list[Offer]:
        """These skills of these agents, but for those that are gone."""
        found = ((entry, self._directory.find_skill(entry, skill_id)) for entry, skill_id in wanted)
        return [(entry, offer) for entry, offer in found if offer is not None]

    async def find(
        self,
        query: str,
        scopes: frozenset[str],
        within: Sequence[Entry] | None,
        limit: int,
        why: str | None,
        view: AgentView | None,
    ) -> tuple[list[Offer], Json]:
        """The skills that fit some words, and what to say beside them."""
        keys: list[ListingKey] | None = None if within is None else [one.id for one in within]
        stands = self._directory.stands
        try:
            found = self._search.find_skills(query, scopes, limit=limit, within=keys, accept=stands)
        except StateError as error:
            # a full or damaged disk must not take the search away, only its speed and its finer points
            _log.warning("text index unusable", error=error.message)
            listings = await self._list_likely(query, within)
            return [*rank_skills(query, listings, scopes)], {"warning": error.message}
        said = _say_found(found)
        if why is not None:
            named = self._directory.get(why, view=view)
            said["why"] = asdict(
                explain_place(query, named, scopes, self._search, within=keys, accept=stands)
            )
        if view is not None:
            said.pop("did_you_mean", None)  # it may be a word of an agent that the caller does not see
        return [(hit.entry, hit.skill) for hit in found.hits], said

    async def _list_likely(self, query: str, within: Sequence[Entry] | None) -> list[Listing]:
        """Listings to read for words without an index: all of few, else those whose names have a word."""
        entries = within if within is not None else await self.narrow()
        if len(entries) > _READ_WHOLE:
            stems = [stem for stem, _ in stem_words(query)]
            entries = [
                one for one in entries if any(stem in name.lower() for name in _names(one) for stem in stems)
            ]
        return self._directory.open_all(entries[:_READ_WHOLE])


def _names(entry: Entry) -> tuple[str, ...]:
    return entry.name, *entry.skills


def _say_found(found: Found) -> Json:
    """How far the hits fit; whoever asked is told where nobody seems to, and what may have been meant."""
    said: Json = {
        "more": found.more,
        "fit": {"score": round(found.fit.score, 3), "likely": found.fit.is_likely},
    }
    if found.did_you_mean is not None:
        said["did_you_mean"] = found.did_you_mean
    return said


def list_missing(directory: Directory, view: AgentView | None) -> list[Json]:
    """What could not be read, said with every list (DESIGN 7: one dead source never empties a list).

    Whoever does not see every agent is told of sources only: a key would name an agent.
    """
    return [
        {"source": problem.source, "key": problem.key, "error": _say(problem.error)}
        for problem in directory.problems()
        if view is None or problem.key is None
    ]


def _say(error: RetinueError) -> str:
    return f"{error.message} ({error.remedy})" if error.remedy else error.message
