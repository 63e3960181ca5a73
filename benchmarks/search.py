"""How well the search finds the right skill, beside SQLite FTS5, and what a search costs.

Four sets: MetaTool and the tools of npm packages and OpenAPI documents, of which half chose the weights
and the other half is reported here; AgentDojo and the tools of two trackers, which chose nothing
(`benchmarks.python_tools`). Each is measured whole and in samples of 10, 30 and 60 skills, because most
people have few. Brackets hold the 95 % interval of 1,000 bootstrap samples of the requests.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.find_text import SKILLS_EACH, SOURCE, RandomWords, draw_batches
from benchmarks.python_tools import NoPackagesError, load_dojo, load_tracker
from benchmarks.ranking import (
    SCOPES,
    Catalogue,
    area_under_curve,
    find_metatool,
    load_metatool,
    metatool_catalogue,
    rank_by_fts5,
)
from benchmarks.tool_catalogue import NoToolsError, load_tool_set
from retinue.core.record import Listing, ListingKey, Skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.search.agents import AgentSearch
from retinue.mesh.search.ranking import Fit, SkillSearch, judge_fit, visible_to
from retinue.mesh.search.skill_texts import render_text
from retinue.storage.listing_store import SqliteListings
from retinue.storage.skill_index import SqliteTextIndex
from tests.support.memory_source import MemorySource

SIZES = (10, 30, 60)
QUESTIONS = 1_500
FIT_QUESTIONS = 500
BOOTSTRAPS = 1_000
TWIN_SHARE = 0.3
"""Two skills are twins if they share this part of their words: the size of the intersection by the union."""

OFF_DOMAIN_AUC = 0.85
FIND_MS = 5.0
COSTS = (1_000, 10_000, 100_000)
COST_SEARCHES = 40
FOREIGN = Path(__file__).resolve().parent / "tool_queries" / "foreign.txt"
"""Requests that no set serves, such as for the garden or the kitchen."""

_AT = 5
_UNIT = "%"


@dataclass(frozen=True)
class Score:
    """For each request, whether the first and whether one of the first five skills serves it."""

    first: list[bool]
    five: list[bool]


def measure() -> Iterator[Figure]:
    catalogues = list(_load_sets())
    for catalogue in catalogues:
        yield from _measure_quality(catalogue)
    for catalogue in catalogues:
        yield from _measure_agents(catalogue)
    foreign = FOREIGN.read_text(encoding="utf-8").splitlines()
    for catalogue in catalogues:
        others = [text for other in catalogues if other.name != catalogue.name for text in _draw(other, 100)]
        yield from _measure_fit(catalogue, others, foreign)
    yield from _measure_cost()


def _load_sets() -> Iterator[Catalogue]:
    folder = find_metatool()
    if folder is None:
        print("  SKIPPED: MetaTool is missing; RETINUE_METATOOL names its folder", flush=True)
    else:
        data = load_metatool(folder)
        yield metatool_catalogue(data, data.held_out[:QUESTIONS])
    try:
        tools = load_tool_set()
        requests = [(request.text, request.tools) for request in tools.held_out]
        yield Catalogue("npm and OpenAPI", tools.listings, requests)
    except NoToolsError as error:
        print(f"  SKIPPED: npm and OpenAPI: {error}", flush=True)
    try:
        yield Catalogue("AgentDojo", *load_dojo())
        yield Catalogue("trackers", *load_tracker())
    except NoPackagesError as error:
        print(f"  SKIPPED: AgentDojo and trackers: {error}", flush=True)


def _measure_quality(catalogue: Catalogue) -> Iterator[Figure]:
    for size in (None, *SIZES):
        parts = [catalogue] if size is None else list(sample_catalogues(catalogue, size))
        ours, theirs = Score([], []), Score([], [])
        for part in parts:
            search = part.open_search()
            score_questions(part, lambda text, search=search: _first_skills(search, text), ours)  # type: ignore[misc]
            score_questions(part, rank_by_fts5(part.listings), theirs)
        label = f"{catalogue.name}, {'all' if size is None else size} skills"
        for name, values, others in (
            ("hit@1", ours.first, theirs.first),
            ("recall@5", ours.five, theirs.five),
        ):
            yield Figure(f"{label}: {name} {mean_interval(values)}", _percent(values), _UNIT)
            yield Figure(f"{label}: {name} of FTS5 {mean_interval(others)}", _percent(others), _UNIT)


def sample_catalogues(catalogue: Catalogue, size: int, seed: int = 1) -> Iterator[Catalogue]:
    """The catalogue in parts of ``size`` skills, each with the requests that one of its skills serves.

    Skills of one agent stay together, because the agents of a person have related skills.
    """
    draw = random.Random(seed)
    listings = list(catalogue.listings)
    draw.shuffle(listings)
    offers = [
        (listing, skill)
        for listing in listings
        for skill in draw.sample(listing.record.skills, len(listing.record.skills))
    ]
    for start in range(0, len(offers) - size // 2, size):
        parts: dict[ListingKey, tuple[Listing, list[Skill]]] = {}
        names = set()
        for listing, skill in offers[start : start + size]:
            parts.setdefault(listing.id, (listing, []))[1].append(skill)
            names.add(f"{listing.source}/{skill.id}")
        questions = [question for question in catalogue.questions if not names.isdisjoint(question[1])]
        if questions:
            held = [
                replace(listing, record=replace(listing.record, skills=tuple(skills)))
                for listing, skills in parts.values()
            ]
            yield Catalogue(catalogue.name, held, questions)


def _measure_agents(catalogue: Catalogue) -> Iterator[Figure]:
    """Agents by their own ranking, and by that of their best skills."""
    if len(catalogue.listings) < 2 * _AT or max(len(each.record.skills) for each in catalogue.listings) == 1:
        return
    agents_of: dict[str, set[str]] = {}
    for listing in catalogue.listings:
        for skill in listing.record.skills:
            agents_of.setdefault(f"{listing.source}/{skill.id}", set()).add(listing.key)
    questions = [
        (text, frozenset().union(*(agents_of[tool] for tool in tools))) for text, tools in catalogue.questions
    ]
    search = catalogue.open_search()
    agents = AgentSearch(search)

    def rank_agents(text: str) -> list[str]:
        return [hit.entry.key for hit in agents.find_agents(text, SCOPES, limit=_AT)]

    def rank_by_skill(text: str) -> list[str]:
        hits = search.find_skills(text, SCOPES, limit=50).hits
        return list(dict.fromkeys(hit.entry.key for hit in hits))

    for name, rank in (("agents", rank_agents), ("agents of the best skills", rank_by_skill)):
        score = score_questions(replace(catalogue, questions=questions), rank, Score([], []))
        yield Figure(
            f"{catalogue.name}, {name}: hit@1 {mean_interval(score.first)}", _percent(score.first), _UNIT
        )
        yield Figure(
            f"{catalogue.name}, {name}: recall@5 {mean_interval(score.five)}", _percent(score.five), _UNIT
        )


def _measure_fit(catalogue: Catalogue, others: Sequence[str], foreign: Sequence[str]) -> Iterator[Figure]:
    """The fit of correct answers against that of requests which no skill serves."""
    search = catalogue.open_search()
    twins = _Twins(search, catalogue)
    right: list[Fit] = []
    gone: list[Fit] = []
    for text, tools in catalogue.questions[:FIT_QUESTIONS]:
        hits = search.find_skills(text, SCOPES, limit=1)
        if hits.hits and f"{hits.hits[0].entry.source}/{hits.hits[0].skill.id}" in tools:
            right.append(hits.fit)
        gone.append(twins.fit_without(text, tools))
    groups = {
        "requests of other sets": [search.find_skills(text, SCOPES, limit=1).fit for text in others],
        "requests of other domains": [search.find_skills(text, SCOPES, limit=1).fit for text in foreign],
        "right skill and twins removed": gone,
    }
    yield Figure(f"{catalogue.name}: correct, called unlikely", 100 - _likely(right), _UNIT)
    for name, fits in groups.items():
        if not fits:
            continue
        auc = area_under_curve([fit.score for fit in right], [fit.score for fit in fits])
        target = None if fits is gone else 1 - OFF_DOMAIN_AUC
        yield Figure(f"{catalogue.name}: 1 - AUC against {name}", 1 - auc, "", target)
        yield Figure(f"{catalogue.name}: {name}, called likely", _likely(fits), _UNIT)


class _Twins:
    """Searches without the skills that serve a request, and without their twins."""

    def __init__(self, search: SkillSearch, catalogue: Catalogue) -> None:
        self._search = search
        visible = visible_to(SCOPES)
        self._words = {
            f"{listing.source}/{text.skill_id}": frozenset(" ".join(text.fields[:3]).split())
            for listing in catalogue.listings
            for text in search.index.list_skills([listing.id], visible)
        }

    def fit_without(self, text: str, tools: frozenset[str]) -> Fit:
        removed = {name for name in self._words if any(self._are_twins(name, tool) for tool in tools)}
        query, ranked = self._search.rank_skills(text, SCOPES, limit=_AT)
        left = [hit for hit in ranked if f"{hit.entry.source}/{hit.skill_id}" not in removed]
        return judge_fit(left[0], query) if left else Fit(0.0, False)

    def _are_twins(self, name: str, tool: str) -> bool:
        words, others = self._words[name], self._words[tool]
        return name == tool or len(words & others) > TWIN_SHARE * len(words | others)


def _measure_cost() -> Iterator[Figure]:
    """Searches of one to eight words, common, rare and mistyped, in a directory on SQLite."""
    for skills in COSTS:
        draw = RandomWords(random.Random(1))
        with tempfile.TemporaryDirectory() as folder:
            index, store = SqliteTextIndex(Path(folder) / "db"), SqliteListings(Path(folder) / "db")
            for batch in draw_batches(draw, skills // SKILLS_EACH):
                store.put_all(batch)
                index.put_all([render_text(listing) for listing in batch])
            directory = Directory(store, [MemorySource(SOURCE)])
            search = SkillSearch(
                index,
                directory.find_listing,
                find_entry=directory.find_entry,
                find_skill=directory.find_skill,
            )
            texts = [draw.text(words) for words in (1, 2, 3, 8) for _ in range(COST_SEARCHES)]
            texts += [" ".join(draw.random.sample(draw.words[2000:], 3)) for _ in range(COST_SEARCHES)]
            texts += [draw.mistyped() for _ in range(COST_SEARCHES)]
            search.find_skills(texts[0], SCOPES, limit=_AT)
            began = time.process_time()
            for text in texts:
                search.find_skills(text, SCOPES, limit=_AT, accept=directory.represents_agent)
            spent_ms = (time.process_time() - began) * 1000 / len(texts)
            index.close()
        target = FIND_MS if skills == COSTS[-1] else None
        yield Figure(f"a search among {skills:,} skills, processor time", spent_ms, "ms", target)


def score_questions(catalogue: Catalogue, rank: Callable[[str], Sequence[str]], score: Score) -> Score:
    """The score with that of all questions of the catalogue added."""
    for text, tools in catalogue.questions:
        names = list(rank(text))[:_AT]
        score.first.append(bool(names) and names[0] in tools)
        score.five.append(not tools.isdisjoint(names))
    return score


def _first_skills(search: SkillSearch, text: str) -> list[str]:
    return [f"{hit.entry.source}/{hit.skill.id}" for hit in search.find_skills(text, SCOPES, limit=_AT).hits]


def _draw(catalogue: Catalogue, count: int) -> list[str]:
    questions = list(catalogue.questions)
    return [text for text, _ in random.Random(1).sample(questions, min(count, len(questions)))]


def _percent(values: Sequence[bool]) -> float:
    return 100 * sum(values) / len(values)


def _likely(fits: Sequence[Fit]) -> float:
    return _percent([fit.is_likely for fit in fits])


def mean_interval(values: Sequence[bool]) -> str:
    """The 95 % interval of the mean, as text."""
    draw = random.Random(1)
    means = sorted(_percent(draw.choices(values, k=len(values))) for _ in range(BOOTSTRAPS))
    return f"[{means[BOOTSTRAPS // 40]:.1f}, {means[-BOOTSTRAPS // 40 - 1]:.1f}]"
