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
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, cpu_s_of
from retinue import Run, workflow

STEPS = 200
PARKED = 1_000
RESUMED = 1_000
TURNS = 8
BODY = "bench"
"""The name of runs whose body makes its steps itself."""
BARE_SHARES = {"SQLite": 1.3, "Postgres": 1.1}
"""At most so many times the step of a bare DBOS workflow takes a step of a workflow in Python."""
WATCHED_S = 10.0
LEASE_S = 3.0


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="workflows-") as folder:
        figures = _figures_on("SQLite", lambda name: f"sqlite:///{folder}/{name}.db", Path(folder))
    server = _open_postgres()
    try:
        with tempfile.TemporaryDirectory(prefix="workflows-") as folder:
            figures += _figures_on("Postgres", lambda _: server.create_database(), Path(folder))
            alone = _ask("transactions", server.create_database(), Path(folder))
            figures += [
                Figure("Postgres: a transaction as a step makes it, by the driver alone", alone["ms"], "ms"),
                Figure("Postgres: the same without waiting for the disk", alone["unflushed_ms"], "ms"),
            ]
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
        # the limit of 3 ms is for SQLite: a step on Postgres takes at least the transaction below
        Figure(f"{where}: one step of a run", ours["ms"], "ms", target=3 if where == "SQLite" else None),
        Figure(f"{where}: one step of a bare DBOS workflow", bare["ms"], "ms"),
        Figure(f"{where}: ours against the bare one", ours["ms"] / bare["ms"], "×"),
        Figure("one step of a plain function", plain["ms"], "ms"),
        *_code_figures(where, in_code),
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


def _code_figures(where: str, spent: dict[str, float]) -> list[Figure]:
    names = {
        "yaml": "one call of a workflow in YAML",
        "python": "one call of a workflow in Python",
        "step": "one own function as a step in Python",
        "engine": "one step of a run",
        "bare": "one step of bare DBOS beside it",
    }
    return [
        *(Figure(f"{where}: {text}", spent[f"{name}_ms"], "ms") for name, text in names.items()),
        *(Figure(f"{where}: CPU of {text}", spent[f"{name}_cpu_ms"], "ms") for name, text in names.items()),
        Figure(f"{where}: Python against YAML", spent["python_ms"] / spent["yaml_ms"], "×", target=1.1),
        Figure(f"{where}: Python against YAML, CPU", spent["python_cpu_ms"] / spent["yaml_cpu_ms"], "×"),
        Figure(
            f"{where}: Python against bare DBOS",
            spent["step_ms"] / spent["bare_ms"],
            "×",
            target=BARE_SHARES[where],
        ),
        Figure(
            f"{where}: Python against a step of a run, CPU",
            spent["step_cpu_ms"] / spent["engine_cpu_ms"],
            "×",
        ),
        Figure(
            f"{where}: a step of a run against bare DBOS, CPU",
            spent["engine_cpu_ms"] / spent["bare_cpu_ms"],
            "×",
        ),
        Figure(f"{where}: Python against bare DBOS, CPU", spent["step_cpu_ms"] / spent["bare_cpu_ms"], "×"),
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
    """Workflows in YAML, in Python and of bare DBOS in turn on one engine; a long function that is resumed.

    The best turn counts, because other programs use the machine, too.
    """
    from dbos import DBOS

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
    async def steps(run: Run) -> None:
        for _ in range(STEPS):
            await run.step(_nothing)

    has_reached_its_end = asyncio.Event()

    @workflow
    async def long(run: Run) -> None:
        for _ in range(RESUMED):
            await run.step(_nothing)
        has_reached_its_end.set()
        await run.receive("approval")

    @DBOS.workflow()
    async def bare_steps() -> None:
        for number in range(STEPS):
            await DBOS.run_step_async({"name": f"s{number}"}, _nothing)

    caller = MemoryCaller()
    caller.offer("work", work, agent="worker")
    tools = Tools(caller)
    interpreter = Interpreter(tools, code=CodeBody(HostedWorkflows([calls, steps, long]), tools).run)

    async def body(context: Any, request: Any) -> Any:
        if request.name != BODY:
            return await interpreter.run(context, request)
        return await _run_steps(lambda number: context.step(f"s{number}", _nothing, timeout_s=60))

    runs = _open_runs(body, database, folder)
    orchestrator = Orchestrator(runs)
    numbers = count()

    async def engine_steps() -> None:
        run_id = f"engine-{next(numbers)}"
        await _start(runs, run_id)
        (await runs.finish(run_id)).get()

    in_yaml = load_definition(LOOP)
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "yaml": lambda: orchestrator.run(in_yaml, {}),
        "python": lambda: orchestrator.run(calls.definition, {}),
        "step": lambda: orchestrator.run(steps.definition, {}),
        "engine": engine_steps,
        "bare": bare_steps,
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, way in ways.items():
            began, cpu_began = time.perf_counter(), time.process_time()
            await way()
            spent[name].append((time.perf_counter() - began, time.process_time() - cpu_began))
    figures: dict[str, float] = {}
    for name, turns in spent.items():
        walls_s, cpus_s = zip(*turns[1:], strict=True)  # the first turn warms up
        figures |= {f"{name}_ms": min(walls_s) * 1000 / STEPS, f"{name}_cpu_ms": min(cpus_s) * 1000 / STEPS}
    await orchestrator.start(long.definition, {}, run_id="long")
    await has_reached_its_end.wait()
    await runs.cancel("long")
    has_reached_its_end.clear()
    began = time.perf_counter()
    await runs.resume("long")
    await has_reached_its_end.wait()
    figures["resumed_s"] = time.perf_counter() - began
    await runs.cancel("long")
    await runs.aclose()
    return figures


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


async def _transactions(database: str, folder: Path) -> dict[str, float]:
    """One row locked and read, one inserted, and a commit, which waits for the disk or not."""
    import psycopg

    def measure_turn(connection: Any) -> float:
        began = time.perf_counter()
        for _ in range(STEPS):
            connection.execute("SELECT owner FROM runs WHERE id = 1 FOR NO KEY UPDATE").fetchall()
            connection.execute("INSERT INTO steps (output) VALUES (%s)", ("x" * 200,))
            connection.commit()
        return (time.perf_counter() - began) * 1000 / STEPS

    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE runs (id int PRIMARY KEY, owner text)")
        connection.execute("CREATE TABLE steps (id bigserial PRIMARY KEY, output text)")
        connection.execute("INSERT INTO runs VALUES (1, 'owner')")
        connection.commit()
        figures = {}
        for name, flush in (("ms", "on"), ("unflushed_ms", "off")):
            connection.execute(f"SET synchronous_commit = {flush}")
            connection.commit()
            figures[name] = min(measure_turn(connection) for _ in range(TURNS))
    return figures


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

    await runs.start(RunRequest(BODY, {}, None), run_id=run_id)


def _main(what: str, database: str, folder: Path) -> None:
    if what.startswith("node-"):
        asyncio.run(_node(what.partition("-")[2], database, folder))
        return
    work = {
        "plain": _plain,
        "steps": _steps,
        "bare": _bare,
        "parked": _parked,
        "code": _code,
        "transactions": _transactions,
    }[what]
    found = asyncio.run(work(database, folder))
    print(json.dumps(found), flush=True)
    # Parked runs are let go of as a killed process would.
    os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
