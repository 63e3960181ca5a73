"""The skills that a step ``think`` may call: those that patterns name, and those that a search finds.

Both are read as the caller of the run sees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from retinue.core.call import Principal
from retinue.core.record import Listing, Skill
from retinue.core.trust import Trust
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.versions import version_preference
from retinue.mesh.entry import Entry
from retinue.mesh.exams import ExamBook
from retinue.mesh.history.search_history import SearchHistory, find_run_id
from retinue.mesh.permissions import AgentView, decide_lists, is_listed, is_seen, may_call
from retinue.mesh.search.ranking import SkillSearch
from retinue.thinking.toolbox import matches
from retinue.workflows.caller import Choice, SkillOffer

TRUSTED = Trust.IMPORTED
"""Skills of agents that are trusted less are not found, because open networks let anybody list an agent."""

POLLING_TAG = "polling"

_YIELD_EVERY = 1_000


class SkillOfEntry(NamedTuple):
    """A skill, with where the directory lists its agent."""

    entry: Entry
    listing: Listing
    skill: Skill


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


class SkillOffers:
    """The skills of a directory; without ``search`` none is found by words."""

    def __init__(
        self,
        directory: Directory,
        search: SkillSearch | None,
        history: SearchHistory | None = None,
        exams: ExamBook | None = None,
    ) -> None:
        self._exams = exams or ExamBook()
        self._directory = directory
        self._search = search
        self._history = history

    async def list_matching(
        self, pattern: str, scopes: frozenset[str], view: AgentView | None, limit: int
    ) -> list[SkillOfEntry]:
        """The skills that a glob names, in the order of agents; of versions of an agent the newest.

        A skill that is in no list of tools is not named by a glob.
        """
        await self._directory.ensure_fresh(for_call=True)
        skills: list[SkillOfEntry] = []
        seen = 0
        async for page in self._directory.iterate_pages():
            for entry in page:
                seen += 1
                if seen % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
                if entry.enabled and is_seen(view, entry.name) and self._directory.represents_agent(entry):
                    matching = self._match(entry, pattern, scopes)
                    await decide_lists(view, ((offer.entry, offer.skill) for offer in matching))
                    skills += [offer for offer in matching if is_listed(view, offer.entry, offer.skill)]
                if len(skills) >= limit:
                    return skills[:limit]
        return skills

    def _match(self, entry: Entry, pattern: str, scopes: frozenset[str]) -> list[SkillOfEntry]:
        ids = [skill_id for skill_id in entry.list_skills(scopes) if matches(pattern, entry.name, skill_id)]
        return [offer for offer in self._open_skills(entry, ids, scopes) if offer.skill.listed]

    def _open_skills(
        self, entry: Entry, skill_ids: Sequence[str], scopes: frozenset[str]
    ) -> list[SkillOfEntry]:
        """The skills among these that the caller may call."""
        listing = self._directory.find_listing(entry.id) if skill_ids else None
        if listing is None:
            return []
        skills = [listing.record.find_skill(skill_id) for skill_id in skill_ids]
        return [
            SkillOfEntry(entry, listing, skill)
            for skill in skills
            if skill is not None and may_call(skill, scopes)
        ]

    async def find(
        self, what: str, principal: Principal, view: AgentView | None, limit: int, *, run_id: str = ""
    ) -> list[SkillOfEntry]:
        """The skills of trusted agents that fit a description, best first; ``run_id`` = the run that asks."""
        scopes, history = principal.scopes, self._history
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
        found = self._search.find_skills(
            what,
            scopes,
            limit=limit,
            within=within,
            accept=self._is_offered,
            learn=None if history is None else history.learn_for(principal, what),
        )
        # of equal hits the version that a call without a range gets is first
        hits = sorted(found.hits, key=lambda hit: version_preference(hit.entry), reverse=True)
        hits.sort(key=lambda hit: (hit.entry.deprecated, -round(hit.score, 9)))
        offers = [offer for hit in hits for offer in self._open_skills(hit.entry, [hit.skill.id], scopes)]
        await decide_lists(view, ((offer.entry, offer.skill) for offer in offers))
        listed = [offer for offer in offers if is_listed(view, offer.entry, offer.skill)]
        if history is not None:
            shown, is_wish = [(offer.entry, offer.skill.id) for offer in listed], found.is_wish or not listed
            history.note_search(principal, what, shown, is_wish=is_wish, run=find_run_id(run_id))
        return listed

    def _is_offered(self, entry: Entry) -> bool:
        return (
            entry.enabled
            and entry.trust <= TRUSTED
            and self._exams.may_choose(entry)
            and self._directory.represents_agent(entry)
        )


def list_once(offers: Sequence[SkillOffer]) -> list[SkillOffer]:
    """The offers without those that an earlier one repeats."""
    known: dict[tuple[str, str], SkillOffer] = {}
    for offer in offers:
        known.setdefault((offer.choice.agent, offer.skill), offer)
    return list(known.values())
