"""``retinue.db``: the SQLite file of a state folder, its migrations and its error mapping.

Its content can be rebuilt from the registries, except the user's choices (enabled or not), health records and
the audit log.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from retinue.core.errors import StateDamagedError, StateError, StorageFullError
from retinue.storage.files import (
    create_database,
    is_for_want_of_room,
    is_no_room,
    make_folder,
    use_write_ahead_log,
)

_BUSY_TIMEOUT_S = 5.0

MOVE_AWAY = (
    "move it away: agents are read again from the registries; the audit, which agents are enabled, "
    "and their health are lost"
)

_MIGRATIONS = (
    """
    CREATE TABLE listings (
        source TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL, version TEXT,
        tag TEXT, digest TEXT, hash TEXT, raw BLOB NOT NULL, rendered INTEGER NOT NULL,
        published_at TEXT, fetched_at TEXT, etag TEXT, owner TEXT, signature TEXT NOT NULL,
        hops TEXT NOT NULL, enabled INTEGER NOT NULL, reachable INTEGER, since TEXT, last_error TEXT,
        PRIMARY KEY (source, key)
    ) WITHOUT ROWID;
    CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, row BLOB NOT NULL);
    """,
    """
    ALTER TABLE listings RENAME TO listings_before;
    CREATE TABLE listings (
        source TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL, version TEXT, url TEXT,
        tag TEXT, digest TEXT, owner TEXT, published_at TEXT,
        skills TEXT NOT NULL, kinds TEXT NOT NULL, roles TEXT, labels TEXT,
        enabled INTEGER NOT NULL, reachable INTEGER, since TEXT, last_error TEXT, form TEXT NOT NULL,
        PRIMARY KEY (source, key)
    ) WITHOUT ROWID;
    CREATE TABLE cards (
        source TEXT NOT NULL, key TEXT NOT NULL, raw BLOB NOT NULL, rendered INTEGER NOT NULL,
        hash TEXT, fetched_at TEXT, etag TEXT, signature TEXT NOT NULL, hops TEXT NOT NULL,
        UNIQUE (source, key)
    );
    INSERT INTO listings SELECT source, key, name, version, NULL, tag, digest, owner, published_at,
        '[]', '', NULL, NULL, enabled, reachable, since, last_error, '' FROM listings_before;
    INSERT INTO cards SELECT source, key, raw, rendered, hash, fetched_at, etag, signature, hops
        FROM listings_before;
    DROP TABLE listings_before;
    """,
    # the tag becomes part of the key: each version of an agent is a listing
    """
    ALTER TABLE listings RENAME TO listings_before;
    ALTER TABLE cards RENAME TO cards_before;
    CREATE TABLE listings (
        source TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL, version TEXT, url TEXT,
        tag TEXT NOT NULL, digest TEXT, owner TEXT, published_at TEXT,
        skills TEXT NOT NULL, kinds TEXT NOT NULL, roles TEXT, labels TEXT,
        enabled INTEGER NOT NULL, reachable INTEGER, since TEXT, last_error TEXT,
        deprecated INTEGER NOT NULL, weight INTEGER NOT NULL, form TEXT NOT NULL,
        PRIMARY KEY (source, key, tag)
    ) WITHOUT ROWID;
    CREATE TABLE cards (
        source TEXT NOT NULL, key TEXT NOT NULL, tag TEXT NOT NULL, raw BLOB NOT NULL,
        rendered INTEGER NOT NULL, hash TEXT, fetched_at TEXT, etag TEXT, signature TEXT NOT NULL,
        hops TEXT NOT NULL,
        UNIQUE (source, key, tag)
    );
    INSERT INTO listings SELECT source, key, name, version, url, coalesce(tag, ''), digest, owner,
        published_at, skills, kinds, roles, labels, enabled, reachable, since, last_error, 0, 100, ''
        FROM listings_before;
    INSERT INTO cards SELECT c.source, c.key, coalesce(l.tag, ''), c.raw, c.rendered, c.hash, c.fetched_at,
        c.etag, c.signature, c.hops FROM cards_before c JOIN listings_before l USING (source, key);
    DROP TABLE listings_before;
    DROP TABLE cards_before;
    """,
    # the order of choice needs the signature of each listing, without its card
    """
    ALTER TABLE listings ADD COLUMN signature TEXT NOT NULL DEFAULT 'none';
    UPDATE listings SET signature = coalesce((SELECT signature FROM cards c WHERE c.source = listings.source
        AND c.key = listings.key AND c.tag = listings.tag), 'none');
    """,
    # what policies have read of the arguments of calls, where the owner wants it kept
    """
    CREATE TABLE policy_inputs (id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, row BLOB NOT NULL);
    """,
)
"""One script per ``user_version``. Append new ones; never change a released one."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class Database:
    """One connection to a database file, migrated to the current schema when opened.

    Raises StateDamagedError for a damaged or foreign file, StorageFullError for a full disk, StateError
    otherwise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        with self._mapped_errors():
            make_folder(path.parent)
            create_database(path)
            self._connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        try:
            with self._mapped_errors():
                use_write_ahead_log(self._connection)
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._migrate()
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, locked for this thread."""
        with self._lock, self._mapped_errors():
            yield self._connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The connection in one transaction, rolled back when the block raises."""
        with self._lock, self._mapped_errors(), self._connection:
            yield self._connection

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _migrate(self) -> None:
        version = self._version()
        if version > len(_MIGRATIONS):
            raise StateError(
                f"{self._path} has schema version {version}; this Retinue reads versions up to "
                f"{len(_MIGRATIONS)}",
                remedy=f"use a newer Retinue, or {MOVE_AWAY}",
            )
        while version < len(_MIGRATIONS):
            # Another process may migrate at the same time: read the version again inside the transaction.
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                version = self._version()
                if version < len(_MIGRATIONS):
                    for statement in _MIGRATIONS[version].split(";"):
                        self._connection.execute(statement)
                    self._connection.execute(f"PRAGMA user_version = {version + 1}")
                    version += 1
        # The connection may remember the tables as they were before another process migrated them. A
        # reading notices that; the preparation of a JOIN … USING does not, and fails.
        self._connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()

    def _version(self) -> int:
        return cast(int, self._connection.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._explain(error) from error
        except OSError as error:
            if is_no_room(error):
                raise StorageFullError(str(self._path)) from error
            raise StateError(f"{self._path} cannot be created: {error.strerror}") from error

    def _explain(self, error: sqlite3.Error) -> StateError:
        code = getattr(error, "sqlite_errorcode", None)
        primary = code & 0xFF if code is not None else None
        if is_for_want_of_room(error, self._path.parent):
            return StorageFullError(str(self._path))
        if primary in _DAMAGED or "no such table" in str(error) or "no such column" in str(error):
            return StateDamagedError(str(self._path), str(error), remedy=MOVE_AWAY)
        return StateError(
            f"{self._path}: {error}", remedy="check that it is writable and that no other hub uses it"
        )
