"""A process that is stopped while it holds the lock of the file of runs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from retinue.core.errors import StateError
from retinue.workflows.durable import database as database_module
from retinue.workflows.durable import sqlite_connections
from retinue.workflows.durable.database import RunDatabase


async def test_a_lock_that_another_process_keeps_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder was stopped in a transaction, so no wait would be long enough. The engine waits 30 s."""
    path = tmp_path / "runs.db"
    ready = RunDatabase(f"sqlite:///{path}")
    await ready.prepare()
    ready.close()
    monkeypatch.setattr(sqlite_connections, "BUSY_TIMEOUT_MS", 10)
    monkeypatch.setattr(database_module, "FIRST_RETRY_S", 0.1)
    database = RunDatabase(f"sqlite:///{path}")
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError, match=r"another process holds the lock of .*runs\.db") as caught:
            await database.prepare()
    assert "continue or end that process" in caught.value.remedy
    await database.prepare()
    database.close()
