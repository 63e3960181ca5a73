"""The cold start of a hub: the agents of a registry are read, stored and indexed, with nothing known before.

The reader is a process of its own, as a hub is, so that its memory can be measured. A registry is
docker-registry, or a hub, which gives manifests in bulk. The words of the cards are drawn by Zipf's law.
A bare client sends docker-registry the same requests, which shows how much of the time is the registry's.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import aiohttp
import orjson
import uvloop

from benchmarks.discovery import fill, fill_over_http
from benchmarks.dispatch import Server
from benchmarks.figures import Figure, cpu_s_of, rss_bytes_of
from benchmarks.find_text import RandomWords
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.search.ranking import SkillSearch
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.manifest import MANIFEST_TYPE
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.source import CONCURRENT_READS, RegistrySource
from retinue.runtime.serving import YOUNG_OBJECTS
from retinue.storage.listing_store import SqliteListings
from retinue.storage.skill_index import SqliteTextIndex
from retinue.web.http_client import HttpClient
from tests.services import docker_registry

AGENTS = 10_000
MANY_AGENTS = 100_000
SKILLS_EACH = 3
WORDS = 50
"""Words of a description; a card of three skills has about 2.6 kB, as those of the demo have."""

QUARTERS = 4


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        figures: list[Figure] = []
        if shutil.which("docker-registry") is not None:
            with docker_registry(Path(folder)) as url:
                uvloop.run(fill_over_http(url, AGENTS, draw_card))
                figures += _read("docker-registry", url, AGENTS, target_s=8.0)
                spent_s = uvloop.run(request_all(url, AGENTS))
                figures.append(Figure("the same requests of a bare client", spent_s, "s"))
        return [*figures, *_read_from_hub(Path(folder) / "layouts", AGENTS, target_s=6.0)]


def measure_many() -> list[Figure]:
    """100,000 agents from one hub to another."""
    with tempfile.TemporaryDirectory() as folder:
        return list(_read_from_hub(Path(folder), MANY_AGENTS, target_s=60.0))


async def request_all(url: str, agents: int) -> float:
    """Wall seconds of the requests of a first reading: tags and manifest of each agent."""
    waiting = iter([draw_card(number)[0] for number in range(agents)])
    began = time.perf_counter()
    async with aiohttp.ClientSession(headers={"accept": MANIFEST_TYPE}) as client:

        async def work() -> None:
            for name in waiting:
                for path in ("tags/list", "manifests/v1"):
                    async with client.get(f"{url}/v2/agents/{name}/{path}") as answer:
                        assert answer.status == 200, await answer.text()
                        await answer.read()

        await asyncio.gather(*(work() for _ in range(CONCURRENT_READS)))
    return time.perf_counter() - began


def draw_card(number: int) -> tuple[str, bytes]:
    """The name and the card of an agent that nobody serves."""
    draw = _open_vocabulary()
    draw.random.seed(number)
    name = f"bench{number:06}"
    skills = [
        {
            "id": f"{draw.text(2).replace(' ', '_')}_{at}",
            "description": draw.text(WORDS),
            "input_schema": {
                "type": "object",
                "properties": {
                    word: {"type": "string", "description": draw.text(4)} for word in draw.text(3).split()
                },
                "required": [],
            },
        }
        for at in range(SKILLS_EACH)
    ]
    card = {
        "name": name,
        "url": "http://localhost:8001",
        "version": "1.0.0",
        "description": draw.text(8),
        "skills": skills,
    }
    return name, orjson.dumps(card)


@lru_cache(maxsize=1)
def _open_vocabulary() -> RandomWords:
    return RandomWords(random.Random(1))


def _read_from_hub(layouts: Path, agents: int, *, target_s: float) -> Iterator[Figure]:
    uvloop.run(fill(LayoutRegistry(layouts), agents, draw_card))
    with Server("registry", str(layouts)) as endpoint:
        used_s = cpu_s_of(endpoint.pid)
        yield from _read("a hub, in bulk", endpoint.url, agents, target_s=target_s)
        spent_s = cpu_s_of(endpoint.pid) - used_s
        yield Figure("the same, processor time of that hub", spent_s, "s")


def _read(name: str, url: str, agents: int, *, target_s: float) -> Iterator[Figure]:
    command = [sys.executable, "-m", "benchmarks.cold_start", url, str(agents)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    wall_s, cpu_s, *held = orjson.loads(output)
    yield Figure(f"{agents:,} agents from {name}, cold", wall_s, "s", target=target_s)
    yield Figure("the same, processor time of the reader", cpu_s, "s")
    for quarter, held_bytes in enumerate(held, 1):
        known = agents * quarter // QUARTERS
        yield Figure(f"the same, memory per agent at {known:,} agents", held_bytes / known, "B")


async def read(url: str, agents: int) -> list[float]:
    """Wall seconds and processor seconds of a first reading, and its memory in bytes after each quarter."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "retinue.db"
        store, texts = SqliteListings(path), SqliteTextIndex(path)
        async with HttpClient() as http:
            directory = Directory(store, [RegistrySource("bench", HttpRegistry(url, http))])
            search = SkillSearch(
                texts,
                directory.find_listing,
                find_entry=directory.find_entry,
                find_skill=directory.find_skill,
                eager=True,
            )
            held: list[float] = []
            known = 0

            def note(change: ListingChange) -> None:
                nonlocal known
                search.note(change.entry.id)
                known += 1
                if known * QUARTERS >= agents * (len(held) + 1) and len(held) < QUARTERS - 1:
                    held.append(rss_bytes_of(os.getpid()) - before)

            directory.subscribe(note)
            # as a hub that serves
            gc.collect()
            gc.freeze()
            gc.set_threshold(YOUNG_OBJECTS)
            before = rss_bytes_of(os.getpid())
            began, worked = time.perf_counter(), time.process_time()
            await directory.refresh()
            search.catch_up()
            wall_s, cpu_s = time.perf_counter() - began, time.process_time() - worked
            assert len(directory.list_entries()) == agents
            await directory.aclose()
            return [wall_s, cpu_s, *held, rss_bytes_of(os.getpid()) - before]


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(uvloop.run(read(sys.argv[1], int(sys.argv[2])))))
