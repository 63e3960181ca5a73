"""Stores the history of calls that were found by words: in ``history.db`` of the state, or in Postgres.

Hubs on one database share the history, as they share their runs. The file is created at the first record, so
a hub that stores no history has no such file. Both databases have the same two tables.
"""

from __future__ import annotations

import sqlite3
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from retinue.core.errors import StateDamagedError, StateError, StorageFullError
from retinue.mesh.history.records import Experience, SkillKey, Verdict, Wish
from retinue.storage.files import (
    create_database,
    is_for_want_of_room,
    is_no_room,
    make_folder,
    refuse_gone,
    use_write_ahead_log,
)

if TYPE_CHECKING:
    from psycopg import Connection

_BUSY_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 5
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_TABLES = """
CREATE TABLE IF NOT EXISTS retinue_history (
    id TEXT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, source TEXT NOT NULL, agent TEXT NOT NULL,
    skill TEXT NOT NULL, digest TEXT NOT NULL, stems BYTES NOT NULL, caller BIGINT NOT NULL,
    verdict TEXT NOT NULL, written_at DOUBLE PRECISION NOT NULL
);
CREATE INDEX IF NOT EXISTS retinue_history_written ON retinue_history (written_at);
CREATE TABLE IF NOT EXISTS retinue_wishes (
    id TEXT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, stems BYTES NOT NULL, caller BIGINT NOT NULL,
    words TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS retinue_history_forgotten (id TEXT PRIMARY KEY, at DOUBLE PRECISION NOT NULL);
"""
_COLUMNS = "id, at, source, agent, skill, digest, stems, caller, verdict"
_READ = f"SELECT {_COLUMNS} FROM retinue_history WHERE written_at >= ? ORDER BY at, id"  # noqa: S608
_WRITE = f"""
INSERT INTO retinue_history ({_COLUMNS}, written_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET at = excluded.at, verdict = excluded.verdict, digest = excluded.digest,
    written_at = excluded.written_at
"""  # noqa: S608
_DROP = "DELETE FROM retinue_history WHERE id = ?"
_READ_WISHES = "SELECT id, at, stems, caller, words FROM retinue_wishes ORDER BY at, id"
_WRITE_WISH = """
INSERT INTO retinue_wishes (id, at, stems, caller, words) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET words = excluded.words
"""
_DROP_WISH = "DELETE FROM retinue_wishes WHERE id = ?"
_FORGOTTEN = "SELECT coalesce(max(at), 0) FROM retinue_history_forgotten"
_NOTE_FORGOTTEN = """
INSERT INTO retinue_history_forgotten (id, at) VALUES ('all', ?)
ON CONFLICT (id) DO UPDATE SET at = excluded.at
"""
_FORGET = ("DELETE FROM retinue_history", "DELETE FROM retinue_wishes")


_Change = tuple[str, Sequence[Sequence[Any]]]


class _Database(ABC):
    """A database with the two tables, opened for each use."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there may be records."""

    @abstractmethod
    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows that a statement returns."""

    @abstractmethod
    def change(self, changes: Sequence[_Change]) -> None:
        """Run statements, each once for each row of values, all or none of them."""


class SqlHistory:
    """The history in one database, as `retinue.mesh.history.records.HistoryStore`."""

    def __init__(self, database: _Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def read(self, since: float = 0.0) -> Sequence[Experience]:
        """The records that were written at or after ``since``, oldest first."""
        if not self._database.exists():
            return []
        rows = self._database.read(_READ, (since,))
        return [
            Experience(
                row[0],
                row[1],
                SkillKey(row[2], row[3], row[4]),
                row[5],
                _unpack(row[6]),
                row[7],
                cast(Verdict, row[8]),
            )
            for row in rows
        ]

    def write(self, records: Sequence[Experience], dropped: Collection[str]) -> None:
        """Store records, each in place of the one with its id, and remove others by their ids."""
        now = self._clock()
        rows = [
            (one.id, one.at, *one.key, one.digest, _pack(one.stems), one.caller, one.verdict, now)
            for one in records
        ]
        self._change((_WRITE, rows), (_DROP, [(record_id,) for record_id in dropped]))

    def read_wishes(self) -> Sequence[Wish]:
        """All wishes, oldest first."""
        if not self._database.exists():
            return []
        rows = self._database.read(_READ_WISHES)
        return [Wish(row[0], row[1], _unpack(row[2]), row[3], row[4]) for row in rows]

    def write_wishes(self, wishes: Sequence[Wish], dropped: Collection[str]) -> None:
        """Store wishes, and remove others by their ids."""
        rows = [(one.id, one.at, _pack(one.stems), one.caller, one.text) for one in wishes]
        self._change((_WRITE_WISH, rows), (_DROP_WISH, [(wish_id,) for wish_id in dropped]))

    def _change(self, written: _Change, removed: _Change) -> None:
        """Write and remove together; to remove alone makes no database."""
        if written[1] or (removed[1] and self._database.exists()):
            self._database.change([written, removed])

    def forget(self, at: float) -> int:
        """Remove everything; returns the number of records and wishes. Other hubs are told ``at``, if any."""
        count = len(self.read()) + len(self.read_wishes())
        if self._database.exists():
            self._database.change([(_NOTE_FORGOTTEN, [(at,)]), *((one, [()]) for one in _FORGET)])
        return count

    def forgotten_at(self) -> float:
        """When everything was removed last, in seconds since 1970; 0 for never."""
        if not self._database.exists():
            return 0.0
        return float(self._database.read(_FORGOTTEN)[0][0])

    def close(self) -> None:
        """Nothing: no connection stays open."""


class FileDatabase(_Database):
    """The file ``path`` in the state folder ``root``."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root

    def exists(self) -> bool:
        return self._path.exists()

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._connecting() as connection:
            return connection.execute(statement, values).fetchall()

    def change(self, changes: Sequence[_Change]) -> None:
        with self._connecting() as connection, connection:
            for statement, rows in changes:
                connection.executemany(statement, rows)

    @contextmanager
    def _connecting(self) -> Iterator[sqlite3.Connection]:
        try:
            refuse_gone(self._root)
            make_folder(self._path.parent)
            is_new = not self._path.exists()
            create_database(self._path)
            with closing(sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S)) as connection:
                if is_new:
                    use_write_ahead_log(connection)
                connection.execute("PRAGMA synchronous = NORMAL")
                # what is forgotten leaves no trace in the file
                connection.execute("PRAGMA secure_delete = ON")
                connection.executescript(_TABLES.replace("BYTES", "BLOB"))
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise self._explain(error) from error

    def _explain(self, error: sqlite3.Error | OSError) -> StateError:
        is_full = (
            is_for_want_of_room(error, self._path.parent)
            if isinstance(error, sqlite3.Error)
            else is_no_room(error)
        )
        if is_full:
            return StorageFullError(str(self._path))
        if (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _DAMAGED:
            return StateDamagedError(
                str(self._path), str(error), remedy="remove the file; the history of calls begins again"
            )
        return StateError(f"{self._path}: {error}", remedy="check that it is writable")


class ServerDatabase(_Database):
    """The Postgres database at ``url``, which hubs share; ``tables`` are created at the first use."""

    def __init__(self, url: str, tables: str = _TABLES) -> None:
        self._tables = tables
        self._url = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._is_prepared = False

    def exists(self) -> bool:
        return True

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._connecting() as connection:
            return connection.execute(_translate(statement), values).fetchall()

    def change(self, changes: Sequence[_Change]) -> None:
        with self._connecting() as connection, connection.cursor() as cursor:
            for statement, rows in changes:
                cursor.executemany(_translate(statement), rows)

    @contextmanager
    def _connecting(self) -> Iterator[Connection[Any]]:
        # imported here, because most hubs have no server
        import psycopg

        try:
            with psycopg.connect(self._url, connect_timeout=_CONNECT_TIMEOUT_S) as connection:
                self._prepare(connection)
                yield connection
        except psycopg.Error as error:
            raise StateError(
                f"the history in the database: {str(error).splitlines()[0]}",
                remedy="check the setting database, and that the server answers",
            ) from error

    def _prepare(self, connection: Connection[Any]) -> None:
        if self._is_prepared:
            return
        # two hubs that start at once would both create the tables
        connection.execute("SELECT pg_advisory_xact_lock(7412031)")
        for statement in self._tables.replace("BYTES", "BYTEA").split(";"):
            if statement.strip():
                connection.execute(cast(Any, statement))
        connection.commit()
        self._is_prepared = True


def _translate(statement: str) -> Any:
    """The statement with the placeholders of Postgres."""
    return statement.replace("?", "%s")


def _pack(stems: Sequence[int]) -> bytes:
    return struct.pack(f">{len(stems)}q", *stems)


def _unpack(stored: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(stored) // 8}q", stored)
