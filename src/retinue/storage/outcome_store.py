"""Stores outcomes by idempotency key for an hour, so that they survive a restart of their agent.

The file ``outcomes/NAME.db`` serves every process of an agent. It is opened at the first call with a key and
written in a thread. It is a cache: a damaged file is replaced, and while nothing can be written, calls go on
and their outcomes are kept in memory only. A commit is not synced to the disk: it survives the end of the
process, and at a power failure the last ones may be lost.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from retinue.core.errors import StateError
from retinue.mesh.idempotency import KEPT_S, StoredOutcome
from retinue.storage.files import create_database, make_folder, refuse_gone, use_write_ahead_log
from retinue.storage.state import State

KEPT_COUNT = 36_000
"""Ten a second for an hour."""

KEPT_BYTES = 64 * 1024 * 1024

_VERSION = 1
_SCHEMA = """
CREATE TABLE outcomes (
    key BLOB NOT NULL PRIMARY KEY, at REAL NOT NULL, arguments BLOB NOT NULL, body BLOB NOT NULL
);
CREATE INDEX outcomes_by_age ON outcomes (at);
"""
_PRUNE = (
    "DELETE FROM outcomes WHERE at < :oldest",
    "DELETE FROM outcomes WHERE at < (SELECT at FROM outcomes ORDER BY at DESC LIMIT 1 OFFSET :last)",
    "DELETE FROM outcomes WHERE key IN (SELECT key FROM (SELECT key, sum(length(body)) "
    "OVER (ORDER BY at DESC, key) AS bytes FROM outcomes) WHERE bytes > :bytes)",
)
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_PRUNE_EVERY = 500
_BUSY_TIMEOUT_S = 1.0
_MAX_WAIT_S = 1.0
"""How long a call waits for the file."""

_MAX_QUEUED = 200

_log = structlog.get_logger(__name__)


class OutcomeStore:
    """The stored outcomes of one agent, as `retinue.mesh.idempotency.StoredOutcomes`.

    At most ``count`` outcomes with ``size_bytes`` of content are kept, for ``kept_s``, and the oldest go
    first. The file is pruned after 500 outcomes or a quarter of the bytes, so it holds a little more between
    two prunings. ``clock`` gives the time of day in seconds.
    """

    def __init__(
        self,
        state: State,
        agent: str,
        *,
        kept_s: float = KEPT_S,
        count: int = KEPT_COUNT,
        size_bytes: int = KEPT_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root = state.root
        self._path = state.outcomes_file(agent)
        self._kept_s = kept_s
        self._count = count
        self._limit_bytes = size_bytes
        self._clock = clock
        # the only thread that uses the connection and changes the keys
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outcomes")
        self._connection: sqlite3.Connection | None = None
        self._keys: set[bytes] = set()
        self._opening: asyncio.Future[Any] | None = None
        self._queued = 0
        self._new_count = 0
        self._new_bytes = 0
        self._is_failing = False
        self._is_closed = False

    async def find(self, key: bytes) -> StoredOutcome | None:
        """The outcome of a key; None also if the file cannot be read."""
        if self._is_closed:
            return None
        if self._opening is None:
            self._opening = self._begin(self._connect)
        if not self._opening.done():
            await asyncio.wait((self._opening,), timeout=_MAX_WAIT_S)
        if key not in self._keys:
            return None
        outcome: StoredOutcome | None = await self._begin(self._read, key)
        return outcome

    async def keep(self, key: bytes, outcome: StoredOutcome) -> None:
        """Store an outcome; returns when it is stored or cannot be, after a second at the latest."""
        if self._is_closed or self._queued >= _MAX_QUEUED or len(outcome.body) > self._limit_bytes:
            return
        self._queued += 1
        writing = self._begin(self._write, key, outcome)
        writing.add_done_callback(self._note_written)
        await asyncio.wait((writing,), timeout=_MAX_WAIT_S)

    def close(self) -> None:
        """End the thread and close the file."""
        self._is_closed = True
        self._thread.shutdown(cancel_futures=True)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _note_written(self, writing: asyncio.Future[Any]) -> None:
        self._queued -= 1

    def _begin(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self._attempt, work, *arguments)

    # in the thread

    def _attempt(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What ``work`` returns; None if the file cannot be used, which is logged once."""
        try:
            result = work(*arguments)
        except (sqlite3.Error, OSError, StateError) as error:
            if not self._is_failing:
                _log.warning(
                    "outcomes of calls are kept in memory only", file=str(self._path), reason=str(error)
                )
            self._is_failing = True
            return None
        self._is_failing = False
        return result

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            refuse_gone(self._root)
            make_folder(self._path.parent)
            self._connection = self._open()
            self._prune(self._connection)
        return self._connection

    def _open(self) -> sqlite3.Connection:
        """Open the file; one that is damaged, or of another version, is replaced."""
        connection = _connect_to(self._path)
        try:
            if _prepare(connection):
                return connection
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                connection.close()
                raise
        connection.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        connection = _connect_to(self._path)
        _prepare(connection)
        return connection

    def _read(self, key: bytes) -> StoredOutcome | None:
        row = (
            self._connect()
            .execute(
                "SELECT arguments, body FROM outcomes WHERE key = ? AND at >= ?",
                (key, self._clock() - self._kept_s),
            )
            .fetchone()
        )
        return None if row is None else StoredOutcome(*row)

    def _write(self, key: bytes, outcome: StoredOutcome) -> None:
        connection = self._connect()
        with connection:
            connection.execute(
                "INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?)",
                (key, self._clock(), outcome.arguments, outcome.body),
            )
        self._keys.add(key)
        self._new_count += 1
        self._new_bytes += len(outcome.body)
        if self._new_count >= min(_PRUNE_EVERY, self._count) or self._new_bytes >= self._limit_bytes // 4:
            self._prune(connection)

    def _prune(self, connection: sqlite3.Connection) -> None:
        bounds = {"oldest": self._clock() - self._kept_s, "last": self._count - 1, "bytes": self._limit_bytes}
        with connection:
            for statement in _PRUNE:
                connection.execute(statement, bounds)
        self._keys = {key for (key,) in connection.execute("SELECT key FROM outcomes")}
        self._new_count = self._new_bytes = 0


def _connect_to(path: Path) -> sqlite3.Connection:
    create_database(path)
    return sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)


def _prepare(connection: sqlite3.Connection) -> bool:
    """Create the tables of a new file; False for a file of another version."""
    use_write_ahead_log(connection, _BUSY_TIMEOUT_S)
    connection.execute("PRAGMA synchronous = OFF")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    return version in (0, _VERSION)
