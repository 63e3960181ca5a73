"""Reads the audit rows in ``retinue.db`` from processes other than the hub."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from retinue.core.errors import StateError

_ROWS = """
    SELECT id, row FROM (SELECT id, CAST(row AS TEXT) AS row FROM audit WHERE id > :after)
    WHERE row ->> 'type' = 'CALL:ENDED'
      AND (:agent IS NULL OR row ->> 'agent' = :agent)
      AND (:trace IS NULL OR row ->> 'trace_id' = :trace)
      AND (NOT :failed OR row ->> 'status' <> 'done')
"""
_LAST = f"SELECT id, row FROM ({_ROWS} ORDER BY id DESC LIMIT :limit) ORDER BY id"  # noqa: S608
_ALL = "SELECT row FROM audit WHERE id > ? ORDER BY id"
_TIME_AFTER = "SELECT CAST(row AS TEXT) ->> 'timestamp' FROM audit WHERE id > ? ORDER BY id LIMIT 1"
_PAGE_AFTER = "SELECT id, CAST(row AS TEXT) AS row FROM audit WHERE id > ? ORDER BY id LIMIT 2000"
_INPUTS = "SELECT row FROM policy_inputs WHERE at >= ? ORDER BY id"
_TRACES = """
    SELECT DISTINCT CAST(row AS TEXT) ->> 'trace_id' AS trace FROM audit
    WHERE trace IN (SELECT value FROM json_each(:traces))
"""


MAX_PAST_ROWS = 200_000


class AuditLog:
    """The audit log of the database at ``path``; empty while there is no such database.

    Reading never locks the hub out. Raises StateError for a file that is no database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def find_end(self) -> int:
        """The id of the newest row; 0 if there is none."""
        with self._reading() as connection:
            row = connection.execute("SELECT max(id) FROM audit").fetchone() if connection else None
        return int(row[0] or 0) if row else 0

    def read_calls(
        self,
        *,
        after: int = 0,
        limit: int = -1,
        agent: str | None = None,
        trace: str | None = None,
        failed: bool = False,
    ) -> tuple[Sequence[Mapping[str, Any]], int]:
        """The newest ended calls with an id beyond ``after``, in their order, and the id of the last one."""
        parameters = {"after": after, "limit": limit, "agent": agent, "trace": trace, "failed": failed}
        with self._reading() as connection:
            rows = connection.execute(_LAST, parameters).fetchall() if connection else []
        return [orjson.loads(row) for _, row in rows], rows[-1][0] if rows else after

    def find_traces(self, traces: Collection[str]) -> set[str]:
        """The trace ids that calls of the log have, among these."""
        with self._reading() as connection:
            parameters = {"traces": orjson.dumps(sorted(traces)).decode()}
            rows = connection.execute(_TRACES, parameters).fetchall() if connection and traces else []
        return {trace for (trace,) in rows}

    def read_events(self, *, last: int) -> Sequence[Mapping[str, Any]]:
        """The newest ``last`` rows, in their order: calls that began and calls that ended."""
        with self._reading() as connection:
            rows = connection.execute(_ALL, (self.find_end() - last,)).fetchall() if connection else []
        return [orjson.loads(row) for (row,) in rows]

    def iterate_past(self, since: datetime) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
        """The calls that have ended since then, oldest first, with what policies read of their arguments.

        They are among the newest `MAX_PAST_ROWS` rows. May run in any thread.
        """
        with self._reading() as connection:
            inputs = {} if connection is None else _read_inputs(connection, since)
        for row in self.iterate_calls(since):
            yield row, inputs.get(row["id"])

    def iterate_calls(self, since: datetime) -> Iterator[Mapping[str, Any]]:
        """As `iterate_past`, the rows alone."""
        oldest = since.astimezone(UTC).isoformat()
        with self._reading() as connection:
            if connection is None:
                return
            after = _find_start(connection, oldest)
            while page := connection.execute(_PAGE_AFTER, (after,)).fetchall():
                for _, text in page:
                    row = orjson.loads(text)
                    if row.get("type") == "CALL:ENDED" and row["timestamp"] >= oldest:
                        yield row
                after = page[-1][0]

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        if not self._path.exists():
            yield None
            return
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self._path))}?mode=ro", uri=True)) as connection:
                has_table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'audit'"
                yield connection if connection.execute(has_table).fetchone() else None
        except sqlite3.Error as error:
            raise StateError(
                f"{self._path} cannot be read: {error}", remedy="see what is wrong: retinue doctor"
            ) from error


def _find_start(connection: sqlite3.Connection, oldest: str) -> int:
    """The id before the first row of this time; rows are nearly in the order of their times."""
    row = connection.execute("SELECT max(id) FROM audit").fetchone()
    end = int(row[0] or 0)
    low, high = max(0, end - MAX_PAST_ROWS), end
    while low < high:
        middle = (low + high) // 2
        at = connection.execute(_TIME_AFTER, (middle,)).fetchone()
        if at is not None and at[0] is not None and at[0] < oldest:
            low = middle + 1
        else:
            high = middle
    return low


def _read_inputs(connection: sqlite3.Connection, since: datetime) -> dict[str, Mapping[str, Any]]:
    """The arguments of calls since then that policies have read, by the id of the call."""
    try:
        rows = connection.execute(_INPUTS, (since.timestamp(),)).fetchall()
    except sqlite3.OperationalError:
        return {}  # the database of an older release, which no hub has opened since
    return {row["call"]: row for row in map(orjson.loads, (text for (text,) in rows))}
