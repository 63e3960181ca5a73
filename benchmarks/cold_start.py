"""The cold start of a hub: the agents of a registry are read, stored and indexed, with nothing known before.

The reader is a process of its own, as a hub is, so that its memory can be measured. A registry is
docker-registry, or a hub, which gives manifests in bulk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import uvloop

from benchmarks.discovery import fill, fill_over_http
from benchmarks.dispatch import Server
from benchmarks.figures import Figure, rss_bytes_of
from retinue.mesh.directory.directory import Directory
from retinue.mesh.search.ranking import SkillSearch
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.source import RegistrySource
from retinue.storage.listing_store import SqliteListings
from retinue.storage.skill_index import SqliteTextIndex
from retinue.web.http_client import HttpClient
from tests.services import docker_registry

AGENTS = 10_000


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        figures: list[Figure] = []
        if shutil.which("docker-registry") is not None:
            with docker_registry(Path(folder)) as url:
                uvloop.run(fill_over_http(url, AGENTS))
                figures += _read("docker-registry", url, target_s=8.0)
        layouts = Path(folder) / "layouts"
        uvloop.run(fill(LayoutRegistry(layouts), AGENTS))
        with Server("registry", str(layouts)) as endpoint:
            # 100,000 within a minute
            figures += _read("a hub, in bulk", endpoint.url, target_s=60.0 * AGENTS / 100_000)
        return figures


def _read(name: str, url: str, *, target_s: float) -> Iterator[Figure]:
    command = [sys.executable, "-m", "benchmarks.cold_start", url]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    wall_s, cpu_s, peak_bytes = orjson.loads(output)
    yield Figure(f"{AGENTS:,} agents from {name}, cold", wall_s, "s", target=target_s)
    yield Figure("the same, processor time of the reader", cpu_s, "s")
    yield Figure("the same, memory per agent at the end", peak_bytes / AGENTS, "B")


async def read(url: str) -> tuple[float, float, int]:
    """Wall seconds, processor seconds and bytes of memory that a first reading takes."""
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
            directory.subscribe(lambda change: search.note(change.entry.id))
            before = rss_bytes_of(os.getpid())
            began, worked = time.perf_counter(), time.process_time()
            await directory.refresh()
            search.catch_up()
            wall_s, cpu_s = time.perf_counter() - began, time.process_time() - worked
            await directory.aclose()
            return wall_s, cpu_s, rss_bytes_of(os.getpid()) - before


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(uvloop.run(read(sys.argv[1]))))
