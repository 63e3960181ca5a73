"""How the history of calls changes the ranking: after 1, 5 and 20 uses, never used, with wrong reports.

The questions of MetaTool are split as in `benchmarks.ranking`. A use is a question of the tuning half whose
right tool was called and was done; a wrong report names another tool that the search gave. The weights were
chosen with ``python -m benchmarks.history choose``, which asks other questions of the tuning half and of
the sets of `benchmarks.intents`. The figures below ask the held-out half, and the other sets of
`benchmarks.history_sets`, which took no part; a set that is missing is named and left out. Each set begins
with hit@1 and recall@5 without history, beside those of SQLite FTS5 with its ``porter`` tokenizer. A tenth,
or half, of the tools are never used. A figure is the change of hit@1 or recall@5 in points, with its 95 %
interval of 400 bootstrap samples of the questions.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

from benchmarks.figures import Figure
from benchmarks.history_sets import HistorySet, load_sets
from benchmarks.intents import load_acid, load_banking, load_bfcl, load_clinc
from benchmarks.ranking import (
    SCOPES,
    Catalogue,
    Question,
    find_metatool,
    load_metatool,
    metatool_catalogue,
    rank_by_fts5,
)
from benchmarks.search import Score, mean_interval, score_questions
from retinue.mesh.entry import Entry
from retinue.mesh.history import learned_ranking, request_likelihood
from retinue.mesh.history.experience_book import MAX_RECORDS, ExperienceBook
from retinue.mesh.history.learned_ranking import LearnedRanking
from retinue.mesh.history.records import Experience, Hashes, SkillKey
from retinue.mesh.search.ranking import SkillSearch

USES = (1, 5, 20)
CASES = ((1, 0.0), (5, 0.0), (5, 0.1), (5, 0.3), (20, 0.0))
"""Uses of each tool, and the share of wrong reports."""

SPARSE_CASES = ((1, 0.0),)
"""The same for sets with one use of a tool."""

QUESTIONS = 1_000
"""Questions of each set."""

BOOTSTRAPS = 400
SHARES = (0.9, 0.5)
GAIN = 8.0
GAIN_USES = 5
FULL_MS = 3.0
FULL_MOST_MS = 10.0
"""What it may cost to find similar records in a full history."""

_CALLERS = 2_000
_MORE_RECORDS = 500
"""Records beyond a full history, for each of which one is dropped."""

_ASKED_FULL = 200
_HASHES = Hashes(b"benchmark")


@dataclass(frozen=True)
class Result:
    """Whether the first, and one of the first five skills serves each question, of used and unused tools."""

    first: Mapping[bool, list[bool]]
    five: Mapping[bool, list[bool]]


def measure() -> Iterator[Figure]:
    """The figures of each set that is there, then the cost with the first dense one."""
    dense: HistorySet | None = None
    for one in load_sets():
        dense = dense or (None if one.is_sparse else one)
        yield from measure_set(one)
    if dense is None:
        print("  SKIPPED: cost of a search; no set with many requests for each tool is there", flush=True)
        return
    catalogue, uses = dense.catalogue, dense.uses
    search = catalogue.open_search()
    yield from _measure_cost(search, catalogue, use(search, uses, pick_used(catalogue, 1.0), 20, 0.0))
    yield from _measure_full(catalogue, uses)


def measure_set(one: HistorySet) -> Iterator[Figure]:
    """The figures of one set: without history and of FTS5, then what the uses change."""
    catalogue = replace(one.catalogue, questions=one.catalogue.questions[:QUESTIONS])
    search = catalogue.open_search()
    yield from _measure_cards(catalogue, search)
    if one.is_sparse:
        used = frozenset[str]().union(*(tools for _, tools in one.uses))
        yield from _measure_uses(f"{catalogue.name}, {len(used)} tools used", search, catalogue, one, used)
        return
    for share in SHARES:
        name = f"{catalogue.name}, {share:.0%} of the tools used"
        yield from _measure_uses(name, search, catalogue, one, pick_used(catalogue, share))


def _measure_cards(catalogue: Catalogue, search: SkillSearch) -> Iterator[Figure]:
    """All questions of a set, without history and by FTS5."""
    every = ask(search, catalogue.questions, frozenset(), ExperienceBook())
    theirs = score_questions(catalogue, rank_by_fts5(catalogue.listings), Score([], []))
    name = f"{catalogue.name}, {len(catalogue.questions)} questions"
    for label, ours, others in (
        ("hit@1", every.first[False], theirs.first),
        ("recall@5", every.five[False], theirs.five),
    ):
        yield Figure(f"{name}, no history: {label} {mean_interval(ours)}", percent(ours), "%")
        yield Figure(f"{name}, FTS5: {label} {mean_interval(others)}", percent(others), "%")


def _measure_uses(
    name: str, search: SkillSearch, catalogue: Catalogue, one: HistorySet, used: frozenset[str]
) -> Iterator[Figure]:
    before = ask(search, catalogue.questions, used, ExperienceBook())
    for is_used, group in ((True, "used"), (False, "never used")):
        asked = f"{name}, {len(before.first[is_used])} questions of {group} tools, no history"
        yield Figure(f"{asked}: hit@1", percent(before.first[is_used]), "%")
        yield Figure(f"{asked}: recall@5", percent(before.five[is_used]), "%")
    for uses, wrong in SPARSE_CASES if one.is_sparse else CASES:
        after = ask(search, catalogue.questions, used, use(search, one.uses, used, uses, wrong))
        told = f"{name}, {uses} {'use' if uses == 1 else 'uses'}" + (f", {wrong:.0%} wrong" if wrong else "")
        has_target = (uses, wrong) == (GAIN_USES, 0.0)
        for is_used, group, target in ((True, "used", -GAIN), (False, "never used", 0.0)):
            for label, now, earlier in (
                ("hit@1", after.first[is_used], before.first[is_used]),
                ("recall@5", after.five[is_used], before.five[is_used]),
            ):
                changes = [int(new) - int(old) for new, old in zip(now, earlier, strict=True)]
                if changes:
                    yield Figure(
                        f"{told}, {group}: {label}, points lost {_interval(changes)}",
                        -percent(changes),
                        "",
                        target if has_target and label == "hit@1" else None,
                    )


def _interval(changes: Sequence[int]) -> str:
    """The 95 % interval of the points lost, as text."""
    draw = random.Random(1)
    means = sorted(-percent(draw.choices(changes, k=len(changes))) for _ in range(BOOTSTRAPS))
    return f"[{means[BOOTSTRAPS // 40]:+.1f}, {means[-BOOTSTRAPS // 40 - 1]:+.1f}]"


def percent(values: Sequence[int]) -> float:
    return 100 * sum(values) / max(1, len(values))


def _measure_cost(search: SkillSearch, catalogue: Catalogue, book: ExperienceBook) -> Iterator[Figure]:
    """CPU time of one search without and with the history of 20 uses of each tool."""
    questions = catalogue.questions[:500]
    for name, history in (("without history", ExperienceBook()), ("20 uses of each tool", book)):
        began = time.process_time()
        ask(search, questions, frozenset(), history)
        spent_ms = 1000 * (time.process_time() - began) / len(questions)
        yield Figure(f"{catalogue.name}, one search, {name}: CPU", spent_ms, "ms")


def _measure_full(catalogue: Catalogue, pool: Sequence[Question]) -> Iterator[Figure]:
    """CPU time of what a full history adds: to find similar records, and to keep a call.

    Five agents have each tool. Of 2,000 callers a few make most of the calls.
    """
    book, lot, puts_s = ExperienceBook(), random.Random(5), []
    weights = list(itertools.accumulate(1 / (number + 1) ** 0.8 for number in range(_CALLERS)))
    callers = [_HASHES.of_caller(str(number), is_member=number % 50 == 0) for number in range(_CALLERS)]
    for number in range(MAX_RECORDS + _MORE_RECORDS):
        text, (tool,) = lot.choice(pool)
        (caller,) = lot.choices(callers, cum_weights=weights)
        key = SkillKey(f"source-{lot.randrange(5)}", tool, tool)
        record = Experience(f"{number}", float(number), key, "1", _HASHES.of_request(text), caller, "done")
        began = time.process_time()
        book.put(record)
        puts_s.append(time.process_time() - began)
    found_s = []
    for text, _ in catalogue.questions[:_ASKED_FULL]:
        (caller,) = lot.choices(callers, cum_weights=weights)
        learn = LearnedRanking(book, _HASHES, _find_digest, caller, _HASHES.of_request(text))
        began = time.process_time()
        learn.propose()
        found_s.append(time.process_time() - began)
    name = f"a full history of {len(book):,} records of {book.count_voices():,} callers"
    yield Figure(f"{name}: similar records, median CPU", 1000 * median(found_s), "ms", FULL_MS)
    yield Figure(f"{name}: similar records, most CPU", 1000 * max(found_s), "ms", FULL_MOST_MS)
    yield Figure(f"{name}: to keep a call, median CPU", 1000 * median(puts_s[-_MORE_RECORDS:]), "ms")


def pick_used(catalogue: Catalogue, share: float = 0.5) -> frozenset[str]:
    """This share of the tools, drawn by lot."""
    names = sorted(
        f"{listing.source}/{skill.id}" for listing in catalogue.listings for skill in listing.record.skills
    )
    random.Random(3).shuffle(names)
    return frozenset(names[: round(share * len(names))])


def use(
    search: SkillSearch, questions: Sequence[Question], used: frozenset[str], uses: int, wrong: float
) -> ExperienceBook:
    """The history after so many uses of each of the tools, with a share of wrong reports."""
    book, lot = ExperienceBook(), random.Random(5)
    counts: dict[str, int] = {}
    for number, (text, tools) in enumerate(questions):
        (tool,) = tools
        if tool not in used or counts.get(tool, 0) >= uses:
            continue
        counts[tool] = counts.get(tool, 0) + 1
        if lot.random() < wrong:
            hits = search.find_skills(text, SCOPES, limit=5).hits
            others = [f"{hit.entry.source}/{hit.skill.id}" for hit in hits]
            tool = next((one for one in others if one != tool), tool)
        source, _, skill = tool.partition("/")
        key = SkillKey(source, _entries(search)[source, skill][0].name, skill)
        stems = _HASHES.of_request(text)
        book.put(Experience(f"{number}", 0.0, key, "1", stems, 0, "done"))
    return book


@cache
def _entries(search: SkillSearch) -> Mapping[tuple[str, str], Sequence[Entry]]:
    """The entries of each skill, by source and skill."""
    entries: dict[tuple[str, str], list[Entry]] = {}
    for listing_id, _ in search.index.iterate_digests():
        entry = search.find_entry(listing_id)
        for skill in () if entry is None else entry.skills:
            if entry is not None:
                entries.setdefault((entry.source, skill), []).append(entry)
    return entries


def ask(
    search: SkillSearch, questions: Sequence[Question], used: frozenset[str], book: ExperienceBook
) -> Result:
    """hit@1 with this history; the place of the bandit is not drawn."""
    entries = _entries(search)
    result = Result({True: [], False: []}, {True: [], False: []})
    for text, tools in questions:
        is_used = not tools.isdisjoint(used)
        learn = LearnedRanking(
            book,
            _HASHES,
            _find_digest,
            0,
            _HASHES.of_request(text),
            explored=0.0,
            clock=lambda: 0.0,
            list_entries=lambda key: entries[key.source, key.skill],
        )
        hits = search.find_skills(text, SCOPES, limit=5, learn=learn).hits
        names = [f"{hit.entry.source}/{hit.skill.id}" for hit in hits]
        result.first[is_used].append(bool(names) and names[0] in tools)
        result.five[is_used].append(not tools.isdisjoint(names))
    return result


def _find_digest(entry: Entry, skill: str) -> tuple[str, bool]:
    return "1", True


def choose() -> None:
    """Print what the weights of the history change on sets that chose them, and with one set left out.

    Of the weights with which skills that were never used lose little after five and 20 uses, the best ones
    let used skills gain most after five.
    """
    data = [(catalogue, pool) for catalogue, pool in _load_choosing()]
    results = {weights: [_change(catalogue, pool, weights) for catalogue, pool in data] for weights in _GRID}
    names = [catalogue.name for catalogue, _ in data]
    for left_out in (None, *names):
        kept = [number for number, name in enumerate(names) if name != left_out]
        best = max(results, key=lambda weights: _rate([results[weights][number] for number in kept]))
        print(f"without {left_out}: {dict(zip(_WEIGHTS, best, strict=True))}", flush=True)
        for name, changes in zip(names, results[best], strict=True):
            row = "  ".join(f"{uses} uses {used:+5.1f}/{unused:+5.1f}" for uses, used, unused in changes)
            print(f"  {name}: {row}", flush=True)


_WEIGHTS = ("KEPT_FROM", "OTHER_WORDS", "CARD_CALLS")
_MODULES = (learned_ranking, request_likelihood, request_likelihood)
_GRID = tuple(itertools.product((-1.5, -1.2, -0.9, -0.6), (0.1, 0.15, 0.3), (2.0, 5.0)))
_CHOSEN_BY = 400
"""Questions of each set."""

_MOST_LOST, _MEAN_LOST = 2.5, 0.7
"""The points that never used skills may lose after five or 20 uses on one set, and as the mean of all."""

Change = tuple[int, float, float]
"""Uses, and the points of hit@1 that used and never used skills gain."""


def _load_choosing() -> Iterator[tuple[Catalogue, Sequence[Question]]]:
    """Catalogues with questions, and the questions of their uses."""
    folder = find_metatool()
    if folder is not None:
        tuning = load_metatool(folder).tuning
        half = len(tuning) // 2
        yield metatool_catalogue(load_metatool(folder), tuning[half:][:_CHOSEN_BY]), tuning[:half]
    for load in (load_clinc, load_banking, load_bfcl, load_acid):
        for catalogue, pool in load("tuning"):
            yield replace(catalogue, questions=catalogue.questions[:_CHOSEN_BY]), pool


def _change(catalogue: Catalogue, pool: Sequence[Question], weights: tuple[float, ...]) -> list[Change]:
    search, used = catalogue.open_search(), pick_used(catalogue)
    before = ask(search, catalogue.questions, used, ExperienceBook())
    for module, name, value in zip(_MODULES, _WEIGHTS, weights, strict=True):
        setattr(module, name, value)
    changes = []
    for uses in USES:
        after = ask(search, catalogue.questions, used, use(search, pool, used, uses, 0.0))
        gains = {group: percent(after.first[group]) - percent(before.first[group]) for group in (True, False)}
        changes.append((uses, gains[True], gains[False]))
    return changes


def _rate(changes: Sequence[Sequence[Change]]) -> tuple[float, float]:
    """Greater for better weights: what never used skills lose too much, then the gain after five uses."""
    gains = [used for rows in changes for uses, used, _ in rows if uses == GAIN_USES]
    lost = [-unused for rows in changes for uses, _, unused in rows if uses >= GAIN_USES]
    too_much = max(0.0, max(lost) - _MOST_LOST) + max(0.0, sum(lost) / len(lost) - _MEAN_LOST)
    return -too_much, sum(gains) / len(gains)


if __name__ == "__main__" and sys.argv[1:] == ["choose"]:
    choose()
