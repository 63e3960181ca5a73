"""Several nodes on one database: one dies for good, one is frozen, the database itself goes away."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import UnknownRunError
from retinue.workflows.durable.runs import DurableRuns
from retinue.workflows.runs.ports import RunContext, Runs
from retinue.workflows.runs.records import RunEvent, RunRecord, RunRequest
from retinue.workflows.runs.tree import list_effects
from tests.crash.code_flows import CODE_SHAPES, CodeShape
from tests.crash.conftest import Start
from tests.crash.node import Plan
from tests.crash.postgres import Postgres
from tests.crash.processes import WAIT_S, Node, await_log, check_log, read_log
from tests.processes.freezing import freeze
from tests.time_bounds import Stopwatch
from tests.workflows.shapes import HALF_DONE, HALF_DONE_EFFECTS, SHAPES, Shape

SEQUENCE, PARALLEL, TOGETHER = SHAPES["sequence"], SHAPES["parallel"], CODE_SHAPES["code: together"]
LEASE_S = 1.5
STOPS_S = 2.0
KILLED_FOR_S = 120.0
KILLED_AT_RANDOM = {
    "sequence": 3,
    "parallel": 7,
    "foreach": 55,
    "vote": 5,
    "race of branches": 4,
    "nested workflow in a branch": 5,
    "code: together": 12,
    "code: steps in a row": 21,
    "code: child runs": 36,
}
"""The shapes of the runs whose nodes are killed at random, and what each gives."""


async def _never(context: RunContext, request: RunRequest) -> Any:
    raise AssertionError("this process runs nothing")


@asynccontextmanager
async def looking_at(database: str, folder: Path) -> AsyncIterator[DurableRuns]:
    """The runs seen from a process that takes no part."""
    runs = DurableRuns(_never, url=database, nodes=folder / "nobody")
    try:
        yield runs
    finally:
        await runs.aclose()


async def finish_all(runs: Runs, names: Sequence[str], timeout_s: float) -> list[RunRecord]:
    async with asyncio.timeout(timeout_s):
        return [await runs.finish(name) for name in names]


def plan_at(tmp_path: Path, database: str, name: str, **more: Any) -> Plan:
    given: dict[str, Any] = {"start": {}, "lease_s": LEASE_S, "slow_s": 0.2} | more
    return Plan(database=database, nodes=str(tmp_path / name), log=str(tmp_path / "log"), **given)


def list_files(database: str) -> list[Path]:
    """The file of a database on SQLite, which has only one lock for all writers."""
    file = database.removeprefix("sqlite:///")
    return [] if file == database else [Path(file)]


@pytest.mark.parametrize(("shape", "value"), [(PARALLEL, 7), (TOGETHER, 12)], ids=["yaml", "python"])
async def test_the_runs_of_a_node_that_died_end_at_another(
    shape: Shape | CodeShape, value: int, database: str, start: Start, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    names = [f"r{number}" for number in range(4)]
    other = start(plan_at(tmp_path, database, "other", stay=True))
    await_log(log, lambda entries: ("ready", "-", other.pid) in entries)
    first = start(plan_at(tmp_path, database, "first", start=dict.fromkeys(names, shape)))
    await_log(log, lambda entries: sum(what == "end" for what, _, _ in entries) > 6)
    first.send_signal(signal.SIGKILL)
    async with looking_at(database, tmp_path) as runs:
        records = await finish_all(runs, names, WAIT_S)
        assert [record.get() for record in records] == [{"n": value}] * len(names)
        assert {record.status for record in await runs.list_all(children=True)} == {"done"}
    entries = read_log(log)
    check_log(entries, kills=1)
    assert {pid for what, _, pid in entries if what == "begin"} == {first.pid, other.pid}


@pytest.mark.parametrize(
    ("shapes", "values"),
    [
        ({"r": PARALLEL, "s": SEQUENCE}, [{"n": 7}, {"n": 3}]),
        ({"r": TOGETHER, "s": CODE_SHAPES["code: steps in a row"]}, [{"n": 12}, {"n": 21}]),
    ],
    ids=["yaml", "python"],
)
async def test_a_node_frozen_past_its_lease_damages_nothing(
    shapes: Mapping[str, Shape | CodeShape],
    values: list[Any],
    database: str,
    start: Start,
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    other = start(plan_at(tmp_path, database, "other", stay=True))
    await_log(log, lambda entries: ("ready", "-", other.pid) in entries)
    first = start(plan_at(tmp_path, database, "first", start=shapes, stay=True))
    await_log(log, lambda entries: sum(what == "begin" for what, _, _ in entries) > 4)
    freeze(first.pid, list_files(database))
    async with looking_at(database, tmp_path) as runs:
        records = await finish_all(runs, ["r", "s"], WAIT_S)
        assert [record.get() for record in records] == values
        before = read_log(log)
        first.send_signal(signal.SIGCONT)
        # It has learned what became of its runs: whatever it was about to do is done or given up.
        await_log(log, lambda entries: ("done", "-", first.pid) in entries)
        after = read_log(log)[len(before) :]
        assert [key for what, key, _ in after if what == "begin"] == []
        assert await finish_all(runs, ["r", "s"], WAIT_S) == records
    check_log(before, kills=1)


def test_new_runs_go_to_whoever_has_much_less_to_do(database: str, start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    runs = dict.fromkeys((f"r{number}" for number in range(24)), SEQUENCE)
    # neither ends a run nor loses its lease meanwhile, however long the starts take
    calm: dict[str, Any] = {"slow_s": 600.0, "lease_s": 60.0}
    other = start(plan_at(tmp_path, database, "other", stay=True, **calm))
    await_log(log, lambda entries: ("ready", "-", other.pid) in entries)
    first = start(plan_at(tmp_path, database, "first", start=runs, **calm))
    await_log(log, lambda entries: sum(what == "begin" for what, _, _ in entries) == len(runs))
    begun = Counter(pid for what, _, pid in read_log(log) if what == "begin")
    assert begun.keys() == {first.pid, other.pid}
    assert min(begun.values()) >= 6


@pytest.mark.parametrize("takes_part", [False, True])
async def test_a_run_cancelled_from_another_process_stops_within_two_seconds(
    takes_part: bool, database: str, start: Start, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    names = ["r", "s", "t"]
    node = start(plan_at(tmp_path, database, "node", start=dict.fromkeys(names, HALF_DONE), stay=True))
    async with looking_at(database, tmp_path) as runs:
        if takes_part:
            await runs.launch()
        for name in names:
            await_log(log, partial(_hangs, name))
            stopwatch = Stopwatch()
            assert (await runs.cancel(name)).status == "cancelled"
            events = await await_ends(runs, name, 3)
            stopwatch.check(STOPS_S)
            await_log(log, lambda entries, name=name: not _hangs(name, entries))  # type: ignore[misc]
            told = list_effects(events).items()
            assert {
                word: {one["step"] for one in calls} for word, calls in told if calls
            } == HALF_DONE_EFFECTS
            assert list_ends(events) == ["cancelled"] * 3
    assert node.process.is_alive()


async def await_ends(runs: Runs, name: str, count: int) -> Sequence[RunEvent]:
    """The events of a run and its children when so many of them have ended."""
    async with asyncio.timeout(WAIT_S):
        while len(list_ends(events := await runs.list_events(name))) < count:
            await asyncio.sleep(0.02)
    return events


def list_ends(events: Sequence[RunEvent]) -> list[str]:
    """The statuses of the runs that have ended."""
    return [event.facts["status"] for event in events if event.kind == "run_finished"]


def _hangs(name: str, entries: Sequence[tuple[str, str, int]]) -> bool:
    """Whether calls of a run go on, once it goes no further."""
    own = [(what, key) for what, key, _ in entries if key.startswith(f"{name}/")]
    begun = {key for what, key in own if what == "begin"}
    over = {key for what, key in own if what in ("end", "cut")}
    return len(begun) == sum(map(len, HALF_DONE_EFFECTS.values())) and begun > over


@pytest.mark.crash
async def test_runs_go_on_when_postgres_was_away_for_ten_seconds(
    postgres: Postgres, start: Start, tmp_path: Path
) -> None:
    database, log = postgres.create_database(), tmp_path / "log"
    nodes = [
        start(plan_at(tmp_path, database, name, start={name: PARALLEL}, slow_s=0.5, lease_s=6.0))
        for name in ("a", "b")
    ]
    await_log(log, lambda entries: sum(what == "begin" for what, _, _ in entries) > 3)
    postgres.stop()
    time.sleep(10)  # noqa: ASYNC251  # the outage itself
    postgres.start()
    for node in nodes:
        assert list(node.get_report().values.values()) == [{"n": 7}]
    check_log(read_log(log), kills=0)


@pytest.mark.crash
@pytest.mark.timeout(600)
async def test_nodes_killed_at_random_lose_no_run(database: str, start: Start, tmp_path: Path) -> None:
    """200 runs on two nodes, killed at random for two minutes: each run ends once, as it should.

    Each node that starts anew begins further runs, so that there are some in flight at each kill.
    """
    log, dice = tmp_path / "log", random.Random(6)
    known: dict[str, Shape | CodeShape] = {**SHAPES, **CODE_SHAPES}
    shapes = [(known[name], wanted) for name, wanted in KILLED_AT_RANDOM.items()]
    shares = {node: [f"{node}{number}" for number in range(100)] for node in "ab"}

    def start_node(name: str, part: float) -> Node:
        begun = shares[name][: round(part * len(shares[name]))]
        given = {run: shapes[int(run[1:]) % len(shapes)][0] for run in begun}
        return start(plan_at(tmp_path, database, name, start=given, slow_s=1.5, lease_s=3.0, stay=True))

    def restart(name: str, part: float) -> None:
        nodes[name].send_signal(signal.SIGKILL)
        nodes[name].close()
        nodes[name] = start_node(name, part)

    nodes = {name: start_node(name, 0.1) for name in shares}
    kills, began = 0, time.monotonic()
    while (passed_s := time.monotonic() - began) < KILLED_FOR_S:
        time.sleep(dice.uniform(2, 8))  # noqa: ASYNC251  # the nodes are processes of their own
        restart(dice.choice("ab"), min(1.0, 0.1 + passed_s / KILLED_FOR_S))
        kills += 1
    for name in shares:
        restart(name, 1.0)
        kills += 1
    names = [run for share in shares.values() for run in share]
    async with looking_at(database, tmp_path) as runs:
        for name in names:
            await _await_known(runs, name)
        records = await finish_all(runs, names, 240)
        for record in records:
            assert record.get() == {"n": shapes[int(record.id[1:]) % len(shapes)][1]}, record.id
        events = [event for name in names for event in await runs.list_events(name)]
    ends = Counter(event.run_id for event in events if event.kind == "run_finished")
    assert {ends[name] for name in names} == {1}
    assert set(ends.values()) == {1}
    entries = read_log(log)
    check_log(entries, kills=kills)
    again = Counter(key for what, key, _ in entries if what == "begin").values()
    print(f"{len(names)} runs, {kills} kills, {sum(again) - len(again)} effects begun again")


async def _await_known(runs: Runs, name: str) -> None:
    """Wait until a node has begun a run that it was given."""
    async with asyncio.timeout(60):
        while True:
            try:
                await runs.get(name)
            except UnknownRunError:
                await asyncio.sleep(0.1)
            else:
                return
