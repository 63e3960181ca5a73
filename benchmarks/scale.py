"""A hundred thousand agents in one directory: memory of each, and delays of other work during a refresh.

Each figure is taken in a process of its own: one discovers all agents in a registry that makes its cards
up, the next finds them in the store. Resident memory is counted beyond that of an empty directory, with
the look-ups of the benchmark still warm.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson

from benchmarks import cold_start, views
from benchmarks.figures import Figure
from retinue.core.record import Listing
from retinue.mesh.directory.directory import MESH_VIEW, Directory
from retinue.oci.codec.artifacts import CARD_ARTIFACT_TYPE, CARD_MEDIA_TYPE, Artifact
from retinue.oci.codec.bulk import Pulled
from retinue.oci.codec.manifest import CREATED, Manifest, describe
from retinue.oci.codec.reference import Reference
from retinue.oci.registry import Registry
from retinue.oci.source import RegistrySource
from retinue.storage.listing_store import SqliteListings

AGENTS = 100_000
SKILLS_EACH = 5
OPENED = 4_000
PAUSE_S = 0.001
WORDS = ["plan", "build", "test", "review", "deploy", "measure", "translate", "forecast", "book", "sort"]


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        figures = [figure for part in ("discover", "open") for figure in _ask(part, folder)]
    return [*figures, *views.measure(), *cold_start.measure_many()]


def _ask(part: str, folder: str) -> Iterator[Figure]:
    command = [sys.executable, "-m", "benchmarks.scale", part, folder]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    for name, value, unit, target in orjson.loads(told.stdout):
        yield Figure(name, value, unit, target)


class MadeUpRegistry:
    """Holds the cards of as many agents as are wanted, each made when it is pulled."""

    name = "bench"

    def __init__(self, agents: int) -> None:
        self._names = [f"agents/a{number:06}" for number in range(agents)]

    def generation(self) -> None:
        return None

    async def pull_many(self, references: Sequence[Reference]) -> Pulled:
        return {}

    async def list_repositories(self) -> list[str]:
        return self._names

    async def list_tags(self, repository: str) -> list[str]:
        await asyncio.sleep(0)
        return ["v1"]

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        await asyncio.sleep(0)
        digest = "sha256:" + hashlib.sha256(reference.repository.encode()).hexdigest()
        if digest == known_digest:
            return None
        number = int(reference.repository.removeprefix("agents/a"))
        config = describe(b"{}", "application/vnd.oci.empty.v1+json")
        annotations = {CREATED: f"2026-01-01T{number % 24:02}:{number % 60:02}:00Z"}
        manifest = Manifest(config, (), CARD_ARTIFACT_TYPE, annotations)
        return Artifact(manifest, b"", digest, _card(number), "agent-card.json", CARD_MEDIA_TYPE)


def _card(number: int) -> bytes:
    draw = random.Random(number)
    skills = [
        {
            "id": f"skill_{number * SKILLS_EACH + at}",
            "description": " ".join(draw.choices(WORDS, k=14)),
            "input_schema": {
                "type": "object",
                "properties": {word: {"type": "string"} for word in draw.sample(WORDS, 3)},
            },
        }
        for at in range(SKILLS_EACH)
    ]
    return orjson.dumps(
        {
            "name": f"agent-{number}",
            "url": f"http://10.{number % 200}.{number // 200 % 200}.1:{8000 + number % 999}",
            "version": f"1.{number % 20}.0",
            "description": " ".join(draw.choices(WORDS, k=8)),
            "skills": skills,
        }
    )


def _open(folder: str, agents: int) -> tuple[Directory, SqliteListings]:
    registry: Registry = MadeUpRegistry(agents)  # type: ignore[assignment]
    store = SqliteListings(Path(folder) / f"{agents}.db")
    return Directory(store, [RegistrySource("bench", registry)]), store


async def discover(folder: str) -> list[tuple[object, ...]]:
    empty, _ = _open(folder, 1)
    await empty.refresh()
    before = _resident()
    directory, _ = _open(folder, AGENTS)
    started = time.perf_counter()
    with _stalls() as stalls:
        await directory.refresh()
    spent_s = time.perf_counter() - started
    await _use(directory)
    kept = _resident() - before
    quiet = await _look_up(directory, asyncio.create_task(asyncio.sleep(1)))
    refreshing = asyncio.create_task(directory.refresh(thorough=False))
    started = time.perf_counter()
    with _stalls() as refresh_stalls:
        busy = await _look_up(directory, refreshing)
    refresh_s = time.perf_counter() - started
    assert len(directory.list_entries()) == AGENTS
    return [
        (f"discover {AGENTS:,} agents", spent_s, "s", None),
        ("the longest that others wait meanwhile, processor time", max(stalls) * 1e3, "ms", 100),
        ("resident per agent, once discovered", kept / AGENTS, "B", 2_000),
        ("find by skill id, p50", statistics.median(quiet) * 1e6, "µs", 50),
        ("refresh while nothing changed", refresh_s, "s", None),
        ("the longest that others wait meanwhile, processor time", max(refresh_stalls) * 1e3, "ms", 100),
        ("find by skill id during that refresh, p50", statistics.median(busy) * 1e6, "µs", 50),
        ("find by skill id during that refresh, p99", _p99(busy) * 1e6, "µs", 500),
        ("resident per agent, once refreshed", (_resident() - before) / AGENTS, "B", 2_000),
    ]


async def reopen(folder: str) -> list[tuple[object, ...]]:
    _empty = _open(folder, 1)
    before = _resident()
    started = time.process_time()
    directory, store = _open(folder, AGENTS)
    spent_s = time.process_time() - started
    await _use(directory)
    kept = _resident() - before
    entries = directory.list_entries()
    cold = [_time(lambda entry=entry: store.find(entry.id)) for entry in entries[:: AGENTS // 2_000]]
    return [
        (f"open a store of {AGENTS:,} agents, processor time", spent_s, "s", 2),
        ("resident per agent, once opened", kept / AGENTS, "B", 2_000),
        ("read one listing whole from the store, p50", statistics.median(cold) * 1e6, "µs", None),
    ]


async def _use(directory: Directory) -> None:
    """Look skills up and open whom they name, as calls do."""
    draw = random.Random(1)
    for _ in range(OPENED):
        (entry,) = directory.find_by_skill(f"skill_{draw.randrange(AGENTS * SKILLS_EACH)}", MESH_VIEW)
        listing = await directory.open(entry)
        assert isinstance(listing, Listing)


async def _look_up(directory: Directory, during: asyncio.Task[None]) -> list[float]:
    """How long each look-up takes until the task is done."""
    draw = random.Random(2)
    spent = []
    while not during.done():
        skill = f"skill_{draw.randrange(AGENTS * SKILLS_EACH)}"
        spent.append(_time(lambda skill=skill: directory.find_by_skill(skill, MESH_VIEW)))
        await asyncio.sleep(PAUSE_S)
    await during
    return spent


@contextmanager
def _stalls() -> Iterator[list[float]]:
    """How long the event loop was away, each time: seconds of processor time, whoever else is at work."""
    seen = [0.0]

    async def watch() -> None:
        while True:
            began = time.process_time()
            await asyncio.sleep(0)
            seen.append(time.process_time() - began)

    watching = asyncio.get_running_loop().create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()


def _time(work: object) -> float:
    started = time.perf_counter()
    found = work()  # type: ignore[operator]
    spent_s = time.perf_counter() - started
    assert found
    return spent_s


def _resident() -> int:
    gc.collect()
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[-1]


if __name__ == "__main__":
    work = {"discover": discover, "open": reopen}[sys.argv[1]]
    sys.stdout.buffer.write(orjson.dumps(asyncio.run(work(sys.argv[2]))))
