"""The dashboard of a large mesh: processor time and size of each page, and what a hub costs without visitors.

A hub knows 1,000 agents, 10,000 recorded calls and a run of 500 steps. The time of a page is the processor
time of the hub per request, so a busy machine disturbs it little. Memory is that of the hub after calls,
before the first page and after all of them.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

from benchmarks.figures import Figure, cpu_s_of, rss_bytes_of
from retinue.storage.state import State
from tests.support.large_mesh import LONG_TRACE, STEPS, WORKERS, fill_state

REQUESTS = 20
PAGE_MS = 100
PAGE_KB = 150
REST_S = 10.0
CALLS = 200
START_S = 120.0


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="dashboard-") as name:
        folder = Path(name)
        state = State(folder / "state")
        asyncio.run(fill_state(state))
        (folder / "workers.py").write_text(WORKERS)
        with _program(folder, "hub", "--bare", "--port", "0") as hub:
            url = _await_hub(state)
            with _program(folder, "serve", "workers.py"):
                visitor = _Visitor(url, state.local_token())
                visitor.await_agent("worker-agent")
                return [*_measure_rest(hub, visitor), *_measure_pages(folder, hub, visitor)]


def _measure_rest(hub: subprocess.Popen[bytes], visitor: _Visitor) -> Iterator[Figure]:
    """Nobody has opened a page yet: the hub rests, then forwards calls."""
    used_s = cpu_s_of(hub.pid)
    time.sleep(REST_S)
    yield Figure("hub at rest, no page open", (cpu_s_of(hub.pid) - used_s) / REST_S * 100, "% CPU")
    visitor.call("work", {"n": 1}, CALLS)
    used_s = cpu_s_of(hub.pid)
    visitor.call("work", {"n": 1}, CALLS)
    yield Figure("/execute, no page open", (cpu_s_of(hub.pid) - used_s) / CALLS * 1e3, "ms CPU")


def _measure_pages(folder: Path, hub: subprocess.Popen[bytes], visitor: _Visitor) -> Iterator[Figure]:
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


class _Visitor:
    """Reads pages and calls skills with the token of the mesh."""

    def __init__(self, url: str, token: str) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port or 80, timeout=60)
        self._headers = {"authorization": f"Bearer {token}", "accept": "text/html"}

    def read(self, path: str) -> bytes:
        status, body = self._ask("GET", path)
        if status != 200:
            raise RuntimeError(f"{path} answers {status}")
        return body

    def call(self, skill: str, params: dict[str, object], times: int = 1) -> object:
        body = json.dumps({"jsonrpc": "2.0", "method": skill, "params": params, "id": 1})
        found = b""
        for _ in range(times):
            _, found = self._ask("POST", "/execute", body)
        reply = json.loads(found)
        if "result" not in reply:
            raise RuntimeError(f"{skill}: {reply}")
        return reply["result"]

    def find_run(self) -> str:
        listed = self.call("list_runs", {"workflow": "long"})
        assert isinstance(listed, dict)
        return quote(str(listed["runs"][0]["run"]), safe="")

    def await_agent(self, name: str) -> None:
        until = time.monotonic() + START_S
        while self._ask("GET", f"/agents/{name}/agent-card")[0] != 200:
            if time.monotonic() > until:
                raise RuntimeError(f"{name} is not listed")
            time.sleep(0.2)

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        headers = self._headers | ({} if body is None else {"content-type": "application/json"})
        self._connection.request(method, path, body, headers)
        reply = self._connection.getresponse()
        return reply.status, reply.read()


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
    return {**kept, "RETINUE_HOME": str(folder / "state")}


@contextmanager
def _program(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{arguments[0]}.log").open("wb") as log:
        command = [sys.executable, "-m", "retinue", *arguments]
        process = subprocess.Popen(command, cwd=folder, env=_environment(folder), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def _run(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "retinue", *arguments]
    subprocess.run(command, cwd=folder, env=_environment(folder), check=True, capture_output=True)


def _await_hub(state: State) -> str:
    until = time.monotonic() + START_S
    while (hub := state.read_hub()) is None or not hub.is_ready:
        if time.monotonic() > until:
            raise RuntimeError("the hub does not start")
        time.sleep(0.1)
    return hub.url
