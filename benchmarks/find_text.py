"""Text search in a large directory: 100,000 agents of five skills, their words drawn by Zipf's law."""

from __future__ import annotations

import itertools
import random
import statistics
import string
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from retinue.core.record import AgentRecord, Endpoint, Listing, Skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.search.agents import AgentSearch
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.skill_texts import render_text
from retinue.storage.listing_store import SqliteListings
from retinue.storage.skill_index import SqliteTextIndex
from tests.support.memory_source import MemorySource

AGENTS = 100_000
SKILLS_EACH = 5
VOCABULARY = 25_000
SEARCHES = 400
UPSERTS = 200
SOURCE = "bench"
SCOPES = frozenset({"mesh"})


def measure() -> list[Figure]:
    draw = RandomWords(random.Random(1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "retinue.db"
        index, store = SqliteTextIndex(path), SqliteListings(path)
        spent = worked = 0.0
        for batch in draw_batches(draw):
            store.put_all(batch)
            started, began = time.perf_counter(), time.process_time()
            index.put_all([render_text(listing) for listing in batch])
            spent += time.perf_counter() - started
            worked += time.process_time() - began
        directory = Directory(store, [MemorySource(SOURCE)])
        search = SkillSearch(
            index, directory.find_listing, find_entry=directory.find_entry, find_skill=directory.find_skill
        )
        return [
            Figure(f"load {AGENTS:,} agents × {SKILLS_EACH} skills", spent, "s"),
            Figure("the same, processor time", worked, "s"),
            Figure("the file", path.stat().st_size / 1e6, "MB"),
            *_searches(search, AgentSearch(search), draw),
            *_upserts(search, draw),
        ]


def _searches(search: SkillSearch, agents: AgentSearch, draw: RandomWords) -> Iterator[Figure]:
    kinds: dict[str, Callable[[], str]] = {
        "one word": lambda: draw.text(1),
        "two words": lambda: draw.text(2),
        "three words": lambda: draw.text(3),
        "eight words": lambda: draw.text(8),
        "three common words": lambda: " ".join(draw.random.sample(draw.words[:100], 3)),
        "three rare words": lambda: " ".join(draw.random.sample(draw.words[2000:], 3)),
        "a mistyped word": lambda: draw.mistyped(),
    }
    mixed = []
    began = time.process_time()
    for name, make in kinds.items():
        spent = _times(lambda text: search.find_skills(text, SCOPES), [make() for _ in range(SEARCHES // 4)])
        mixed += spent
        yield Figure(f"find by text, {name}, p50", statistics.median(spent), "ms")
        yield Figure(f"find by text, {name}, p95", _p95(spent), "ms")
    worked = (time.process_time() - began) * 1000 / len(mixed)
    yield Figure("find by text, all of these, processor time each", worked, "ms")
    yield Figure("find by text, all of these, p50", statistics.median(mixed), "ms", target=10)
    yield Figure("find by text, all of these, p95", _p95(mixed), "ms")
    texts = [draw.text(3) for _ in range(SEARCHES // 4)]
    yield Figure(
        "find an agent by three words, p50",
        statistics.median(_times(lambda text: agents.find_agents(text, SCOPES), texts)),
        "ms",
    )


def _upserts(search: SkillSearch, draw: RandomWords) -> Iterator[Figure]:
    changed = [_listing(number * 7, draw) for number in range(UPSERTS)]
    spent = _times(lambda listing: search.put([listing]), changed)
    yield Figure("put one agent in the place of its former text, p50", statistics.median(spent), "ms")
    new = [_listing(AGENTS + number, draw) for number in range(UPSERTS)]
    spent = _times(lambda listing: search.put([listing]), new)
    yield Figure("put one new agent, p50", statistics.median(spent), "ms", target=1)


class RandomWords:
    """Draws words; the n-th is drawn 1/n as often as the first."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        letters = string.ascii_lowercase
        drawn = dict.fromkeys(
            "".join(source.choices(letters, k=source.randint(4, 10))) for _ in range(VOCABULARY * 2)
        )
        self.words = list(drawn)[:VOCABULARY]
        self._chances = list(itertools.accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))

    def text(self, words: int) -> str:
        return " ".join(self.random.choices(self.words, cum_weights=self._chances, k=words))

    def mistyped(self) -> str:
        word = next(word for word in iter(lambda: self.random.choice(self.words), "") if len(word) > 5)
        return word[:2] + word[3] + word[2] + word[4:]


def draw_batches(draw: RandomWords, agents: int = AGENTS) -> Iterator[list[Listing]]:
    """Listings of five skills, up to a thousand at a time."""
    for start in range(0, agents, 1000):
        yield [_listing(number, draw) for number in range(start, min(agents, start + 1000))]


def _listing(number: int, draw: RandomWords) -> Listing:
    skills = tuple(
        Skill(
            f"{draw.text(2).replace(' ', '_')}_{at}",
            draw.text(14),
            tags=tuple(draw.text(2).split()),
            input_schema={"type": "object", "properties": {word: {} for word in draw.text(3).split()}},
        )
        for at in range(SKILLS_EACH)
    )
    record = AgentRecord(
        f"agent-{number}",
        "1.0.0",
        description=draw.text(8),
        endpoints=(Endpoint("execute", f"http://h:{number}"),),
        skills=skills,
    )
    return Listing(
        record=record, source=SOURCE, key=f"agents/{number}", digest=f"sha256:{draw.text(1)}{number}"
    )


def _times(work: Callable[[Any], object], given: Sequence[object]) -> list[float]:
    spent = []
    for one in given:
        started = time.perf_counter()
        work(one)
        spent.append((time.perf_counter() - started) * 1000)
    return spent


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]
