"""The figures of the model, and its pictures: ``python -m benchmarks.simulation.run FOLDER`` draws them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.simulation.charts import Axis, Curve, draw_chart
from benchmarks.simulation.model import World, simulate
from benchmarks.simulation.prices import INSTANCES, dollars_per_million
from benchmarks.simulation.reality import compare
from tests.crash.postgres import Postgres

LARGE = World()
"""100 hubs of two processes, 1,000,000 agents, 100,000 calls a second, 10 new cards a second."""

QUIET = replace(LARGE, calls_per_s=0.0)
LONGEST_S = 0.1
"""A hub that adds more than this to one call in a hundred is full."""

MEMORY_BYTES = 8e9


def measure() -> list[Figure]:
    server = Postgres()
    try:
        _, figures = compare(server)
    finally:
        server.close()
    return [*figures, *_list_large()]


def _list_large() -> Iterator[Figure]:
    result = simulate(LARGE)
    yield Figure("100 hubs, 1,000,000 agents, 100,000 calls/s: hub", result.hub_load * 100, "%")
    yield Figure("of it for probes, news and changes", result.background_load * 100, "%")
    yield Figure("Postgres", result.database_load * 100, "%")
    yield Figure("added to a call, p50", result.p50_s * 1e3, "ms")
    yield Figure("added to a call, p99", result.p99_s * 1e3, "ms")
    yield Figure("a change is at all hubs, at most", result.converged_s, "s", target=2)
    yield Figure("exchanges with Postgres", result.exchanges_per_s, "/s")
    yield Figure("bytes of Postgres to hubs", result.database_bytes_per_s / 1e6, "MB/s")
    yield Figure("bytes per change, all hubs", result.bytes_per_change / 1e3, "kB")
    yield Figure("memory of a hub", result.hub_memory_bytes / 1e9, "GB")
    unstamped = simulate(replace(QUIET, has_stamps=False, seconds=10.0))
    yield Figure("a hub with a registry without stamps, no calls", unstamped.background_load * 100, "%")
    alone = simulate(replace(QUIET, shares=False, seconds=10.0))
    yield Figure("a hub that shares no probes, no calls", alone.background_load * 100, "%")
    for instance in INSTANCES:
        hubs = _count_hubs(instance.cores)
        dollars = dollars_per_million(instance, hubs, LARGE.calls_per_s)
        yield Figure(f"{hubs} × {instance.name}, a million calls", dollars, "$")


def _count_hubs(cores: int) -> int:
    """The fewest hubs, in steps of ten, with which the large mesh works."""
    for hubs in range(10, 400, 10):
        world = replace(LARGE, hubs=hubs, processes=cores, seconds=5.0)
        result = simulate(world)
        if result.hub_load < 0.7 and result.p99_s < LONGEST_S and result.database_load < 0.7:
            return hubs
    return 400


def draw(folder: Path) -> None:
    """Write the pictures of the page about large meshes."""
    folder.mkdir(parents=True, exist_ok=True)
    rates = [5e3, 1e4, 2e4, 4e4, 8e4, 1.2e5]
    by_processes: dict[str, Curve] = {
        f"{cores} processes": [
            (
                rate,
                simulate(replace(LARGE, hubs=20, processes=cores, calls_per_s=rate, seconds=3.0)).p99_s * 1e3,
            )
            for rate in rates
        ]
        for cores in (1, 2, 4)
    }
    calls = draw_chart(
        "20 hubs, 1,000,000 agents: what a hub adds, p99",
        Axis("calls a second, whole mesh"),
        Axis("ms", is_log=True),
        by_processes,
    )
    hubs = [2, 4, 8, 16, 32, 64, 100]
    converged: Curve = [(n, simulate(replace(QUIET, hubs=n)).converged_s) for n in hubs]
    database: Curve = [(n, simulate(replace(QUIET, hubs=n)).database_load * 100) for n in hubs]
    convergence = draw_chart(
        "A new card is at all hubs, at most", Axis("hubs"), Axis("s"), {"10 cards a second": converged}, 2.0
    )
    postgres = draw_chart(
        "Postgres with 4 cores", Axis("hubs"), Axis("% busy"), {"10 cards a second": database}, 100.0
    )
    sizes = [1e4, 3e4, 1e5, 3e5, 1e6]
    background = draw_chart(
        "100 hubs without calls: one hub",
        Axis("agents", is_log=True),
        Axis("% of its processors", is_log=True),
        {
            "shares probes": _background(sizes, QUIET),
            "shares none": _background(sizes, replace(QUIET, shares=False)),
            "registry without stamps": _background(sizes, replace(QUIET, has_stamps=False)),
        },
        100.0,
    )
    charts = {"calls": calls, "convergence": convergence, "postgres": postgres, "background": background}
    for name, chart in charts.items():
        (folder / f"{name}.svg").write_text(chart)


def _background(sizes: Sequence[float], world: World) -> Curve:
    results = ((size, simulate(replace(world, agents=int(size), seconds=6.0))) for size in sizes)
    return [(size, max(0.1, result.background_load * 100)) for size, result in results]


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
