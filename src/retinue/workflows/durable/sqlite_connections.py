"""Connections to a database of runs on SQLite: their settings, and the clock that old SQLite lacks."""

from __future__ import annotations

import sqlite3
import time

BUSY_TIMEOUT_MS = 30_000

FIRST_WITH_SUBSEC = (3, 42, 0)
"""The first SQLite whose ``unixepoch`` knows the word ``subsec``."""


def set_up_connection(connection: sqlite3.Connection, _record: object = None) -> None:
    """Prepare a new connection for the runs: waiting, journal, foreign keys, clock."""
    connection.isolation_level = "IMMEDIATE"
    for pragma in (
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}")
    if sqlite3.sqlite_version_info < FIRST_WITH_SUBSEC:
        add_clock(connection)


def add_clock(connection: sqlite3.Connection) -> None:
    """Let ``unixepoch('subsec')`` give whole seconds instead of NULL.

    On Python 3.12 and later DBOS writes the time by this expression, in statements and in the defaults of
    its tables. SQLite before 3.42, as in Debian 12, answers it with NULL. Whole seconds are what DBOS writes
    on Python 3.11. A function of the connection also works for existing tables.
    """
    connection.create_function("unixepoch", 1, _read_clock)


def _read_clock(_modifier: object) -> int:
    return int(time.time())
