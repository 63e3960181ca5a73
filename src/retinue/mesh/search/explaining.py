"""Why an agent stands where it stands among what was found, or is not there (``find --why NAME``)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from retinue.core.record import Listing, ListingKey
from retinue.mesh.search.ranking import Accept, Scopes, SkillSearch, visible_to
from retinue.mesh.search.scoring import Query, coverage, score_skill

_FAR = 1_000


@dataclass(frozen=True, slots=True)
class Explanation:
    """``place`` counts from 1, None where the agent is not found; ``reasons`` are sentences for a person.

    ``shared`` are the words asked that its best ``skill`` speaks of (``coverage`` is their share,
    rare words weighing more), ``missing`` the others.
    """

    agent: str
    place: int | None
    skill: str | None
    coverage: float
    shared: tuple[str, ...]
    missing: tuple[str, ...]
    reasons: tuple[str, ...]


def explain_place(
    text: str,
    listing: Listing,
    scopes: Scopes,
    search: SkillSearch,
    *,
    within: Collection[ListingKey] | None = None,
    accept: Accept | None = None,
) -> Explanation:
    """Why ``listing`` is, or is not, among what `SkillSearch.find_skills` gives for the text.

    A skill that these scopes do not see is never mentioned.
    """
    query, found = search.rank_skills(text, scopes, limit=_FAR, within=within, accept=accept)
    skills = search.index.list_skills([listing.id], visible_to(scopes))
    best = max(skills, key=lambda skill: score_skill(skill, query), default=None)
    places = (place for place, one in enumerate(found[:_FAR], start=1) if one.entry.id == listing.id)
    place = next(places, None)
    held = set(" ".join(best.fields).split()) if best is not None else set()
    shared = tuple(word for stem, word in query.asked.items() if _speaks_of(stem, held, query))
    return Explanation(
        listing.record.name,
        place,
        best.skill_id if best is not None and shared else None,
        coverage(best, query) if best is not None else 0.0,
        shared,
        tuple(word for word in query.asked.values() if word not in shared),
        tuple(_reasons(listing, place, bool(skills), bool(shared), query, within)),
    )


def _speaks_of(stem: str, held: set[str], query: Query) -> bool:
    return stem in held or any(query.origin.get(other) == stem for other in held & query.wide.keys())


def _reasons(
    listing: Listing,
    place: int | None,
    has_skills: bool,
    has_shared: bool,
    query: Query,
    within: Collection[ListingKey] | None,
) -> list[str]:
    said = []
    if not query.asked:
        said.append("the text has no words")
    elif not has_skills:
        said.append("it offers no skill that you may see")
    elif not has_shared:
        said.append(f"none of its skills speaks of: {', '.join(query.asked.values())}")
    elif within is not None and listing.id not in within:
        said.append("a filter leaves it out")
    elif place is None:
        said.append("too many skills answer better, or another listing stands for the same agent")
    else:
        said.append(f"it is number {place} of what was found")
    if not listing.enabled:
        said.append("it is disabled")
    if listing.reachable is False:
        said.append(f"it does not answer: {listing.last_error or 'no reason is known'}")
    return said
