"""How well skills are ranked for a request: MetaTool's queries, against plain BM25.

MetaTool (MIT) is data from elsewhere: it is read from ``RETINUE_METATOOL``, or from
``../shared/data/metatool`` beside the project, and skipped where it is absent. The ranking was tuned
on one half of the queries for one tool; the figures are of the other, which no tuning has seen. The
queries for two tools are too few to be split: they were looked at while tuning. So were the tools'
names before the thesaurus was written, hence the figures without it.
"""

from __future__ import annotations

import csv
import math
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import orjson

from benchmarks.figures import Figure
from retinue.core.record import AgentRecord, Example, Listing, Skill
from retinue.mesh.entry import Entry
from retinue.mesh.search import scoring
from retinue.mesh.search.agent_ranking import AgentSearch
from retinue.mesh.search.ranking import Found, SkillSearch
from retinue.mesh.search.text_index import MemoryTextIndex

SCOPES = frozenset({"mesh"})
QUERIES = 4_000
PLAIN_SHARE = 1 / 1.5
"""DESIGN 6: hit@1 and recall@5 at least 1.5 times those of plain BM25."""

SKILLS_PER_AGENT = 5
_AT = 5

Rank = Callable[[str], Sequence[str]]
Question = tuple[str, frozenset[str]]


@dataclass(frozen=True)
class MetaTool:
    """Descriptions by tool, and questions with the tools that fit: one each, or two each."""

    tools: dict[str, str]
    tuned: list[Question]
    unseen: list[Question]
    pairs: list[Question]


def find_metatool() -> Path | None:
    """The folder of the data set, where there is one."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "metatool"
    folder = Path(os.environ.get("RETINUE_METATOOL", beside))
    return folder if (folder / "all_clean_data.csv").is_file() else None


def load_metatool(folder: Path) -> MetaTool:
    """Read the set; queries are split once, by a fixed seed."""
    tools = orjson.loads((folder / "plugin_des.json").read_bytes())
    with (folder / "all_clean_data.csv").open(newline="", encoding="utf-8") as file:
        questions = [(row["Query"], frozenset({row["Tool"]})) for row in csv.DictReader(file)]
    random.Random(7).shuffle(questions)
    pairs = orjson.loads((folder / "multi_tool_query_golden.json").read_bytes())
    half = len(questions) // 2
    return MetaTool(
        tools,
        questions[:half],
        questions[half:][:QUERIES],
        [(row["query"], frozenset(row["tool"])) for row in pairs],
    )


def measure() -> list[Figure]:
    folder = find_metatool()
    if folder is None:
        print("  SKIPPED: MetaTool is absent; RETINUE_METATOOL names its folder", flush=True)
        return []
    data = load_metatool(folder)
    search = _search(data, {})
    ours: Rank = lambda text: _ids(search.find_skills(text, SCOPES, limit=_AT))  # noqa: E731
    plain = _plain_bm25(data.tools)
    figures = []
    for name, questions in (("one tool", data.unseen), ("two tools", data.pairs)):
        for measure_name, mine, theirs in zip(
            ("hit@1", "recall@5"), _quality(ours, questions), _quality(plain, questions), strict=True
        ):
            figures += [
                Figure(f"{name}: {measure_name}", 100 * mine, "%"),
                Figure(f"{name}: plain BM25's {measure_name}", 100 * theirs, "%"),
                Figure(
                    f"{name}: plain BM25's {measure_name} as a share of ours", theirs / mine, "", PLAIN_SHARE
                ),
            ]
    return [
        *figures,
        *_without_thesaurus(data, ours),
        *_with_examples(data),
        *_of_agents(data),
        *_abstaining(data, search),
    ]


def _without_thesaurus(data: MetaTool, ours: Rank) -> list[Figure]:
    with mock.patch.object(scoring, "SYNONYM_WEIGHT", 0.0):
        hit, recall = _quality(ours, data.unseen)
    return [
        Figure("one tool, without synonyms: hit@1", 100 * hit, "%"),
        Figure("one tool, without synonyms: recall@5", 100 * recall, "%"),
    ]


def _with_examples(data: MetaTool) -> list[Figure]:
    """What three examples per skill bring, taken from the tuned half."""
    examples: dict[str, list[str]] = {}
    for text, (tool,) in data.tuned:
        examples.setdefault(tool, []).append(text)
    search = _search(data, {tool: texts[:3] for tool, texts in examples.items()})
    hit, recall = _quality(lambda text: _ids(search.find_skills(text, SCOPES, limit=_AT)), data.unseen)
    return [
        Figure("one tool, three examples per skill: hit@1", 100 * hit, "%"),
        Figure("one tool, three examples per skill: recall@5", 100 * recall, "%"),
    ]


def _of_agents(data: MetaTool) -> list[Figure]:
    """Agents of five skills drawn by lot, so that nothing but their skills tells them apart."""
    names = sorted(data.tools)
    random.Random(11).shuffle(names)
    listings = {}
    agent_of = {}
    for start in range(0, len(names), SKILLS_PER_AGENT):
        some = names[start : start + SKILLS_PER_AGENT]
        listing = _listing(f"agent-{start}", [Skill(name, data.tools[name]) for name in some])
        listings[listing.id] = listing
        agent_of.update(dict.fromkeys(some, listing.record.name))
    search = SkillSearch(MemoryTextIndex(), listings.get)
    search.put(listings.values())
    agents = AgentSearch(search)
    questions = [(text, frozenset({agent_of[tool]})) for text, (tool,) in data.unseen[: QUERIES // 4]]
    hit, recall = _quality(
        lambda text: [one.entry.name for one in agents.find_agents(text, SCOPES, limit=_AT)],
        questions,
    )
    return [
        Figure(f"agents of {SKILLS_PER_AGENT} skills: hit@1", 100 * hit, "%"),
        Figure(f"agents of {SKILLS_PER_AGENT} skills: recall@5", 100 * recall, "%"),
    ]


def _abstaining(data: MetaTool, search: SkillSearch) -> list[Figure]:
    """Each question as it is, and once with its tool taken away: does the fit tell them apart?"""
    fitting: list[float] = []
    right: list[tuple[float, bool]] = []
    unfitting: list[tuple[float, bool]] = []
    for text, tools in data.unseen:
        found = search.find_skills(text, SCOPES, limit=1)
        fitting.append(found.fit.score)
        if found.hits and found.hits[0].skill.id in tools:
            right.append((found.fit.score, found.fit.is_likely))
        without = search.find_skills(text, SCOPES, limit=1, accept=_lacks(tools))
        unfitting.append((without.fit.score, without.fit.is_likely))
    scores = [score for score, _ in unfitting]
    return [
        Figure("fit of requests, against those no tool fits (AUC)", _auc(fitting, scores), ""),
        Figure("fit of requests answered rightly, likewise", _auc([score for score, _ in right], scores), ""),
        Figure("answered rightly, yet said to be unlikely", 100 * _share([not yes for _, yes in right]), "%"),
        Figure("no tool fits, and said so", 100 * _share([not yes for _, yes in unfitting]), "%"),
    ]


def _lacks(tools: frozenset[str]) -> Callable[[Entry], bool]:
    return lambda entry: entry.key not in tools


def _search(data: MetaTool, examples: dict[str, list[str]]) -> SkillSearch:
    listings = {}
    for name, description in data.tools.items():
        told = tuple(Example(text=text) for text in examples.get(name, ()))
        listing = _listing(name, [Skill(name, description, examples=told)])
        listings[listing.id] = listing
    search = SkillSearch(MemoryTextIndex(), listings.get)
    search.put(listings.values())
    return search


def _listing(key: str, skills: list[Skill]) -> Listing:
    return Listing(AgentRecord(key if len(skills) > 1 else "", skills=tuple(skills)), "metatool", key)


def _ids(found: Found) -> list[str]:
    return [hit.skill.id for hit in found.hits]


def _quality(rank: Rank, questions: Sequence[Question]) -> tuple[float, float]:
    """hit@1 and recall@5."""
    hits = recalled = 0.0
    for text, fitting in questions:
        first = list(rank(text))[:_AT]
        hits += bool(first) and first[0] in fitting
        recalled += len(fitting.intersection(first)) / len(fitting)
    return hits / len(questions), recalled / len(questions)


def _plain_bm25(tools: dict[str, str]) -> Rank:
    """Name and description in lower case, split at what is no letter or digit; k1 = 1.5, b = 0.75."""
    texts = {name: Counter(_plain_words(f"{name} {told}")) for name, told in tools.items()}
    mean = sum(text.total() for text in texts.values()) / len(texts)
    having = Counter(word for text in texts.values() for word in text)

    def score(asked: list[str], text: Counter[str]) -> float:
        damped = 1.5 * (0.25 + 0.75 * text.total() / mean)
        return sum(
            math.log(1 + (len(texts) - having[word] + 0.5) / (having[word] + 0.5))
            * text[word] * 2.5 / (text[word] + damped)
            for word in asked
            if word in text
        )  # fmt: skip

    def rank(text: str) -> Sequence[str]:
        asked = _plain_words(text)
        return sorted(texts, key=lambda name: (-score(asked, texts[name]), name))

    return rank


def _plain_words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _auc(above: Sequence[float], below: Sequence[float]) -> float:
    """How often one of ``above`` is greater than one of ``below``; equal ones count half."""
    order = sorted([(score, 1) for score in above] + [(score, 0) for score in below])
    wins = 0.0
    seen = at = 0
    while at < len(order):
        end = at
        while end < len(order) and order[end][0] == order[at][0]:
            end += 1
        ups = sum(up for _, up in order[at:end])
        downs = end - at - ups
        wins += ups * (seen + downs / 2)
        seen += downs
        at = end
    return wins / (len(above) * len(below))


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)
