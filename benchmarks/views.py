"""What a hub of 100,000 agents shows: searches of limited callers, metrics, and lists of tools.

The agents and their texts are in a state folder, as in a hub. Times are processor time, because they stand on
the event loop.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.find_text import AGENTS, SOURCE, RandomWords, draw_batches
from retinue.core.call import Call, Principal
from retinue.hub.mesh_map import MeshParts
from retinue.mcp.server.hub_offer import HubOffer
from retinue.mesh.guard.trace_guard import new_trace
from retinue.parts.network_links import NetworkLinks
from retinue.parts.opening import open_parts
from retinue.parts.process import Process
from retinue.runtime.launch import Start
from retinue.runtime.mesh import Mesh, open_mesh
from retinue.runtime.observing.process_state import ProcessState
from retinue.runtime.parts.finding.exam import ExamPart
from retinue.runtime.parts.upkeep import UpkeepPart
from retinue.runtime.serving import Stop
from retinue.settings import Settings
from retinue.storage.listing_store import SqliteListings
from retinue.storage.skill_index import SqliteTextIndex
from retinue.storage.state import State
from retinue.testing.memory_runs import MemoryRuns
from retinue.web.metrics_endpoint import render_metrics
from tests.support.memory_source import MemorySource

SEARCHES = 60
SCOPES = frozenset({"mesh", "exposed"})
ALL = Principal("token:all", "token", SCOPES)
CALLED = 10_000
"""Agents whose statistics the hub has: as many as it keeps."""

LIMITED: Sequence[tuple[str, Principal]] = (
    ("a tenth of the agents", Principal("token:tenth", "token", SCOPES, ("retinue", "agent-*7"))),
    ("one agent of a thousand", Principal("token:few", "token", SCOPES, ("retinue", "agent-*777"))),
    ("two agents by name", Principal("token:three", "token", SCOPES, ("retinue", "agent-1", "agent-2"))),
)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder)))


async def _measure(folder: Path) -> list[Figure]:
    settings, state = Settings(), State(folder)
    state.prepare()
    draw = RandomWords(random.Random(1))
    listings, texts = SqliteListings(state.database), SqliteTextIndex(state.database)
    async with open_mesh(settings, state, listings, open_runs=MemoryRuns, texts=texts) as mesh:
        source = MemorySource(SOURCE)
        for batch in draw_batches(draw):
            for listing in batch:
                source.put(listing)
        mesh.directory.add_sources([source])
        await mesh.directory.refresh()
        await mesh.synchronize()
        mesh.directory.sources.ttl_s = 3600
        queries = [draw.text(3) for _ in range(SEARCHES)]
        return [
            *await _measure_searches(mesh, queries),
            *await _measure_metrics(mesh, settings, state),
            *await _measure_lists(mesh),
        ]


async def _measure_searches(mesh: Mesh, queries: Sequence[str]) -> list[Figure]:
    async def find(caller: Principal, query: str) -> None:
        call = Call("bench", "find_skills", {"query": query}, caller, "mcp", new_trace())
        outcome = await mesh.dispatcher.dispatch(call)
        assert outcome.error is None, outcome.error

    figures = []
    whole_ms = await _median_ms([partial(find, ALL, query) for query in queries])
    figures.append(Figure(f"find_skills among {AGENTS:,}, a token for all", whole_ms, "ms"))
    for name, caller in LIMITED:
        first_ms = await _median_ms([partial(find, caller, queries[0])])
        limited_ms = await _median_ms([partial(find, caller, query) for query in queries])
        figures += [
            Figure(f"the same for {name}, the first time", first_ms, "ms"),
            Figure(f"the same for {name}, later", limited_ms / whole_ms, "×", target=1.5),
        ]
    return figures


async def _measure_metrics(mesh: Mesh, settings: Settings, state: State) -> list[Figure]:
    for entry in mesh.directory.list_entries()[:CALLED]:
        mesh.dispatcher.agent_stats.of(entry).probe_answered()
    process = _open_process(mesh, settings, state)
    metrics = ProcessState.observing("hub", mesh.access, mesh.dispatcher.admission, lambda: False)
    async with open_parts(process, [UpkeepPart(), ExamPart()]) as opened:
        metrics.parts = opened

        async def read() -> None:
            render_metrics(await metrics.read_for(ALL))

        await read()
        return [Figure(f"/metrics of {AGENTS:,} agents", await _median_ms([read] * 9), "ms", target=50)]


def _open_process(mesh: Mesh, settings: Settings, state: State) -> Process:
    process = mesh.as_process("hub", Start(settings, state, lambda line: None, Stop(), None, None))
    links = NetworkLinks()
    process.add(NetworkLinks, links)
    process.add(MeshParts, MeshParts(None, (), links=links))
    return process


async def _measure_lists(mesh: Mesh) -> list[Figure]:
    offer = HubOffer(
        mesh.hub.agent.record, lambda observer: lambda: None, mesh.directory, mesh.dispatcher.access
    )
    changing = _change_entries(mesh)

    async def list_tools(caller: Principal) -> None:
        next(changing)
        offer.tools(caller)

    return [
        Figure("tools/list after a change, a token for all", await _after(list_tools, ALL), "ms"),
        *[Figure(f"the same for {name}", await _after(list_tools, caller), "ms") for name, caller in LIMITED],
    ]


def _change_entries(mesh: Mesh) -> Iterator[None]:
    """Disable one agent after another."""
    for entry in mesh.directory.list_entries():
        mesh.directory.set_enabled(entry, False)
        yield


async def _after(work: Callable[[Principal], Awaitable[None]], caller: Principal) -> float:
    await work(caller)
    return await _median_ms([lambda: work(caller)] * 9)


async def _median_ms(works: Sequence[Callable[[], Awaitable[None]]]) -> float:
    """The median processor time of the works, one after another."""
    spent = []
    for work in works:
        began = time.process_time()
        await work()
        spent.append((time.process_time() - began) * 1000)
    return statistics.median(spent)
