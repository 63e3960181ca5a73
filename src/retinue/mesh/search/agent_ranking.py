"""Which agent fits a request, rather than which skill.

Three orders are fused by reciprocal rank: all skills of an agent as one text, its three best skills
together, and what it says of itself. An agent's own description alone was far behind (FACTS 5).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from retinue.core.record import ListingKey
from retinue.mesh.entry import Entry
from retinue.mesh.search.ranking import Accept, Scopes, SkillSearch, visible_to
from retinue.mesh.search.scoring import Query, read_query, score_fields, score_skill
from retinue.mesh.search.skill_texts import SkillText

TOP_SKILLS = 3
FUSION_RANK = 60
"""The constant of reciprocal-rank fusion as its authors use it (Cormack, Clarke, Büttcher 2009)."""

CANDIDATES = 50
"""Agents that are read whole, those with the best skills first."""


@dataclass(frozen=True, slots=True)
class AgentHit:
    """An agent and how it stands among the others; the score is no measure of fit."""

    entry: Entry
    score: float


class AgentSearch:
    """Text search for agents over the index of a `SkillSearch`."""

    def __init__(self, search: SkillSearch) -> None:
        self._search = search

    def find_agents(
        self,
        text: str,
        scopes: Scopes,
        *,
        limit: int = 20,
        within: Collection[ListingKey] | None = None,
        accept: Accept | None = None,
    ) -> tuple[AgentHit, ...]:
        """The agents with visible skills that answer ``text``, best first.

        ``within`` narrows to some listings, ``accept`` to those of the found that it likes.
        """
        self._search.catch_up()
        query = read_query(text, self._search.index)
        best: dict[ListingKey, float] = {}
        for skill in self._search.list_candidates(query, scopes, within) if query.asked else ():
            best[skill.listing_id] = max(best.get(skill.listing_id, 0.0), score_skill(skill, query))
        chosen = heapq.nlargest(CANDIDATES, best, key=best.__getitem__)
        texts: dict[ListingKey, list[SkillText]] = {}
        for skill in self._search.index.list_skills(chosen, visible_to(scopes)):
            texts.setdefault(skill.listing_id, []).append(skill)
        hits = []
        for listing_id, score in fuse(_orders(texts, query)).items():
            entry = self._search.find_entry(listing_id)
            if entry is not None and (accept is None or accept(entry)):
                hits.append(AgentHit(entry, score))
        hits.sort(key=lambda hit: (-hit.score, hit.entry.reachable is False, hit.entry.id))
        return tuple(hits[:limit])


def fuse(orders: Sequence[Mapping[ListingKey, float]]) -> dict[ListingKey, float]:
    """One score out of several orders, each given by its scores; those that one does not name gain nothing.

    Equal scores share the better rank, so that an order that tells nothing changes nothing.
    """
    fused: dict[ListingKey, float] = {}
    for scores in orders:
        rank, last = 0, None
        for place, (name, score) in enumerate(sorted(scores.items(), key=lambda one: -one[1]), start=1):
            if score != last:
                rank, last = place, score
            if score > 0.0:
                fused[name] = fused.get(name, 0.0) + 1.0 / (FUSION_RANK + rank)
    return fused


def _orders(texts: Mapping[ListingKey, list[SkillText]], query: Query) -> list[dict[ListingKey, float]]:
    mean = query.corpus.mean_length
    skills_each = sum(map(len, texts.values())) / len(texts) if texts else 1.0
    fields = {name: [skill.fields for skill in skills] for name, skills in texts.items()}
    return [
        {name: score_fields(one, query, mean * skills_each) for name, one in fields.items()},
        {
            name: sum(heapq.nlargest(TOP_SKILLS, (score_skill(skill, query) for skill in skills)))
            for name, skills in texts.items()
        },
        {name: score_fields(one, query, mean, only_agent=True) for name, one in fields.items()},
    ]
