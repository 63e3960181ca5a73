"""Stores the audit rows of a hub in ``retinue.db``, within bounds of age and size.

Rows are deleted oldest first when they are older than ``keep_days`` or the table is larger than
``keep_bytes``. A batch of new rows deletes as many old ones at least, so no deletion takes long.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import structlog

from retinue.core.errors import StateError
from retinue.mesh.observing.call_figures import CallSummary
from retinue.storage.database import Database

_log = structlog.get_logger("retinue.store")

AUDIT_FLUSH_S = 0.2
AUDIT_FLUSH_ROWS = 200
AUDIT_BUFFER_ROWS = 10_000
"""Rows kept in memory while the file cannot be written; beyond that the oldest are dropped."""

INPUTS_KEEP_S = 7 * 86_400.0
"""How long the arguments that policies have read are kept."""

INPUTS_KEEP_ROWS = 100_000
INPUTS_PRUNED_EVERY_S = 600.0

AUDIT_KEEP_DAYS = 30.0
AUDIT_KEEP_BYTES = 256 * 1024 * 1024

SUMMARISED_ROWS = 100_000
"""The figures of a hub begin with the newest rows, so that a large log does not hold up its start."""

_PRUNED_AT_ONCE = 1_000
_ROW_BYTES = 12
"""The bytes of a row in the file in addition to its text."""

_BYTES = f"SELECT coalesce(sum(length(row) + {_ROW_BYTES}), 0) FROM audit"  # noqa: S608
_OLDEST = (
    f"SELECT id, length(row) + {_ROW_BYTES} AS size, CAST(row AS TEXT) ->> 'timestamp' AS at "  # noqa: S608
    f"FROM audit ORDER BY id LIMIT {_PRUNED_AT_ONCE}"
)
_SUMMARY = f"""
    SELECT row ->> 'agent' AS agent, row ->> 'status' AS status, row ->> 'error' AS error,
           count(*) AS calls, sum(row ->> 'duration_ms') AS ms
    FROM (SELECT CAST(row AS TEXT) AS row FROM audit ORDER BY id DESC LIMIT {SUMMARISED_ROWS})
    WHERE row ->> 'type' = 'CALL:ENDED' AND row ->> 'agent' IS NOT NULL AND row ->> 'door' IS NOT 'exam'
    GROUP BY 1, 2, 3
"""  # noqa: S608
_CALLS = """
    SELECT id, text FROM (SELECT id, CAST(row AS TEXT) AS text FROM audit WHERE id < ? ORDER BY id DESC)
    WHERE text ->> '$.type' = 'CALL:ENDED'
"""
_PRUNE_INPUTS = "DELETE FROM policy_inputs WHERE at < ? OR id <= ?"
_LAST_ID = 2**63 - 1


def render_row(row: Mapping[str, Any]) -> bytes:
    """A row as it is stored: one line of JSON."""
    return orjson.dumps(dict(row), default=str)


def render_inputs(row: Mapping[str, Any]) -> bytes:
    """The facts that policies have read of one call, as they are stored."""
    try:
        return orjson.dumps(dict(row), default=str)
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(dict(row), default=str).encode()


class SqliteAudit:
    """The audit log in the file ``path``: rows of ``keep_days`` days, at most ``keep_bytes`` of them.

    Rows are written in batches, at most ``flush_s`` later; `close` writes the rest. A write error never
    fails a call: rows stay in memory, and beyond `AUDIT_BUFFER_ROWS` the oldest are dropped.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep_days: float = AUDIT_KEEP_DAYS,
        keep_bytes: int = AUDIT_KEEP_BYTES,
        flush_s: float = AUDIT_FLUSH_S,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._path = path
        self._database = Database(path)
        self._kept = timedelta(days=keep_days)
        self._keep_bytes = keep_bytes
        self._flush_s = flush_s
        self._clock = clock
        self._stored_bytes: int | None = None
        self._buffer: deque[bytes] = deque(maxlen=AUDIT_BUFFER_ROWS)
        self._inputs: deque[tuple[float, bytes]] = deque(maxlen=AUDIT_BUFFER_ROWS)
        self._inputs_pruned_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        self.append_rendered(render_row(row))

    def append_rendered(self, row: bytes) -> None:
        """As `append`, a row that `render_row` has rendered."""
        self._buffer.append(row)
        self._flush_later(len(self._buffer))

    def append_inputs(self, row: Mapping[str, Any]) -> None:
        """Keep the arguments that policies have read of one call, for `INPUTS_KEEP_S`."""
        self.append_rendered_inputs(render_inputs(row))

    def append_rendered_inputs(self, row: bytes) -> None:
        """As `append_inputs`, of what `render_inputs` has rendered."""
        self._inputs.append((self._clock().timestamp(), row))
        self._flush_later(len(self._inputs))

    def _flush_later(self, waiting: int) -> None:
        if waiting % AUDIT_FLUSH_ROWS == 0:
            self.flush()
        elif self._timer is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                self.flush()
            else:
                self._timer = loop.call_later(self._flush_s, self.flush)

    def recent(self, limit: int) -> Sequence[Mapping[str, Any]]:
        self.flush()
        with self._database.reading() as connection:
            rows = connection.execute("SELECT row FROM audit ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
        return [orjson.loads(row["row"]) for row in rows]

    def list_calls(
        self, equal: Mapping[str, str], *, failed: bool, before: int | None, limit: int
    ) -> Sequence[Mapping[str, Any]]:
        """Ended calls, newest first, whose keys equal these texts; ``failed`` = calls whose status is not
        done.

        ``before`` is the place of a row, which each row has as ``row``: only older ones. Call `flush` before
        for the newest; this method may run in any thread.
        """
        conditions = "".join(f" AND text ->> '$.{key}' = ?" for key in equal)
        if failed:
            conditions += " AND text ->> '$.status' <> 'done'"
        query = f"{_CALLS}{conditions} ORDER BY id DESC LIMIT ?"
        values = (before if before is not None else _LAST_ID, *equal.values(), limit)
        with self._reading_beside() as connection:
            rows = connection.execute(query, values).fetchall()
        return [{**orjson.loads(row["text"]), "row": row["id"]} for row in rows]

    def summarise_calls(self) -> Sequence[CallSummary]:
        """The newest ended calls of each agent, by status and error; this method may run in any thread."""
        with self._reading_beside() as connection:
            rows = connection.execute(_SUMMARY).fetchall()
        return [
            CallSummary(row["agent"], row["status"], row["error"], row["calls"], row["ms"]) for row in rows
        ]

    def measure(self) -> None:
        """Measure the stored rows, which reads all of them; this method may run in any thread.

        Otherwise the first batch does so.
        """
        with self._reading_beside() as connection:
            self._stored_bytes = int(connection.execute(_BYTES).fetchone()[0])

    def close(self) -> None:
        """Write the buffered rows and close the file."""
        self.flush()
        self._database.close()

    def flush(self) -> None:
        """Write the buffered rows, in the thread of the event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._inputs or self._clock().timestamp() - self._inputs_pruned_at > INPUTS_PRUNED_EVERY_S:
            self._flush_inputs()
        if not self._buffer:
            return
        try:
            if self._stored_bytes is None:
                self.measure()
            with self._database.writing() as connection:
                connection.executemany("INSERT INTO audit (row) VALUES (?)", [(r,) for r in self._buffer])
                stored = (self._stored_bytes or 0) + sum(len(row) + _ROW_BYTES for row in self._buffer)
                stored -= self._prune(connection, stored)
        except StateError as error:
            _log.warning("audit rows wait", rows=len(self._buffer), error=str(error))
        else:
            self._stored_bytes = stored
            self._buffer.clear()

    def _flush_inputs(self) -> None:
        """Write the buffered inputs and delete old ones, also while none are recorded."""
        now = self._clock().timestamp()
        try:
            with self._database.writing() as connection:
                connection.executemany("INSERT INTO policy_inputs (at, row) VALUES (?, ?)", self._inputs)
                last = connection.execute("SELECT coalesce(max(id), 0) FROM policy_inputs").fetchone()[0]
                connection.execute(_PRUNE_INPUTS, (now - INPUTS_KEEP_S, last - INPUTS_KEEP_ROWS))
        except StateError as error:
            _log.warning("inputs of policies wait", rows=len(self._inputs), error=str(error))
        else:
            self._inputs.clear()
            self._inputs_pruned_at = now

    def _prune(self, connection: sqlite3.Connection, stored: int) -> int:
        """Delete the oldest rows beyond the limits; returns their bytes."""
        oldest = (self._clock() - self._kept).isoformat()
        pruned, last = 0, None
        for row in connection.execute(_OLDEST):
            is_old = row["at"] is not None and row["at"] < oldest
            if not is_old and stored - pruned <= self._keep_bytes:
                break
            pruned, last = pruned + row["size"], row["id"]
        if last is not None:
            connection.execute("DELETE FROM audit WHERE id <= ?", (last,))
        return pruned

    @contextmanager
    def _reading_beside(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own: a long query must not hold up the event loop, which writes."""
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self._path))}?mode=ro", uri=True)) as connection:
                connection.row_factory = sqlite3.Row
                yield connection
        except sqlite3.Error as error:
            raise StateError(
                f"{self._path} cannot be read: {error}", remedy="see what is wrong: retinue doctor"
            ) from error
