"""The skills that a step ``think`` may call: those that patterns name, and those that a search finds.

Both are read as the caller of the run sees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from retinue.core.record import Candidate, Listing, Skill
from retinue.core.trust import Trust
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.versions import version_preference
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import AgentView, is_seen, may_call
from retinue.mesh.search.ranking import SkillSearch
from retinue.thinking.toolbox import matches
from retinue.workflows.caller import Choice, SkillOffer

TRUSTED = Trust.IMPORTED
"""Of agents that are trusted less no skill is found, because open networks let anybody list an agent."""

POLLING_TAG = "polling"

_YIELD_EVERY = 1_000


def make_offer(choice: Choice, agent: str, skill: Skill | None) -> SkillOffer:
    """The offer of a skill by an agent of this plain name."""
    if skill is None:
        return SkillOffer(choice, agent)
    return SkillOffer(
        choice,
        agent,
        skill.description or skill.title or "",
        is_read_only=skill.hints.read_only,
        polls=POLLING_TAG in skill.tags,
    )


MakeChoice = Callable[[str, Candidate, str, Listing], Choice]
"""The choice of a skill of a candidate, which a name means alone, by its listing."""


class SkillOffers:
    """The skills of a directory; without ``search`` none is found by words."""

    def __init__(self, directory: Directory, search: SkillSearch | None, make_choice: MakeChoice) -> None:
        self._directory = directory
        self._search = search
        self._make_choice = make_choice

    async def list_matching(
        self, pattern: str, scopes: frozenset[str], view: AgentView | None, limit: int
    ) -> list[SkillOffer]:
        """The skills that a glob names, in the order of agents; of versions of an agent the newest.

        A skill that is in no list of tools is not named by a glob.
        """
        await self._directory.ensure_fresh(for_call=True)
        offers: list[SkillOffer] = []
        seen = 0
        async for page in self._directory.iterate_pages():
            for entry in page:
                seen += 1
                if seen % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
                if entry.enabled and is_seen(view, entry.name) and self._directory.represents_agent(entry):
                    offers += self._match(entry, pattern, scopes)
                if len(offers) >= limit:
                    return offers[:limit]
        return offers

    def _match(self, entry: Entry, pattern: str, scopes: frozenset[str]) -> list[SkillOffer]:
        ids = [one for one in entry.list_skills(scopes) if matches(pattern, entry.name, one)]
        listing = self._directory.find_listing(entry.id) if ids else None
        if listing is None:
            return []
        offers = [self._offer(entry, listing, one, scopes) for one in ids]
        return [offer for offer, skill in offers if offer is not None and skill is not None and skill.listed]

    def _offer(
        self, entry: Entry, listing: Listing, skill_id: str, scopes: frozenset[str]
    ) -> tuple[SkillOffer | None, Skill | None]:
        skill = listing.record.find_skill(skill_id)
        if skill is None or not may_call(skill, scopes):
            return None, None
        choice = self._make_choice(self._directory.name_of(entry), entry, skill_id, listing)
        return make_offer(choice, entry.name, skill), skill

    async def find(
        self, what: str, scopes: frozenset[str], view: AgentView | None, limit: int
    ) -> list[SkillOffer]:
        """The skills of trusted agents that fit a description, best first."""
        if self._search is None or not what.strip():
            return []
        await self._directory.ensure_fresh()
        within = None
        if view is not None:
            within = [
                entry.id
                async for page in self._directory.iterate_pages()
                for entry in page
                if is_seen(view, entry.name)
            ]
        found = self._search.find_skills(what, scopes, limit=limit, within=within, accept=self._is_offered)
        # of equal hits the version that a call without a range gets is first
        hits = sorted(found.hits, key=lambda hit: version_preference(hit.entry), reverse=True)
        hits.sort(key=lambda hit: (hit.entry.deprecated, -round(hit.score, 9)))
        offers: list[SkillOffer] = []
        for hit in hits:
            listing = self._directory.find_listing(hit.entry.id)
            if listing is not None:
                offer, _ = self._offer(hit.entry, listing, hit.skill.id, scopes)
                offers += [offer] if offer is not None else []
        return offers

    def _is_offered(self, entry: Entry) -> bool:
        return entry.enabled and entry.trust <= TRUSTED and self._directory.represents_agent(entry)


def list_once(offers: Sequence[SkillOffer]) -> list[SkillOffer]:
    """The offers without those that an earlier one repeats."""
    known: dict[tuple[str, str], SkillOffer] = {}
    for offer in offers:
        known.setdefault((offer.choice.agent, offer.skill), offer)
    return list(known.values())
