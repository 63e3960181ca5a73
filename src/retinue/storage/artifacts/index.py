"""The index of the artifacts of a state: which are stored, and who has saved each of them.

The file ``artifacts.db`` serves every process of the state. A save and a deletion change the content within
their transaction, so that no process deletes what another has just saved, and a process that is killed in
between leaves at most content that no row names (`ArtifactIndex.list_digests`).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.core.errors import QuotaExceededError, StateDamagedError, StateError, StorageFullError
from retinue.storage.files import create_database, is_for_want_of_room, make_folder, use_write_ahead_log

LEAST_BYTES = 4096
"""What the smallest artifact counts in a quota: its files and its row take about as much."""

_VERSION = 1
_SCHEMA = """
CREATE TABLE artifacts (
    digest TEXT NOT NULL PRIMARY KEY, size INTEGER NOT NULL, media_type TEXT NOT NULL, name TEXT,
    stored_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE saves (
    digest TEXT NOT NULL, caller TEXT NOT NULL, run TEXT NOT NULL, media_type TEXT NOT NULL, name TEXT,
    at REAL NOT NULL, PRIMARY KEY (digest, caller, run)
) WITHOUT ROWID;
CREATE INDEX saves_by_caller ON saves (caller, at);
CREATE INDEX saves_by_run ON saves (run);
CREATE TABLE own (id TEXT NOT NULL);
INSERT INTO own VALUES (lower(hex(randomblob(4))));
"""
_BUSY_TIMEOUT_S = 30.0
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Quotas:
    """How many bytes all artifacts together may take, and how many those of one caller."""

    total_bytes: int
    caller_bytes: int


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """One row: a stored artifact, when it was stored, and who saved it last; times are seconds since 1970."""

    digest: str
    size_bytes: int
    media_type: str
    name: str | None
    stored_at: float
    saved_at: float | None = None
    callers: tuple[str, ...] = ()


class ArtifactIndex:
    """The index in ``path``, opened at the first use. All methods block; call them in a thread.

    Raises StateError.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def own_id(self) -> str:
        """A random id of this index, which is that of its state in a shared registry."""
        with self._reading() as connection:
            return str(connection.execute("SELECT id FROM own").fetchone()[0])

    def exists(self) -> bool:
        """Whether anything was ever saved here."""
        return self._path.exists()

    def add(
        self,
        artifact: StoredArtifact,
        caller: str,
        run: str,
        quotas: Quotas,
        place: Callable[[], None],
    ) -> None:
        """Note a save within the quotas; ``place`` puts the content into its place before it is stored.

        Raises QuotaExceededError and what ``place`` raises; then nothing is noted.
        """
        with self._writing() as connection:
            self._check_quotas(connection, artifact, caller, quotas)
            now = self._clock()
            connection.execute(
                "INSERT INTO artifacts VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (artifact.digest, artifact.size_bytes, artifact.media_type, artifact.name, now),
            )
            connection.execute(
                "INSERT OR REPLACE INTO saves VALUES (?, ?, ?, ?, ?, ?)",
                (artifact.digest, caller, run, artifact.media_type, artifact.name, now),
            )
            place()

    def check_room(self, caller: str, size_bytes: int, quotas: Quotas) -> int:
        """How many bytes the quotas leave for a caller; nothing is reserved.

        Raises QuotaExceededError where new content of this size (-1 = unknown) is over a quota.
        """
        by_caller, by_all = self.measure(caller)[1], self.measure()[1]
        if size_bytes >= 0:
            _check_caller(caller, by_caller, size_bytes, quotas)
            _check_total(by_all, size_bytes, quotas)
        return min(quotas.caller_bytes - by_caller, quotas.total_bytes - by_all)

    def find(self, digest: str) -> StoredArtifact | None:
        """The artifact with this digest; None if it is not stored."""
        if not self.exists():
            return None
        with self._reading() as connection:
            row = connection.execute("SELECT * FROM artifacts WHERE digest = ?", (digest,)).fetchone()
            return None if row is None else self._complete(connection, row)

    def list_all(
        self, *, caller: str | None = None, after: float | None = None, limit: int = 100
    ) -> list[StoredArtifact]:
        """The artifacts, newest first, those that ``caller`` has saved.

        ``after`` is the time at which the last one of the page before was stored.
        """
        if not self.exists():
            return []
        mine = "(:caller IS NULL OR digest IN (SELECT digest FROM saves WHERE caller = :caller))"
        query = (
            f"SELECT * FROM artifacts WHERE {mine} AND (:after IS NULL OR stored_at < :after) "  # noqa: S608
            "ORDER BY stored_at DESC LIMIT :limit"
        )
        with self._reading() as connection:
            rows = connection.execute(query, {"caller": caller, "after": after, "limit": limit}).fetchall()
            return [self._complete(connection, row) for row in rows]

    def drop_saves(
        self, *, digest: str | None = None, caller: str | None = None, runs: Sequence[str] = ()
    ) -> list[str]:
        """Forget the saves of one digest, of one caller, or of some runs; returns their digests."""
        if not self.exists():
            return []
        dropped: list[str] = []
        with self._writing() as connection:
            conditions = [("digest = ?", digest), ("caller = ?", caller)]
            known = [(text, value) for text, value in conditions if value is not None]
            if known:
                where = " AND ".join(text for text, _ in known)
                values = [value for _, value in known]
                dropped += _take(connection, where, values)
            for run in runs:
                dropped += _take(connection, "run = ?", [run])
        return dropped

    def list_unheld(self, saved_before: float, *, limit: int = _BATCH, after: str = "") -> list[str]:
        """The digests, in order, of artifacts without a save since a time."""
        if not self.exists():
            return []
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT digest FROM artifacts a WHERE digest > ? AND NOT EXISTS "
                "(SELECT 1 FROM saves WHERE saves.digest = a.digest AND at >= ?) ORDER BY digest LIMIT ?",
                (after, saved_before, limit),
            )
            return [digest for (digest,) in rows]

    def remove(
        self, digests: Iterable[str], saved_before: float, displace: Callable[[Sequence[str]], None]
    ) -> list[StoredArtifact]:
        """Remove artifacts that still have no save since a time; ``displace`` removes their content.

        Returns those that were removed.
        """
        removed: list[StoredArtifact] = []
        with self._writing() as connection:
            for digest in digests:
                held = connection.execute(
                    "SELECT 1 FROM saves WHERE digest = ? AND at >= ?", (digest, saved_before)
                ).fetchone()
                row = connection.execute("SELECT * FROM artifacts WHERE digest = ?", (digest,)).fetchone()
                if held is None and row is not None:
                    removed.append(self._complete(connection, row))
                    connection.execute("DELETE FROM saves WHERE digest = ?", (digest,))
                    connection.execute("DELETE FROM artifacts WHERE digest = ?", (digest,))
            if removed:
                displace([artifact.digest for artifact in removed])
        return removed

    def remove_strays(self, digests: Sequence[str], displace: Callable[[Sequence[str]], None]) -> int:
        """Remove content that no row names, as a killed process leaves it; returns how many."""
        with self._writing() as connection:
            strays = [digest for digest in digests if not _is_known(connection, digest)]
            if strays:
                displace(strays)
        return len(strays)

    def measure(self, caller: str | None = None) -> tuple[int, int]:
        """The number and the bytes of all artifacts, or of those that a caller has saved."""
        if not self.exists():
            return 0, 0
        with self._reading() as connection:
            return _measure(connection, caller)

    def _check_quotas(
        self, connection: sqlite3.Connection, artifact: StoredArtifact, caller: str, quotas: Quotas
    ) -> None:
        is_saved = "SELECT 1 FROM saves WHERE digest = ? AND caller = ?"
        if connection.execute(is_saved, (artifact.digest, caller)).fetchone() is None:
            _check_caller(caller, _measure(connection, caller)[1], artifact.size_bytes, quotas)
        if not _is_known(connection, artifact.digest):
            _check_total(_measure(connection, None)[1], artifact.size_bytes, quotas)

    @staticmethod
    def _complete(connection: sqlite3.Connection, row: Sequence[Any]) -> StoredArtifact:
        saves = connection.execute(
            "SELECT caller, max(at) FROM saves WHERE digest = ? GROUP BY caller ORDER BY 2 DESC", (row[0],)
        ).fetchall()
        digest, size_bytes, media_type, name, stored_at = row
        saved_at = saves[0][1] if saves else None
        callers = tuple(caller for caller, _ in saves)
        return StoredArtifact(digest, size_bytes, media_type, name, stored_at, saved_at, callers)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._mapped_errors():
            yield self._connect()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._mapped_errors():
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            make_folder(self._path.parent)
            create_database(self._path)
            connection = sqlite3.connect(
                self._path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False, isolation_level=None
            )
            try:
                _prepare(connection, self._path)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    @contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if is_for_want_of_room(error, self._path.parent):
                raise StorageFullError(str(self._path)) from error
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                raise StateDamagedError(
                    str(self._path), str(error), remedy="move the file away; its artifacts are forgotten"
                ) from error
            raise StateError(f"{self._path}: {error}", remedy="check that it is writable") from error


def _check_caller(caller: str, used: int, size_bytes: int, quotas: Quotas) -> None:
    size = max(size_bytes, LEAST_BYTES)
    if used + size > quotas.caller_bytes:
        whose, setting = f"the artifacts of {caller}", "artifacts.caller_bytes"
        raise QuotaExceededError(whose, used, size, quotas.caller_bytes, setting=setting)


def _check_total(used: int, size_bytes: int, quotas: Quotas) -> None:
    size = max(size_bytes, LEAST_BYTES)
    if used + size > quotas.total_bytes:
        setting = "artifacts.quota_bytes"
        raise QuotaExceededError("all artifacts", used, size, quotas.total_bytes, setting=setting)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        for statement in filter(str.strip, _SCHEMA.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")
    if version > _VERSION:
        raise StateError(
            f"{path} has version {version}; this Retinue reads versions up to {_VERSION}",
            remedy="use a newer Retinue",
        )


def _is_known(connection: sqlite3.Connection, digest: str) -> bool:
    query = "SELECT 1 FROM artifacts WHERE digest = ?"
    return connection.execute(query, (digest,)).fetchone() is not None


def _measure(connection: sqlite3.Connection, caller: str | None) -> tuple[int, int]:
    total = f"SELECT count(*), coalesce(sum(max(size, {LEAST_BYTES})), 0) FROM artifacts"  # noqa: S608
    if caller is None:
        row = connection.execute(total).fetchone()
    else:
        mine = f"{total} WHERE digest IN (SELECT digest FROM saves WHERE caller = ?)"  # noqa: S608
        row = connection.execute(mine, (caller,)).fetchone()
    return int(row[0]), int(row[1])


def _take(connection: sqlite3.Connection, where: str, values: Sequence[str | None]) -> list[str]:
    rows = connection.execute(f"SELECT digest FROM saves WHERE {where}", values).fetchall()  # noqa: S608
    connection.execute(f"DELETE FROM saves WHERE {where}", values)  # noqa: S608
    return [digest for (digest,) in rows]
