"""Connections to a database of runs on SQLite: their settings, and a clock for SQLite before 3.42."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa

from retinue.storage.files import use_write_ahead_log

BUSY_TIMEOUT_MS = 30_000

FIRST_WITH_SUBSEC = (3, 42, 0)
"""The first SQLite whose ``unixepoch`` knows the word ``subsec``."""


def set_up_connection(connection: sqlite3.Connection, _record: object = None) -> None:
    """Prepare a new connection for the runs: waiting, journal, foreign keys, clock."""
    connection.isolation_level = "IMMEDIATE"
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    use_write_ahead_log(connection)
    for pragma in ("synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
    if sqlite3.sqlite_version_info < FIRST_WITH_SUBSEC:
        add_clock(connection)


def is_read_only(path: Path) -> bool:
    """Whether the database exists in a folder in which nothing can be written, such as a mounted backup."""
    return path.exists() and not os.access(path.parent, os.W_OK)


def read_only_url(path: Path) -> sa.URL:
    """The URL by which such a database is read.

    Without a journal next to it SQLite must be told that the file does not change, because it could not make
    the files of a reader.
    """
    journal = path.with_name(f"{path.name}-wal")
    has_journal = journal.exists() and journal.stat().st_size > 0
    query = {"uri": "true", "mode": "ro"} | ({} if has_journal else {"immutable": "1"})
    return sa.URL.create("sqlite", database=f"file:{quote(str(path))}", query=query)


def set_up_reader(connection: sqlite3.Connection, _record: object = None) -> None:
    """Prepare a new connection that only reads."""
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")


def add_clock(connection: sqlite3.Connection) -> None:
    """Let ``unixepoch('subsec')`` give whole seconds instead of NULL.

    On Python 3.12 and later DBOS writes the time by this expression, in statements and in the defaults of
    its tables. SQLite before 3.42, as in Debian 12, answers it with NULL. Whole seconds are what DBOS writes
    on Python 3.11. A function of the connection also works for existing tables.
    """
    connection.create_function("unixepoch", 1, _read_clock)


def _read_clock(_modifier: object) -> int:
    return int(time.time())
