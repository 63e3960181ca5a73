"""Leases: who lives although clocks are set, and to whom the runs of the dead go."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from retinue.core.errors import StorageFullError
from retinue.workflows.durable import nodes
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.nodes import Lease, Look, SeenLeases, share_out
from retinue.workflows.runs.records import RunRequest
from tests.workflows.durable.own_suite import open_at

HOUR_S = 3600.0
LEASE_S = 30.0


def test_outermost_runs_go_round_and_take_with_them_what_is_below() -> None:
    runs = ["a", "a/x", "b", "c", "c/x", "c/x/y", "d/only"]
    assert share_out(runs, ["one", "two"]) == {
        "one": ["a", "a/x", "c", "c/x", "c/x/y"],
        "two": ["b", "d/only"],
    }


def test_nobody_gets_the_runs_when_nobody_lives() -> None:
    assert share_out(["a"], []) == {}


@dataclass(frozen=True)
class Row:
    executor: str
    expires: float
    now: float


class Table:
    """Leases seen by one process, whose clocks are set by the test."""

    def __init__(self) -> None:
        self.seen = SeenLeases(LEASE_S)
        self.ticks = 100.0
        self.clock = 1e9
        self.expires: dict[str, float] = {}

    def renew(self, *executors: str) -> None:
        self.expires |= dict.fromkeys(executors, self.clock + LEASE_S)

    def set_clock(self, step_s: float) -> None:
        self.clock += step_s

    def wait(self, seconds: float) -> None:
        self.ticks += seconds
        self.clock += seconds

    def look(self, took_s: float = 0.0) -> float:
        """The rows are read at the beginning of a look that takes so long."""
        rows = [Row(executor, expires, self.clock) for executor, expires in self.expires.items()]
        began_at = self.ticks
        self.wait(took_s)
        return self.seen.take_in(Look(rows, began_at, self.ticks))

    def list_over(self) -> list[str]:
        return sorted(self.seen.list_over(self.ticks))


@pytest.mark.parametrize("step_s", [HOUR_S, 20.0, -20.0, -120.0, -HOUR_S])
def test_a_lease_ends_by_the_time_that_passes_and_not_by_a_step_of_the_clock(step_s: float) -> None:
    table = Table()
    table.renew("lives", "dead")
    table.look()
    table.set_clock(step_s)
    assert table.look() == pytest.approx(step_s)
    table.wait(LEASE_S - 1)
    assert table.list_over() == []
    table.renew("lives")
    table.look()
    table.wait(2)
    assert table.list_over() == ["dead"]
    assert table.seen.list_living(table.ticks) == {"lives"}


@pytest.mark.parametrize("step_s", [HOUR_S, 20.0, -20.0, -120.0, -HOUR_S])
@pytest.mark.parametrize("renewed", ["before", "after"])
def test_a_lease_renewed_about_the_time_of_a_step_lasts_one_lease(step_s: float, renewed: str) -> None:
    table = Table()
    table.renew("one")
    table.look()
    table.wait(5)
    if renewed == "before":
        table.renew("one")
        table.set_clock(step_s)
    else:
        table.set_clock(step_s)
        table.renew("one")
    table.look()
    table.wait(LEASE_S - 1)
    assert table.list_over() == []
    # Small steps leave a doubt of their own size.
    table.wait(min(abs(step_s), LEASE_S) + 1)
    assert table.list_over() == ["one"]


def test_a_lease_renewed_between_two_steps_that_cancel_out_lasts_one_lease() -> None:
    table = Table()
    table.renew("one")
    table.look()
    table.wait(5)
    table.set_clock(-HOUR_S)
    table.renew("one")
    table.set_clock(HOUR_S)
    assert table.look() == 0.0
    table.wait(LEASE_S - 6)
    assert table.list_over() == []
    table.wait(2)
    assert table.list_over() == ["one"]


def test_a_slow_answer_of_the_database_is_not_taken_for_a_step() -> None:
    table = Table()
    table.renew("one")
    for took_s in (0.0, LEASE_S / 2, 0.0, LEASE_S, 0.0):
        assert table.look(took_s) == 0.0


def test_the_first_look_takes_the_rows_at_their_word() -> None:
    table = Table()
    table.renew("old")
    table.wait(2 * LEASE_S)
    table.renew("new")
    table.look()
    assert table.list_over() == ["old"]
    table.wait(LEASE_S + 1)
    assert table.list_over() == ["new", "old"]


class SetDatabase(RunDatabase):
    """A database whose clock is set by the test."""

    offset_s = 0.0

    def clock(self) -> dict[str, Any]:
        return {"now": time.time() + self.offset_s}


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SetDatabase]:
    database = SetDatabase(f"sqlite:///{tmp_path}/runs.db")
    await database.prepare()
    yield database
    database.close()


async def queue_at(database: RunDatabase, run: str, node: str) -> None:
    request = RunRequest("name", {}, None).to_json()
    await database.ask(database.client.enqueue, run, (request, None, time.time()), node)


async def read_queues(database: RunDatabase) -> dict[str, str]:
    query = sa.text("SELECT workflow_uuid AS run, queue_name AS queue FROM workflow_status")
    rows = await database.read(lambda connection: connection.execute(query).fetchall())
    return {row.run: row.queue for row in rows}


async def read_nodes(database: RunDatabase) -> set[str]:
    query = sa.text(f"SELECT executor FROM {database.nodes}")
    return set(await database.read(lambda connection: connection.execute(query).scalars().all()))


def leases(database: RunDatabase, *executors: str) -> list[Lease]:
    return [Lease(database, one, lease_s=LEASE_S, count_running=lambda: 0) for one in executors]


async def test_a_clock_set_between_the_renewal_and_the_rescue_ends_no_lease(database: SetDatabase) -> None:
    one, two = leases(database, "one", "two")
    await two.renew()
    await queue_at(database, "run", "two")
    await one.renew()
    database.offset_s = HOUR_S
    await one.rescue()
    assert await read_nodes(database) == {"one", "two"}
    assert await read_queues(database) == {"run": "node:two"}


async def test_a_start_is_refused_soon_with_the_remedy_where_a_full_disk_made_the_lease_be_lost(
    tmp_path: Path,
) -> None:
    runs = open_at(tmp_path)
    lease = (await runs.launch()).lease
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    lease._until = time.monotonic()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        async with asyncio.timeout(60):
            with pytest.raises(StorageFullError, match=r"no space left for .*runs.db") as caught:
                await runs.start(RunRequest("test", {}, "x"), run_id="new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.remedy == "free some space"
    # As soon as there is room, without waiting for the next renewal.
    await runs.start(RunRequest("test", {}, "x"), run_id="new")
    assert lease.left_s > 0
    assert lease.epoch == 1
    await runs.aclose()


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
async def test_a_living_node_that_renews_later_than_the_others_keeps_its_runs(
    database: SetDatabase, step_s: float
) -> None:
    one, two, late = leases(database, "one", "two", "late")
    for lease in (late, two, one):
        await lease.renew()
    await queue_at(database, "run", "late")
    database.offset_s = step_s
    for lease in (two, one, two, one):
        await lease.renew()
        await lease.rescue()
    assert {node.executor for node in one.nodes} == {"one", "two", "late"}
    assert await read_nodes(database) == {"one", "two", "late"}
    assert await read_queues(database) == {"run": "node:late"}


async def test_a_lease_renewed_after_it_was_seen_to_end_is_kept(database: SetDatabase) -> None:
    one, two = leases(database, "one", "two")
    await two.renew()
    await queue_at(database, "run", "two")
    # A new process sees a row that has ended by the clock.
    database.offset_s = 2 * LEASE_S
    await one.renew()
    await two.renew()
    await one.rescue()
    assert await read_queues(database) == {"run": "node:two"}


async def test_the_runs_of_an_ended_lease_go_to_a_living_node(database: SetDatabase) -> None:
    one, two = leases(database, "one", "two")
    await two.renew()
    await queue_at(database, "run", "two")
    database.offset_s = 2 * LEASE_S
    await one.renew()
    await one.rescue()
    assert await read_nodes(database) == {"one"}
    assert await read_queues(database) == {"run": "node:one"}


async def test_a_renewal_that_an_outage_held_up_for_longer_than_the_lease_lets_nobody_be_taken_over(
    database: SetDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(nodes, "time", SimpleNamespace(monotonic=lambda: now))
    (lease,) = leases(database, "one")
    await lease.renew()
    now += LEASE_S - 1
    await lease.renew()
    assert lease.may_take_over
    write = database.write

    async def write_after_the_outage(*arguments: Any, **options: Any) -> Any:
        nonlocal now
        now += 2 * LEASE_S
        return await write(*arguments, **options)

    monkeypatch.setattr(database, "write", write_after_the_outage)
    await lease.renew()
    assert lease.epoch == 0
    assert not lease.may_take_over
    monkeypatch.setattr(database, "write", write)
    await lease.renew()
    assert lease.epoch == 1
    assert not lease.may_take_over
    now += LEASE_S - 1
    await lease.renew()
    assert lease.may_take_over
