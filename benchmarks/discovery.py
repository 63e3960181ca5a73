"""Discovery of a thousand agents, against oras-py one by one, and the delay until a new agent is listed.

The seed's way is a new oras client for each agent: catalog, tags, pull. Ours is what a hub does when it
starts (cold) and once a minute (refresh). Rounds are interleaved, the best of each counts.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import oras.client  # type: ignore[import-untyped]
import orjson
import uvloop

from benchmarks.dispatch import Server
from benchmarks.figures import Figure
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import Registry, publish_card
from retinue.oci.source import RegistrySource
from retinue.runtime.parts.upkeep import BackgroundTasks
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from tests.services import docker_registry
from tests.system import Hub, open_system

AGENTS = 1000
ROUNDS = 3
CONCURRENT = 16
PUBLISHED = 9
REFRESH_S = 2.0
WAIT_S = 30.0

T = TypeVar("T")
CardOf = Callable[[int], tuple[str, bytes]]


def measure() -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        if shutil.which("docker-registry") is None:
            print("  docker-registry is not installed (scripts/services): only the own door is measured")
        else:
            with docker_registry(Path(folder)) as url:
                _run(lambda: fill_over_http(url))
                figures += _compare("docker-registry", url, cold=1 / 5, refresh=1 / 12)
            figures += _publish_to_visible(Path(folder))
        layouts = Path(folder) / "layouts"
        _run(lambda: fill(LayoutRegistry(layouts)))
        with Server("registry", str(layouts)) as endpoint:
            figures += _compare("own door", endpoint.url, cold=1 / 15, refresh=1 / 30)
    return figures


def _compare(name: str, url: str, *, cold: float, refresh: float) -> list[Figure]:
    rounds = [(_oras_s(url), *_run(lambda: _ours_s(url))) for _ in range(ROUNDS)]
    oras_s, cold_s, refresh_s = (min(times) for times in zip(*rounds, strict=True))
    return [
        Figure(f"{AGENTS:,} agents, {name}, oras-py one by one", oras_s * 1e3, "ms"),
        Figure(f"{AGENTS:,} agents, {name}, cold", cold_s * 1e3, "ms"),
        Figure(f"{AGENTS:,} agents, {name}, refresh", refresh_s * 1e3, "ms"),
        Figure(f"cold / oras-py, {name}", cold_s / oras_s, "×", target=round(cold, 3)),
        Figure(f"refresh / oras-py, {name}", refresh_s / oras_s, "×", target=round(refresh, 3)),
    ]


def _oras_s(url: str) -> float:
    host = url.partition("://")[2]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        found = oras.client.OrasClient(insecure=True).do_request(f"{url}/v2/_catalog?n={AGENTS}")
        for repository in found.json()["repositories"]:
            client = oras.client.OrasClient(insecure=True)
            (tag,) = client.get_tags(f"{host}/{repository}")
            (file,) = client.pull(target=f"{host}/{repository}:{tag}", outdir=folder)
            assert orjson.loads(Path(file).read_bytes())["name"]
        return time.perf_counter() - began


async def _ours_s(url: str) -> tuple[float, float]:
    """Seconds of the first reading and of the next."""
    spent = []
    async with HttpClient() as http:
        source = RegistrySource("bench", HttpRegistry(url, http))
        for thorough in (True, False):
            began = time.perf_counter()
            reading = await source.read_all(thorough=thorough)
            spent.append(time.perf_counter() - began)
            assert len(reading.listings) + len(reading.unchanged) == AGENTS, reading.problems[:1]
    return spent[0], spent[1]


def _publish_to_visible(folder: Path) -> list[Figure]:
    told_s = _run(lambda: _visible_s(folder / "told", notified=True))
    untold_s = _run(lambda: _visible_s(folder / "untold", notified=False))
    return [
        Figure("publish to visible in a hub, with notifications", told_s * 1e3, "ms", target=50),
        Figure(f"the same without, reading every {REFRESH_S:g} s", untold_s * 1e3, "ms"),
    ]


async def _visible_s(folder: Path, *, notified: bool) -> float:
    """The median of seconds from the end of a publishing, its own look included, until a hub lists it."""
    registry_port, hub_port = _free_port(), _free_port()
    url = f"http://127.0.0.1:{registry_port}"
    (folder / "data").mkdir(parents=True)
    state = State(folder / "state")
    async with open_system(state, registries=(url,)) as system, HttpClient() as http:
        endpoint = (f"http://127.0.0.1:{hub_port}/hooks/registry", state.local_token())
        with docker_registry(folder / "data", port=registry_port, notified=endpoint if notified else None):
            hub = await system.start_hub(port=hub_port)
            mesh = hub.mesh
            await mesh.directory.refresh()
            upkeep = asyncio.create_task(
                BackgroundTasks(
                    mesh.directory,
                    mesh.dispatcher.agent_stats,
                    mesh.peers.http,
                    refresh_s=3600.0 if notified else REFRESH_S,
                    probe_timeout_s=1.0,
                ).run()
            )
            registry = HttpRegistry(url, http)
            spent = [await _publish_and_wait(registry, hub, number) for number in range(PUBLISHED)]
            upkeep.cancel()
            await asyncio.wait([upkeep])
    return statistics.median(spent)


async def _publish_and_wait(registry: Registry, hub: Hub, number: int) -> float:
    name, card = _card(number)
    seen = asyncio.Event()
    seen_at = 0.0

    def look(_: object) -> None:
        nonlocal seen_at
        if not seen.is_set() and hub.mesh.directory.find(name) is not None:
            seen_at = time.perf_counter()
            seen.set()

    end = hub.mesh.directory.subscribe(look)
    await publish_card(registry, name, card, version="1.0.0", skills=[], created=datetime.now(UTC))
    pushed_at = time.perf_counter()
    await asyncio.wait_for(seen.wait(), WAIT_S)
    end()
    return max(0.0, seen_at - pushed_at)


async def fill_over_http(url: str, agents: int = AGENTS, card_of: CardOf | None = None) -> None:
    """Publish cards in the registry at a URL."""
    async with HttpClient() as http:
        await fill(HttpRegistry(url, http), agents, card_of)


async def fill(registry: Registry, agents: int = AGENTS, card_of: CardOf | None = None) -> None:
    """Publish cards of agents that nobody serves; ``card_of`` gives the name and the card of a number."""
    waiting = iter(range(agents))

    async def work() -> None:
        for number in waiting:
            name, card = (card_of or _card)(number)
            await publish_card(registry, name, card, version="1.0.0", skills=[], created=datetime.now(UTC))

    await asyncio.gather(*(work() for _ in range(CONCURRENT)))


def _card(number: int) -> tuple[str, bytes]:
    """A card of about 2.6 kB, as those of the demo have."""
    name = f"bench{number:04}"
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    skills = [
        {"id": f"skill_{number}_{at}", "description": "does one thing " * 40, "input_schema": schema}
        for at in range(3)
    ]
    card = {"name": name, "url": "http://localhost:8001", "version": "1.0.0", "skills": skills}
    return name, orjson.dumps(card)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _run(work: Callable[[], Awaitable[T]]) -> T:
    """On the loop that a hub runs on."""

    async def main() -> T:
        return await work()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
