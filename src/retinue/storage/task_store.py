"""Stores the tasks of one process in a SQLite file, so that they survive a restart, and prunes old tasks.

A process takes the first free file of its agent, ``tasks/NAME-1.db`` upward for A2A and
``tasks/NAME~messages-1.db`` upward for messages, and holds its lock while it runs. So no other process writes
to the file, except those of one hub: there the leader holds the lock, and each process ends its own tasks.
A task that has not ended when the file is opened belonged to a process that is gone; it is ended
with the reason. A commit is not synced to the disk: it survives the end of the process, and at a
power failure the last ones may be lost.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from retinue.core.errors import StateDamagedError, StateError, StorageFullError
from retinue.storage.files import (
    create_database,
    file_mode,
    is_for_want_of_room,
    make_folder,
    storage_errors,
    use_write_ahead_log,
)
from retinue.storage.state import State

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    id TEXT NOT NULL PRIMARY KEY, agent TEXT NOT NULL, owner TEXT NOT NULL, context TEXT NOT NULL,
    state TEXT NOT NULL, ended INTEGER NOT NULL, updated_ms INTEGER NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tasks_by_age ON tasks (agent, owner, updated_ms DESC, id);
CREATE INDEX IF NOT EXISTS tasks_ended ON tasks (ended, updated_ms);
CREATE TABLE IF NOT EXISTS push_configs (
    task TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (task, id)
) WITHOUT ROWID;
"""

_MATCHING = """
FROM tasks WHERE agent = :agent AND owner = :owner AND (:context IS NULL OR context = :context)
AND (:state IS NULL OR state = :state) AND (:since IS NULL OR updated_ms >= :since)
"""
_PAGE = """
AND (:at IS NULL OR (updated_ms, id) < (:at, :id)) ORDER BY updated_ms DESC, id DESC LIMIT :limit
"""

_PRUNE_EVERY = 500
"""Tasks that are stored between two prunings."""

_MAX_FILES = 1000
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class StoredTask:
    """One task: its JSON and its keys. ``owner`` is the id of the principal that sent it."""

    id: str
    agent: str
    owner: str
    context: str
    state: str
    ended: bool
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TaskPage:
    """One page of a list; ``next_after`` is the position of the next page, None at the end."""

    tasks: Sequence[dict[str, Any]]
    total: int
    next_after: tuple[int, str] | None


class TaskStore:
    """The open file; the methods take well under a millisecond and may be called in the event loop.

    Raises StateError.
    """

    def __init__(
        self, connection: sqlite3.Connection, lock: FileLock | None, path: Path, keep: int, keep_s: float
    ) -> None:
        self._connection = connection
        self._lock = lock
        self._path = path
        self._keep = keep
        self._keep_s = keep_s
        self._until_pruned = _PRUNE_EVERY
        self._last_ms = 0

    @classmethod
    def share(cls, state: State, agent: str, *, keep: int = 10_000, keep_days: float = 30.0) -> TaskStore:
        """Open the first file of an agent, which another process of the same hub holds."""
        with storage_errors(state.tasks):
            make_folder(state.tasks)
        path = state.tasks_file(agent, 1)
        try:
            return cls(_connect(path), None, path, keep, keep_days * _DAY_S)
        except sqlite3.Error as error:
            raise _explain(error, path) from error

    @classmethod
    def open(
        cls, state: State, agent: str, *, keep: int = 10_000, keep_days: float = 30.0, kind: str = ""
    ) -> TaskStore:
        """Take the first free file of an agent; at most ``keep`` ended tasks are kept in it.

        ``kind`` is that of `State.tasks_file`.
        """
        folder = state.tasks
        with storage_errors(folder):
            make_folder(folder)
        for number in range(1, _MAX_FILES):
            path = state.tasks_file(agent, number, kind)
            lock = FileLock(f"{path}.lock", mode=file_mode(folder))
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            except OSError as error:
                raise StateError(f"{path} cannot be locked: {error.strerror}") from error
            try:
                store = cls(_connect(path), lock, path, keep, keep_days * _DAY_S)
                store.prune()
                return store
            except sqlite3.Error as error:
                lock.release()
                raise _explain(error, path) from error
            except OSError:
                lock.release()
                with storage_errors(path):
                    raise
            except BaseException:
                lock.release()
                raise
        raise StateError(
            f"{folder} has {_MAX_FILES:,} task files in use", remedy="stop some of the processes"
        )

    def save(self, task: StoredTask) -> None:
        """Store a new task, or its new state."""
        row = (task.id, task.agent, task.owner, task.context, task.state, task.ended, self._next_ms())
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "state = excluded.state, ended = excluded.ended, updated_ms = excluded.updated_ms, "
                "body = excluded.body",
                (*row, orjson.dumps(task.body)),
            )
        self._until_pruned -= 1
        if self._until_pruned <= 0:
            self.prune()

    def _next_ms(self) -> int:
        """The time of a change, later than that of the one before: it orders the pages of lists."""
        self._last_ms = max(_now_ms(), self._last_ms + 1)
        return self._last_ms

    def find(self, task_id: str, agent: str, owner: str) -> dict[str, Any] | None:
        """The task, if it is of this agent and owner."""
        with self._mapped():
            row = self._connection.execute(
                "SELECT body FROM tasks WHERE id = ? AND agent = ? AND owner = ?", (task_id, agent, owner)
            ).fetchone()
        return None if row is None else orjson.loads(row[0])

    def read(self, task_id: str) -> dict[str, Any] | None:
        """The task, independent of its owner."""
        with self._mapped():
            row = self._connection.execute("SELECT body FROM tasks WHERE id = ?", (task_id,)).fetchone()
        return None if row is None else orjson.loads(row[0])

    def list_bodies(self) -> list[tuple[str, dict[str, Any]]]:
        """Owner and JSON of every task, the first changed first; ``ended`` is a key of the JSON."""
        with self._mapped():
            rows = self._connection.execute(
                "SELECT owner, ended, body FROM tasks ORDER BY updated_ms, id"
            ).fetchall()
        return [(owner, {**orjson.loads(body), "ended": bool(ended)}) for owner, ended, body in rows]

    def delete(self, task_id: str) -> None:
        """Delete a task, if it exists."""
        with self._writing() as connection:
            connection.execute("DELETE FROM tasks WHERE id = ?", (task_id,))

    def list_page(
        self,
        agent: str,
        owner: str,
        *,
        context: str | None = None,
        state: str | None = None,
        since_ms: int | None = None,
        after: tuple[int, str] | None = None,
        limit: int = 50,
    ) -> TaskPage:
        """One page, the last changed first; ``after`` is the position that the page before gave."""
        asked = {
            "agent": agent,
            "owner": owner,
            "context": context,
            "state": state,
            "since": since_ms,
            "at": None if after is None else after[0],
            "id": None if after is None else after[1],
            "limit": limit + 1,
        }
        with self._mapped():
            total = self._connection.execute(f"SELECT count(*) {_MATCHING}", asked).fetchone()[0]
            rows = self._connection.execute(
                f"SELECT updated_ms, id, body {_MATCHING} {_PAGE}", asked
            ).fetchall()
        shown = rows[:limit]
        position = (shown[-1][0], shown[-1][1]) if len(rows) > limit else None
        return TaskPage([orjson.loads(row[2]) for row in shown], total, position)

    def end_unfinished(
        self,
        end: Callable[[dict[str, Any]], tuple[str, dict[str, Any]]],
        owns: Callable[[str], bool] = lambda task_id: True,
    ) -> list[str]:
        """End the tasks that a process left unfinished; ``end`` gives the state and JSON of each.

        ``owns`` tells which were those of this process, by their ids. Returns the ids.
        """
        with self._writing() as connection:
            rows = connection.execute("SELECT id, body FROM tasks WHERE ended = 0").fetchall()
            rows = [row for row in rows if owns(row[0])]
            for task_id, body in rows:
                state, ended = end(orjson.loads(body))
                connection.execute(
                    "UPDATE tasks SET state = ?, ended = 1, updated_ms = ?, body = ? WHERE id = ?",
                    (state, _now_ms(), orjson.dumps(ended), task_id),
                )
        return [row[0] for row in rows]

    def save_push(self, task_id: str, config_id: str, body: Mapping[str, Any]) -> None:
        """Store one push notification configuration of a task."""
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO push_configs VALUES (?, ?, ?)",
                (task_id, config_id, orjson.dumps(body)),
            )

    def list_push(self, task_id: str) -> list[tuple[str, dict[str, Any]]]:
        """The push notification configurations of a task, with their ids."""
        with self._mapped():
            rows = self._connection.execute(
                "SELECT id, body FROM push_configs WHERE task = ? ORDER BY id", (task_id,)
            ).fetchall()
        return [(row[0], orjson.loads(row[1])) for row in rows]

    def delete_push(self, task_id: str, config_id: str) -> None:
        """Delete a push notification configuration, if it exists."""
        with self._writing() as connection:
            connection.execute("DELETE FROM push_configs WHERE task = ? AND id = ?", (task_id, config_id))

    def prune(self) -> None:
        """Delete ended tasks that are too old or too many, with their push notification configurations."""
        self._until_pruned = _PRUNE_EVERY
        with self._writing() as connection:
            connection.execute(
                "DELETE FROM tasks WHERE ended = 1 AND updated_ms < ?",
                (_now_ms() - int(self._keep_s * 1000),),
            )
            connection.execute(
                "DELETE FROM tasks WHERE id IN (SELECT id FROM tasks WHERE ended = 1 "
                "ORDER BY updated_ms DESC, id DESC LIMIT -1 OFFSET ?)",
                (self._keep,),
            )
            connection.execute("DELETE FROM push_configs WHERE task NOT IN (SELECT id FROM tasks)")

    def close(self) -> None:
        """Close the file and give it free."""
        self._connection.close()
        if self._lock is not None:
            self._lock.release()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._mapped(), self._connection:
            yield self._connection

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _explain(error, self._path) from error


def _explain(error: sqlite3.Error, path: Path) -> StateError:
    """The error with its remedy; only a file that is damaged is to be moved away, with its tasks."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if is_for_want_of_room(error, path.parent):
        return StorageFullError(str(path))
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StateDamagedError(str(path), str(error), remedy="move it away; its tasks are lost")
    return StateError(f"{path}: {error}", remedy="check that it can be written, and start the process again")


def _connect(path: Path) -> sqlite3.Connection:
    create_database(path)
    connection = sqlite3.connect(path, timeout=5.0, check_same_thread=False)
    try:
        use_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        elif version != _VERSION:
            raise StateError(
                f"{path} has schema version {version}; this Retinue reads version {_VERSION}",
                remedy="use a newer Retinue",
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
