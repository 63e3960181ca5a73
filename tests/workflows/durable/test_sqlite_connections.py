"""The clock of connections to SQLite: the expressions of DBOS give a time on every version of SQLite."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.sqlite_connections import add_clock

STATEMENT = "SELECT CAST(unixepoch(?) * 1000 AS BIGINT)"
"""What DBOS compares and writes on Python 3.12 and later."""

TABLE = "CREATE TABLE queues (name TEXT, created_at INTEGER NOT NULL DEFAULT (unixepoch('subsec') * 1000))"
"""A table with a default as in the migrations of DBOS on Python 3.12 and later."""


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(":memory:")
    yield opened
    opened.close()


def is_now(time_ms: float) -> bool:
    return abs(time_ms - time.time() * 1000) < 5_000


def test_the_clock_serves_the_statements_of_dbos(connection: sqlite3.Connection) -> None:
    add_clock(connection)
    [time_ms] = connection.execute(STATEMENT, ("subsec",)).fetchone()
    assert isinstance(time_ms, int)
    assert is_now(time_ms)


def test_the_clock_serves_tables_that_were_made_before_it(connection: sqlite3.Connection) -> None:
    connection.execute(TABLE)
    add_clock(connection)
    connection.execute("INSERT INTO queues (name) VALUES ('node')")
    [time_ms] = connection.execute("SELECT created_at FROM queues").fetchone()
    assert isinstance(time_ms, int)
    assert is_now(time_ms)


def test_connections_of_the_runs_have_a_clock_with_the_sqlite_of_this_machine(tmp_path: Path) -> None:
    database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")
    for engine in (database.engine, database.open_engine_pool()):
        with engine.connect() as opened:
            assert is_now(opened.exec_driver_sql(STATEMENT, ("subsec",)).scalar_one())
        engine.dispose()
    database.close()
