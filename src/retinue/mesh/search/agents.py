"""Finds agents by words, and explains the rank of an agent (``find --why NAME``)."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from retinue.core.record import Listing, ListingKey
from retinue.mesh.entry import Entry
from retinue.mesh.search.ranking import (
    Accept,
    Learn,
    RankedSkill,
    Scopes,
    SkillSearch,
    visible_to,
)
from retinue.mesh.search.scoring import match_asked, score_fields, score_skill
from retinue.mesh.search.skill_texts import SkillText

CANDIDATES = 50
"""How many agents are scored as a whole: those with the best skills."""

NEXT_SKILLS = 2
NEXT_WEIGHT = 0.1
"""How many skills after the best one count for an agent, and the share of their scores."""

DOCUMENT_WEIGHT = 0.25
"""The share of the score of all text of an agent; more of it favours agents of many skills."""


@dataclass(frozen=True, slots=True)
class AgentHit:
    """An agent with its score; scores are comparable within one query only."""

    entry: Entry
    score: float


class AgentSearch:
    """Text search for agents over the index of a `SkillSearch`.

    ``candidates`` = how many agents are scored as a whole: those with the best skills.
    """

    def __init__(self, search: SkillSearch, *, candidates: int = CANDIDATES) -> None:
        self._search = search
        self._candidates = candidates

    def find_agents(
        self,
        text: str,
        scopes: Scopes,
        *,
        limit: int = 20,
        within: Collection[ListingKey] | None = None,
        accept: Accept | None = None,
        learn: Learn | None = None,
    ) -> tuple[AgentHit, ...]:
        """Find the agents with visible skills that match a word of ``text``, best first.

        ``within`` limits the search to some listings, ``accept`` to those for which it returns True.
        The score of an agent is that of its best skill, plus a share of the next two, plus a share of that
        of all its visible text as one document. ``learn`` changes it as that of the skill in
        `SkillSearch.find_skills`, and adds agents that match no word.
        """
        query, candidates = self._search.find_candidates(text, scopes, within)
        best: dict[ListingKey, float] = {}
        for skill in candidates:
            best[skill.listing_id] = max(best.get(skill.listing_id, 0.0), score_skill(skill, query))
        chosen = heapq.nsmallest(self._candidates, best, key=lambda key: (-best[key], key))
        agents: dict[ListingKey, list[SkillText]] = {}
        for skill in self._search.index.list_skills(chosen, visible_to(scopes)):
            agents.setdefault(skill.listing_id, []).append(skill)
        mean_length = query.corpus.mean_length * sum(map(len, agents.values())) / max(1, len(agents))
        ranked: list[RankedSkill] = []
        for listing_id, skills in agents.items():
            # of each skill the score that its agent has if it is the best one
            own = [score_skill(skill, query) for skill in skills]
            first, *following = heapq.nlargest(1 + NEXT_SKILLS, own)
            more = NEXT_WEIGHT * sum(following)
            whole = DOCUMENT_WEIGHT * score_fields([skill.fields for skill in skills], query, mean_length)
            entry = self._search.find_entry(listing_id) if first + more + whole > 0.0 else None
            if entry is not None and (accept is None or accept(entry)):
                ranked += (
                    RankedSkill(entry, skill.skill_id, score + more + whole, skill)
                    for skill, score in zip(skills, own, strict=True)
                    if learn is not None or score == first
                )
        if learn is not None and query.asked:
            ranked += self._search.list_proposed(learn, query, ranked, scopes, within=within, accept=accept)
            ranked = learn(query, ranked)
        hits: dict[ListingKey, AgentHit] = {}
        for skill_rank in ranked:
            hit = hits.get(skill_rank.entry.id)
            if hit is None or hit.score < skill_rank.score:
                hits[skill_rank.entry.id] = AgentHit(skill_rank.entry, skill_rank.score)
        ordered = sorted(
            hits.values(), key=lambda hit: (-round(hit.score, 9), hit.entry.reachable is False, hit.entry.id)
        )
        return tuple(ordered[:limit])


_EXPLAINED = 1_000


@dataclass(frozen=True, slots=True)
class Explanation:
    """``place`` is the rank from 1, or None if the agent was not found; ``reasons`` are sentences.

    ``skill`` is the one that gives the agent its place, else the best one by its card, with its ``score``.
    ``shared`` are the words of the query that it matches, ``missing`` the others. ``coverage`` is the share
    of the matched words, from 0 to 1; rare words count for more.
    """

    agent: str
    place: int | None
    skill: str | None
    coverage: float
    shared: tuple[str, ...]
    missing: tuple[str, ...]
    reasons: tuple[str, ...]
    score: float


def explain_place(
    text: str,
    listing: Listing,
    scopes: Scopes,
    search: SkillSearch,
    *,
    within: Collection[ListingKey] | None = None,
    accept: Accept | None = None,
    learn: Learn | None = None,
) -> Explanation:
    """Explain the place of ``listing`` in the result of `SkillSearch.find_skills`.

    Skills that these scopes do not see are not mentioned.
    """
    query, ranked = search.rank_skills(
        text, scopes, limit=_EXPLAINED, within=within, accept=accept, learn=learn
    )
    ids = [agent.entry.id for agent in ranked[:_EXPLAINED]]
    place = ids.index(listing.id) + 1 if listing.id in ids else None
    skills = search.index.list_skills([listing.id], visible_to(scopes))
    first = next((skill for skill in ranked if skill.entry.id == listing.id), None)
    best = max(skills, key=lambda skill: score_skill(skill, query), default=None)
    score = 0.0 if best is None else score_skill(best, query)
    if first is not None:
        best, score = first.text, first.score
    matched = match_asked(best, query) if best is not None and score > 0.0 else {}
    whole = sum(query.rarity.values())
    shared = tuple(word for stem, word in query.asked.items() if stem in matched)
    missing = tuple(word for stem, word in query.asked.items() if stem not in matched)

    def reasons() -> Iterator[str]:
        if not query.asked:
            yield "the text has no words"
        elif not skills:
            yield "it offers no skill that you may see"
        elif not shared and best is not None and place is not None:
            lacks = f"{best.skill_id} does not speak of: {', '.join(missing)}"
            yield f"it is number {place} by earlier calls; {lacks}"
        elif not shared:
            yield f"none of its skills speaks of: {', '.join(missing)}"
        elif within is not None and listing.id not in within:
            yield "a filter leaves it out"
        elif place is None:
            yield "too many skills answer better, or another listing represents the same agent"
        else:
            yield f"it is number {place} of what was found"
        if not listing.enabled:
            yield "it is disabled"
        if listing.reachable is False:
            yield f"it does not answer: {listing.last_error or 'no reason is known'}"

    return Explanation(
        listing.record.name,
        place,
        best.skill_id if best is not None and score > 0.0 else None,
        sum(query.rarity[stem] * weight for stem, weight in matched.items()) / whole if whole else 0.0,
        shared,
        missing,
        tuple(reasons()),
        score,
    )
