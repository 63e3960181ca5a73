"""How well the search ranks skills and agents, on two sets, compared with SQLite FTS5.

MetaTool (MIT) is read from ``RETINUE_METATOOL`` (default: ``../shared/data/metatool`` next to the
project), the second set from npm packages and OpenAPI documents (`benchmarks.tool_catalogue`). A set
that cannot be read is skipped with a message. Both are split in two halves: one for tuning, and one
for the figures reported here. The comparison is FTS5 with its ``porter`` tokenizer and the default
``bm25()`` over name, description and parameters.
"""

from __future__ import annotations

import csv
import os
import random
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from benchmarks.figures import Figure
from benchmarks.tool_catalogue import NoToolsError, load_tool_set
from retinue.core.record import AgentRecord, Example, Listing, Skill
from retinue.mesh.search.agents import AgentSearch
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.text_index import MemoryTextIndex

SCOPES = frozenset({"mesh"})
QUERIES = 4_000
METATOOL_HIT = 47.8
"""hit@1 on MetaTool before the synonyms were dropped; today's may be up to 3 points lower."""

AHEAD_OF_FTS5 = 5.0
SKILLS_PER_AGENT = 5
_AT = 5

Rank = Callable[[str], Sequence[str]]
Question = tuple[str, frozenset[str]]


@dataclass(frozen=True)
class Catalogue:
    """Listings, and questions with the skills that serve them, each as ``source/skill``."""

    name: str
    listings: Sequence[Listing]
    questions: Sequence[Question]
    needed: int = 1
    """How many of the skills one question needs; the others are alternatives."""

    def open_search(self) -> SkillSearch:
        held = {listing.id: listing for listing in self.listings}
        search = SkillSearch(MemoryTextIndex(), held.get)
        search.put(held.values())
        return search


def measure() -> list[Figure]:
    return [*_measure_metatool(), *_measure_tool_set()]


def find_metatool() -> Path | None:
    """The folder of the data set, if it exists."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "metatool"
    folder = Path(os.environ.get("RETINUE_METATOOL", default))
    return folder if (folder / "all_clean_data.csv").is_file() else None


@dataclass(frozen=True)
class MetaTool:
    """Descriptions by tool, and questions that need one tool, or two."""

    tools: dict[str, str]
    tuning: list[Question]
    held_out: list[Question]
    pairs: list[Question]


def load_metatool(folder: Path) -> MetaTool:
    """Read the set and split its questions with a fixed seed."""
    tools = orjson.loads((folder / "plugin_des.json").read_bytes())
    with (folder / "all_clean_data.csv").open(newline="", encoding="utf-8") as file:
        questions = [(row["Query"], frozenset({f"metatool/{row['Tool']}"})) for row in csv.DictReader(file)]
    random.Random(7).shuffle(questions)
    pairs = orjson.loads((folder / "multi_tool_query_golden.json").read_bytes())
    half = len(questions) // 2
    return MetaTool(
        tools,
        questions[:half],
        questions[half:][:QUERIES],
        [(row["query"], frozenset(f"metatool/{tool}" for tool in row["tool"])) for row in pairs],
    )


def metatool_catalogue(
    data: MetaTool, questions: Sequence[Question], *, per_agent: int = 1, examples: int = 0
) -> Catalogue:
    """One agent per tool, or agents of several tools drawn by lot; with examples from the tuning half."""
    told: dict[str, list[str]] = {}
    for text, (tool,) in data.tuning if examples else ():
        told.setdefault(tool.removeprefix("metatool/"), []).append(text)
    names = sorted(data.tools)
    random.Random(11).shuffle(names)
    listings = []
    for start in range(0, len(names), per_agent):
        skills = tuple(
            Skill(
                name,
                data.tools[name],
                examples=tuple(Example(text) for text in told.get(name, ())[:examples]),
            )
            for name in names[start : start + per_agent]
        )
        record = AgentRecord("" if per_agent == 1 else f"agent-{start}", skills=skills)
        listings.append(Listing(record, "metatool", skills[0].id))
    return Catalogue("MetaTool", listings, questions)


def _measure_metatool() -> Iterator[Figure]:
    folder = find_metatool()
    if folder is None:
        print("  SKIPPED: MetaTool is missing; RETINUE_METATOOL names its folder", flush=True)
        return
    data = load_metatool(folder)
    one = metatool_catalogue(data, data.held_out)
    hit, figures = _measure_skills(one)
    yield from figures
    yield Figure(f"MetaTool: hit@1, points below {METATOOL_HIT}", METATOOL_HIT - hit, "", 3.0)
    two = metatool_catalogue(data, data.pairs)
    yield from _measure_skills(replace(two, name="MetaTool, two tools", needed=2))[1]
    taught = metatool_catalogue(data, data.held_out, examples=3)
    yield from _quality(replace(taught, name="MetaTool, three examples per skill"), _rank_skills(taught))
    agents = metatool_catalogue(data, data.held_out[: QUERIES // 4], per_agent=SKILLS_PER_AGENT)
    yield from _measure_agents(agents)


def _measure_tool_set() -> Iterator[Figure]:
    try:
        tools = load_tool_set()
    except NoToolsError as error:
        print(f"  SKIPPED: the second set: {error}", flush=True)
        return
    questions = [(request.text, request.tools) for request in tools.held_out]
    catalogue = Catalogue("second set", tools.listings, questions)
    hit, figures = _measure_skills(catalogue)
    yield from figures
    behind = next(figure.value for figure in figures if "FTS5: hit@1" in figure.name) - hit
    yield Figure("second set: hit@1 of FTS5 minus ours, points", behind, "", -AHEAD_OF_FTS5)
    yield from _measure_agents(catalogue)


def _measure_skills(catalogue: Catalogue) -> tuple[float, list[Figure]]:
    """hit@1 in percent, and the figures of our search and of FTS5."""
    ours = _quality(catalogue, _rank_skills(catalogue))
    theirs = _quality(replace(catalogue, name=f"{catalogue.name}, FTS5"), rank_by_fts5(catalogue.listings))
    return ours[0].value, [*ours, *theirs]


def _measure_agents(catalogue: Catalogue) -> list[Figure]:
    agents_of: dict[str, set[str]] = {}
    for listing in catalogue.listings:
        for skill in listing.record.skills:
            agents_of.setdefault(f"{listing.source}/{skill.id}", set()).add(listing.key)
    questions = [
        (text, frozenset().union(*(agents_of[one] for one in tools))) for text, tools in catalogue.questions
    ]
    agents = AgentSearch(catalogue.open_search())

    def rank(text: str) -> list[str]:
        return [hit.entry.key for hit in agents.find_agents(text, SCOPES, limit=_AT)]

    return _quality(replace(catalogue, name=f"{catalogue.name}, agents", questions=questions), rank)


def _quality(catalogue: Catalogue, rank: Rank) -> list[Figure]:
    """hit@1, and recall@5: the share of the needed skills among the first five."""
    hits = recalled = 0.0
    for text, fitting in catalogue.questions:
        first = list(rank(text))[:_AT]
        hits += bool(first) and first[0] in fitting
        recalled += min(1.0, len(fitting.intersection(first)) / catalogue.needed)
    count = len(catalogue.questions)
    return [
        Figure(f"{catalogue.name}: hit@1", 100 * hits / count, "%"),
        Figure(f"{catalogue.name}: recall@5", 100 * recalled / count, "%"),
    ]


def _rank_skills(catalogue: Catalogue) -> Rank:
    search = catalogue.open_search()
    return lambda text: [
        f"{hit.entry.source}/{hit.skill.id}" for hit in search.find_skills(text, SCOPES, limit=_AT).hits
    ]


def rank_by_fts5(listings: Sequence[Listing]) -> Rank:
    database = sqlite3.connect(":memory:")
    database.execute(
        "CREATE VIRTUAL TABLE tools USING fts5(name, description, parameters, tokenize='porter')"
    )
    names = []
    for listing in listings:
        for skill in listing.record.skills:
            names.append(f"{listing.source}/{skill.id}")
            properties = (skill.input_schema or {}).get("properties", {}).items()
            parameters = " ".join(f"{name} {schema.get('description', '')}" for name, schema in properties)
            row = (len(names), skill.id, skill.description, parameters)
            database.execute(
                "INSERT INTO tools (rowid, name, description, parameters) VALUES (?, ?, ?, ?)", row
            )

    def rank(text: str) -> list[str]:
        words = dict.fromkeys(re.findall(r"\w+", text.lower()))
        query = " OR ".join(f'"{word}"' for word in words)
        rows = database.execute(
            "SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools), rowid LIMIT ?", (query, _AT)
        )
        return [names[row - 1] for (row,) in rows]

    return rank


def area_under_curve(above: Sequence[float], below: Sequence[float]) -> float:
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
