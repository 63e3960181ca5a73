"""A node that stands still in the middle of a transaction holds up nobody for long, and does it again."""

from __future__ import annotations

import asyncio
import threading

import pytest
import sqlalchemy as sa

from retinue.workflows.durable import database as module
from retinue.workflows.durable.database import RunDatabase
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
            goes_on.wait(30)
        connection.execute(sa.text("SELECT 1"))

    writing = asyncio.create_task(frozen.write(stand_still))
    assert await asyncio.to_thread(holding.wait, 10)
    async with asyncio.timeout(10):
        await other.write(lambda connection: connection.execute(change, {"running": 2}))
    goes_on.set()
    await writing
    assert tries == 2
    read = sa.text(f"SELECT running FROM {frozen.nodes}")
    assert await other.read(lambda connection: connection.execute(read).scalar()) == 1
    for database in (frozen, other):
        database.close()
