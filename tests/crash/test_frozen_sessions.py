"""A node that stands still in the middle of a transaction holds up nobody for long, and does it again."""

from __future__ import annotations

import asyncio
import threading

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.types.string import StrDumper

from retinue.workflows.durable import database as module
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.nodes import Lease
from tests.crash.postgres import Postgres

pytestmark = pytest.mark.crash


async def test_what_a_frozen_session_holds_is_given_back_and_it_begins_again(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.5)
    url = postgres.create_database()
    frozen, other = RunDatabase(url), RunDatabase(url)
    await frozen.prepare()
    change = sa.text(
        f"INSERT INTO {frozen.nodes} (executor, version, expires, running) VALUES ('x', '1', 0, :running) "
        "ON CONFLICT (executor) DO UPDATE SET running = excluded.running"
    )
    holding, goes_on, tries = threading.Event(), threading.Event(), 0

    def stand_still(connection: sa.Connection) -> None:
        nonlocal tries
        tries += 1
        connection.execute(change, {"running": 1})
        if tries == 1:
            holding.set()
            goes_on.wait(60)
        connection.execute(sa.text("SELECT 1"))

    writing = asyncio.create_task(frozen.write(stand_still))
    assert await asyncio.to_thread(holding.wait, 10)
    async with asyncio.timeout(60):
        await other.write(lambda connection: connection.execute(change, {"running": 2}))
    goes_on.set()
    await writing
    assert tries == 2
    read = sa.text(f"SELECT running FROM {frozen.nodes}")
    assert await other.read(lambda connection: connection.execute(read).scalar()) == 1
    for database in (frozen, other):
        database.close()


async def test_what_a_session_holds_that_froze_between_two_rows_is_given_back(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's own way to send several rows hides from the server that nothing more comes."""
    monkeypatch.setattr(module, "IDLE_S", 0.5)
    holding, goes_on = threading.Event(), threading.Event()

    class Second:
        """The value of the second row, which takes its time."""

    class Dumper(StrDumper):
        def dump(self, value: object) -> bytes:
            holding.set()
            goes_on.wait(60)
            return b"y"

    # before the first connection, which copies what is registered
    psycopg.adapters.register_dumper(Second, Dumper)
    url = postgres.create_database()
    frozen, other = RunDatabase(url), RunDatabase(url)
    await frozen.prepare()
    change = sa.text(
        f"INSERT INTO {frozen.nodes} (executor, version, expires, running) VALUES (:executor, '1', 0, 1) "
        "ON CONFLICT (executor) DO UPDATE SET running = excluded.running"
    )
    rows: list[dict[str, object]] = [{"executor": "x"}, {"executor": Second()}]
    writing = asyncio.create_task(frozen.write(lambda connection: connection.execute(change, rows)))
    try:
        assert await asyncio.to_thread(holding.wait, 10)
        async with asyncio.timeout(60):
            await other.write(lambda connection: connection.execute(change, {"executor": "x"}))
    finally:
        goes_on.set()
        await writing
        for database in (frozen, other):
            database.close()


async def test_the_row_of_a_run_that_a_frozen_session_holds_delays_no_lease_and_no_other_run(
    postgres: Postgres,
) -> None:
    database = RunDatabase(postgres.create_database())
    await database.prepare()
    for run in ("free", "held"):
        database.client.enqueue(run, (), "lost")
    read = sa.text("SELECT workflow_uuid FROM dbos.workflow_status WHERE queue_name = 'node:one'")

    async def list_taken() -> list[str]:
        return await database.read(lambda connection: sorted(connection.execute(read).scalars()))

    lease = Lease(database, "one", lease_s=0.6, count_running=lambda: 0)
    with database.engine.connect() as frozen:
        hold = "SELECT 1 FROM dbos.workflow_status WHERE workflow_uuid = 'held' FOR NO KEY UPDATE"
        frozen.execute(sa.text(hold))
        await lease.begin()
        async with asyncio.timeout(60):
            while await list_taken() != ["free"]:
                await asyncio.sleep(0.05)
        for _ in range(5):
            await lease.await_look()
        assert lease.epoch == 0
        assert await list_taken() == ["free"]
    async with asyncio.timeout(60):
        while await list_taken() != ["free", "held"]:
            await asyncio.sleep(0.05)
    await lease.end()
    database.close()
