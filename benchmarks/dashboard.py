"""The dashboard of a large mesh: processor time and size of each page, and the idle cost for a hub.

A hub knows 1,000 agents, 10,000 recorded calls and a run of 500 steps. The time of a page is the processor
time of the hub per request, so a busy machine disturbs it little. Memory is that of the hub after calls,
before the first page, after all of them, and after all of them again. What a hub without visitors pays is
measured against a hub without pages (`benchmarks.dashboard_cost`).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.dashboard_cost import measure_cost
from benchmarks.figures import Figure, cpu_s_of, rss_bytes_of
from benchmarks.hub_visitor import Visitor, await_hub, environment, program
from retinue.storage.state import State
from tests.support.large_mesh import LONG_TRACE, STEPS, WORKERS, fill_state

REQUESTS = 20
PAGE_MS = 100
PAGE_KB = 150
REST_S = 10.0
CALLS = 200
MORE_MB = 2


def measure() -> list[Figure]:
    return [*measure_cost(), *_measure_large_mesh()]


def _measure_large_mesh() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="dashboard-") as name:
        folder = Path(name)
        state = State(folder / "state")
        asyncio.run(fill_state(state))
        (folder / "workers.py").write_text(WORKERS)
        with program(folder, "hub", "--bare", "--port", "0") as hub:
            url = await_hub(state)
            with program(folder, "serve", "workers.py"):
                visitor = Visitor(url, state.local_token())
                visitor.await_agent("worker-agent")
                return [*_measure_rest(hub, visitor), *_measure_pages(folder, hub, visitor)]


def _measure_rest(hub: subprocess.Popen[bytes], visitor: Visitor) -> Iterator[Figure]:
    """Nobody has opened a page yet: the hub rests, then forwards calls."""
    used_s = cpu_s_of(hub.pid)
    time.sleep(REST_S)
    yield Figure("hub at rest, no page open", (cpu_s_of(hub.pid) - used_s) / REST_S * 100, "% CPU")
    visitor.call("work", {"n": 1}, CALLS)
    used_s = cpu_s_of(hub.pid)
    visitor.call("work", {"n": 1}, CALLS)
    yield Figure("/execute, no page open", (cpu_s_of(hub.pid) - used_s) / CALLS * 1e3, "ms CPU")


def _measure_pages(folder: Path, hub: subprocess.Popen[bytes], visitor: Visitor) -> Iterator[Figure]:
    _run(folder, "run", "long", json.dumps({"items": list(range(1, STEPS + 1))}))
    run = visitor.find_run()
    before = rss_bytes_of(hub.pid)
    pages = {
        "overview": "/",
        "agents": "/ui/agents",
        "agents, search": "/ui/agents?q=build+kind+7",
        "agent": "/ui/agents/agent-0005",
        "skill": "/ui/agents/agent-0005/skills/skill_5_0",
        "calls": "/ui/calls",
        "calls, only failed": "/ui/calls?failed=1",
        "trace of 1,500 calls": f"/ui/traces/{LONG_TRACE}",
        "runs": "/ui/runs",
        f"run of {STEPS} steps": f"/ui/runs/{run}",
        f"run of {STEPS} steps, its items": f"/ui/runs/{run}?step=each",
        "workflows": "/ui/workflows",
        "workflow": "/ui/workflows/long",
        "mesh": "/ui/mesh",
    }
    for name, path in pages.items():
        size = len(visitor.read(path))
        used_s = cpu_s_of(hub.pid)
        for _ in range(REQUESTS):
            visitor.read(path)
        spent_ms = (cpu_s_of(hub.pid) - used_s) / REQUESTS * 1e3
        yield Figure(f"{name}, processor time", spent_ms, "ms", target=PAGE_MS)
        yield Figure(f"{name}, size", size / 1e3, "kB", target=PAGE_KB)
    grown = (rss_bytes_of(hub.pid) - before) / 1e6
    yield Figure(f"hub memory, all pages {REQUESTS} times", grown, "MB")
    # what a page leaves behind is kept once; a cache that grows with each reading shows in the last round
    rounds = []
    for _ in range(3):
        for _ in range(REQUESTS):
            for path in pages.values():
                visitor.read(path)
        rounds.append(rss_bytes_of(hub.pid) / 1e6)
    more = rounds[-1] - rounds[-2]
    yield Figure(f"hub memory, the last {REQUESTS} of {4 * REQUESTS} times", more, "MB", target=MORE_MB)


def _run(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "retinue", *arguments]
    subprocess.run(command, cwd=folder, env=environment(folder), check=True, capture_output=True)
