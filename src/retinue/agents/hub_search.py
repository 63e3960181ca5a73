"""The hub's skill ``find_skills``: by id, by words, by agent, each narrowed by version and labels."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import structlog
from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.errors import RetinueError, StateError
from retinue.core.record import Listing, ListingKey, Skill
from retinue.mesh.access import Access, AgentView
from retinue.mesh.access import within as visible_agents
from retinue.mesh.directory import Directory
from retinue.mesh.routing import select_candidates
from retinue.mesh.search.explaining import explain_place
from retinue.mesh.search.ranking import Found, SkillSearch, rank_skills
from retinue.mesh.visibility import is_visible
from retinue.protocols.agent_row import render_skill_row

Json = dict[str, Any]
Offer = tuple[Listing, Skill]

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
            listings = await directory.resolve_skill(
                skill, scopes, version_range=version, agent=agent, view=view
            )
            offers = finder.list_offers(select_candidates(listings, labels=labels), scopes, skill)
        else:
            await directory.ensure_fresh()
            within = None
            if view is not None or agent is not None or version is not None or labels or not query.strip():
                seen = visible_agents(view, directory.list_all())
                within = select_candidates(seen, agent=agent, version_range=version, labels=labels)
            if query.strip():
                explained = None if why is None else directory.get(why, view=view)
                offers, said = finder.find(query, scopes, within, limit, explained)
                if view is not None:
                    said.pop("did_you_mean", None)  # it may be a word of an agent that the caller sees not
            else:
                offers = finder.list_offers(within or (), scopes)
        return {
            "skills": [render_skill_row(listing, offer) for listing, offer in offers[:limit]],
            "more": max(0, len(offers) - limit),
            **said,
            "missing": list_missing(directory, view),
        }


class _Finder:
    """Looks into the directory, by words through the search."""

    def __init__(self, directory: Directory, search: SkillSearch) -> None:
        self._directory = directory
        self._search = search

    @staticmethod
    def list_offers(
        listings: tuple[Listing, ...], scopes: frozenset[str], skill_id: str | None = None
    ) -> list[Offer]:
        """Every visible skill of these listings, or the one of this id."""
        return [
            (listing, offer)
            for listing in listings
            for offer in listing.record.skills
            if (skill_id is None or offer.id == skill_id) and is_visible(offer, scopes)
        ]

    def find(
        self,
        query: str,
        scopes: frozenset[str],
        within: tuple[Listing, ...] | None,
        limit: int,
        why: Listing | None,
    ) -> tuple[list[Offer], Json]:
        """The skills that fit some words, and what to say beside them."""
        keys: list[ListingKey] | None = None if within is None else [one.id for one in within]
        stands = self._directory.stands
        try:
            found = self._search.find_skills(query, scopes, limit=limit, within=keys, accept=stands)
        except StateError as error:
            # a full or damaged disk must not take the search away, only its speed and its finer points
            _log.warning("text index unusable", error=error.message)
            listings = self._directory.list_all() if within is None else within
            return list(rank_skills(query, listings, scopes)), {"warning": error.message}
        said = _say_found(found)
        if why is not None:
            said["why"] = asdict(explain_place(query, why, scopes, self._search, within=keys, accept=stands))
        return [(hit.listing, hit.skill) for hit in found.hits], said


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
