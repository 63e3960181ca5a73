"""Runs of workflows: the cost of a step and of a parked run, and the delay of failover from a dead node.

Each figure is taken in a process of its own, since the engine is one per process. The workflow has
steps that do nothing, so that what is left is the engine; a plain function and a bare workflow of DBOS
do the same beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, cpu_s_of
from retinue import Run, workflow

STEPS = 200
PARKED = 1_000
RESUMED = 1_000
WATCHED_S = 10.0
LEASE_S = 3.0


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="workflows-") as folder:
        figures = _figures_on("SQLite", lambda name: f"sqlite:///{folder}/{name}.db", Path(folder))
    server = _open_postgres()
    try:
        with tempfile.TemporaryDirectory(prefix="workflows-") as folder:
            figures += _figures_on("Postgres", lambda _: server.create_database(), Path(folder))
    finally:
        server.close()
    return figures


def _figures_on(where: str, database_of: Callable[[str], str], folder: Path) -> list[Figure]:
    ours = _ask("steps", database_of("steps"), folder)
    bare = _ask("bare", database_of("bare"), folder)
    plain = _ask("plain", "", folder)
    parked = _ask("parked", database_of("parked"), folder)
    in_code = _ask("code", database_of("code"), folder)
    return [
        Figure(f"{where}: one step of a run", ours["ms"], "ms", target=3),
        Figure(f"{where}: one step of a bare DBOS workflow", bare["ms"], "ms"),
        Figure(f"{where}: ours against the bare one", ours["ms"] / bare["ms"], "×"),
        Figure("one step of a plain function", plain["ms"], "ms"),
        Figure(f"{where}: one call of a workflow in YAML", in_code["yaml_ms"], "ms"),
        Figure(f"{where}: one call of a workflow in Python", in_code["python_ms"], "ms"),
        Figure(f"{where}: Python against YAML", in_code["python_ms"] / in_code["yaml_ms"], "×", target=1.1),
        Figure(f"{where}: resumed after {RESUMED:,} steps", in_code["resumed_s"], "s", target=2),
        Figure(f"{where}: {PARKED} parked runs, started in", parked["started_s"], "s"),
        Figure(f"{where}: {PARKED} parked runs, memory", parked["memory_mb"], "MB"),
        Figure(f"{where}: {PARKED} parked runs, processor", parked["cpu_percent"], "%"),
        Figure(
            f"{where}: from a death to the next step, leases of {LEASE_S:g} s",
            _measure_takeover(database_of("takeover"), folder),
            "s",
            target=2 * LEASE_S,
        ),
    ]


def _open_postgres() -> Any:
    from tests.crash.postgres import Postgres

    return Postgres()


def _ask(what: str, database: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.workflows", what, database, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure_takeover(database: str, folder: Path) -> float:
    """Seconds from the SIGKILL of one node to the next step of its run at another."""
    log = folder / "steps.log"
    log.unlink(missing_ok=True)
    nodes = [_start_node(name, database, folder) for name in ("first", "second")]
    try:
        _await(lambda: log.exists() and len(log.read_text().splitlines()) > 3)
        first = log.read_text().split()[0]
        victim = next(node for node in nodes if node.pid == int(first))
        victim.send_signal(signal.SIGKILL)
        died = time.perf_counter()
        _await(lambda: len(set(log.read_text().split())) > 1)
        return time.perf_counter() - died
    finally:
        for node in nodes:
            node.kill()
            node.wait()


def _start_node(name: str, database: str, folder: Path) -> subprocess.Popen[bytes]:
    node = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.workflows", f"node-{name}", database, str(folder)],
        stdout=subprocess.PIPE,
    )
    assert node.stdout is not None
    node.stdout.readline()
    return node


def _await(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        if time.monotonic() > until:
            raise RuntimeError("it never came to that")
        time.sleep(0.02)


# What the child processes do.


async def _run_steps(step: Callable[[int], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    for number in range(STEPS):
        await step(number)
    return (time.perf_counter() - began) * 1000 / STEPS


async def _nothing() -> int:
    return 1


async def _plain(database: str, folder: Path) -> dict[str, float]:
    return {"ms": await _run_steps(lambda _: _nothing())}


async def _steps(database: str, folder: Path) -> dict[str, float]:
    async def body(context: Any, request: Any) -> float:
        return await _run_steps(lambda number: context.step(f"s{number}", _nothing, timeout_s=60))

    runs = _open_runs(body, database, folder)
    await _start(runs, "warm")
    await runs.finish("warm")
    await _start(runs, "measured")
    ms = (await runs.finish("measured")).get()
    await runs.aclose()
    return {"ms": ms}


LOOP = f"""
name: calls
steps:
  - id: again
    loop: {{max: {STEPS}}}
    steps: [{{id: one, skill: work, with: {{n: 1}}}}]
"""


async def _code(database: str, folder: Path) -> dict[str, float]:
    """The same calls by workflows in YAML and in Python, in turn; and a long function that is resumed."""
    from retinue.flows.body import CodeBody, HostedWorkflows
    from retinue.testing.memory_caller import MemoryCaller
    from retinue.workflows.definitions.loading import load_definition
    from retinue.workflows.interpreter.frame import Tools
    from retinue.workflows.interpreter.step_loop import Interpreter
    from retinue.workflows.orchestrator import Orchestrator

    async def work(arguments: Any) -> int:
        return 1

    @workflow
    async def calls(run: Run) -> int:
        last = 0
        for _ in range(STEPS):
            last = await run.call("work", {"n": 1})
        return last

    @workflow
    async def long(run: Run) -> None:
        for _ in range(RESUMED):
            await run.step(_nothing)
        await run.receive("approval")

    caller = MemoryCaller()
    caller.offer("work", work, agent="worker")
    tools = Tools(caller)
    body = Interpreter(tools, code=CodeBody(HostedWorkflows([calls, long]), tools).run).run
    runs = _open_runs(body, database, folder)
    orchestrator = Orchestrator(runs)
    definitions = {"yaml_ms": load_definition(LOOP), "python_ms": calls.definition}
    found = dict.fromkeys(definitions, 0.0)
    for turn in range(4):
        for name, definition in definitions.items():
            began = time.perf_counter()
            await orchestrator.run(definition, {})
            took_ms = (time.perf_counter() - began) * 1000 / STEPS
            found[name] = took_ms if turn < 2 else min(found[name], took_ms)  # the first turn warms up
    await orchestrator.start(long.definition, {}, run_id="long")
    await _await_wait(runs, 1)
    await runs.cancel("long")
    began = time.perf_counter()
    await runs.resume("long")
    await _await_wait(runs, 2)
    found["resumed_s"] = time.perf_counter() - began
    await runs.cancel("long")
    await runs.aclose()
    return found


async def _await_wait(runs: Any, times: int) -> None:
    """Wait until the long run has begun to wait for its signal so often."""
    while True:
        events = await runs.list_events("long")
        if sum(event.facts.get("kind") == "wait" for event in events) >= times:
            return
        await asyncio.sleep(0.01)


async def _bare(database: str, folder: Path) -> dict[str, float]:
    from dbos import DBOS, DBOSPortableJSONSerializer

    from retinue.workflows.durable.database import RunDatabase

    @DBOS.workflow()
    async def workflow() -> float:
        return await _run_steps(lambda number: DBOS.run_step_async({"name": f"s{number}"}, _nothing))

    opened = RunDatabase(database)
    DBOS(
        config={
            "name": "bare",
            "system_database_url": opened.url.render_as_string(hide_password=False),
            "system_database_engine": opened.open_engine(2, tested=False),
            "serializer": DBOSPortableJSONSerializer(),
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    await workflow()
    ms = await workflow()
    await asyncio.to_thread(DBOS.destroy)
    return {"ms": ms}


async def _parked(database: str, folder: Path) -> dict[str, float]:
    async def body(context: Any, request: Any) -> None:
        await context.receive("approval", "approved", 3600)

    runs = _open_runs(body, database, folder)
    await runs.launch()
    before_mb = _memory_mb()
    began = time.perf_counter()
    for number in range(PARKED):
        await _start(runs, f"r{number}")
    last = [event.step for event in await runs.list_events(f"r{PARKED - 1}")]
    while "approval" not in last:
        await asyncio.sleep(0.05)
        last = [event.step for event in await runs.list_events(f"r{PARKED - 1}")]
    started_s = time.perf_counter() - began
    await asyncio.sleep(2)
    spent_s = cpu_s_of(os.getpid())
    await asyncio.sleep(WATCHED_S)
    cpu_percent = (cpu_s_of(os.getpid()) - spent_s) / WATCHED_S * 100
    memory_mb = _memory_mb() - before_mb
    return {"started_s": started_s, "memory_mb": memory_mb, "cpu_percent": cpu_percent}


def _memory_mb() -> float:
    """What this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2


async def _node(name: str, database: str, folder: Path) -> dict[str, float]:
    """Work for ever on a run whose steps write down who makes them."""

    async def note() -> None:
        with (folder / "steps.log").open("a") as log:
            log.write(f"{os.getpid()}\n")
        await asyncio.sleep(0.05)

    async def body(context: Any, request: Any) -> None:
        for number in range(10_000):
            await context.step(f"s{number}", note, timeout_s=60)

    (folder / name).mkdir()
    runs = _open_runs(body, database, folder / name, lease_s=LEASE_S)
    await runs.launch()
    if name == "first":
        await _start(runs, "r")
    print("ready", flush=True)
    await asyncio.Event().wait()
    return {}


def _open_runs(body: Any, database: str, folder: Path, lease_s: float = 15.0) -> Any:
    from retinue.workflows.durable.runs import DurableOptions, DurableRuns

    return DurableRuns(body, url=database, nodes=folder / "nodes", options=DurableOptions(lease_s=lease_s))


async def _start(runs: Any, run_id: str) -> None:
    from retinue.workflows.runs.records import RunRequest

    await runs.start(RunRequest("bench", {}, None), run_id=run_id)


def _main(what: str, database: str, folder: Path) -> None:
    if what.startswith("node-"):
        asyncio.run(_node(what.partition("-")[2], database, folder))
        return
    work = {"plain": _plain, "steps": _steps, "bare": _bare, "parked": _parked, "code": _code}[what]
    found = asyncio.run(work(database, folder))
    print(json.dumps(found), flush=True)
    # Parked runs are let go of as a killed process would.
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
