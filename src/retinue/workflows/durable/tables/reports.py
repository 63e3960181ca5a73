"""The tables of what the steps of watched runs report, for processes other than the one that executes them.

A row of a watch says until when somebody elsewhere watches a run. Reports are kept for `KEPT_S`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from retinue.workflows.durable.database import RunDatabase

KEPT_S = 20.0
"""How long a report is kept; who watches its run reads it within a second."""


class ReportTables:
    """The watches and the reports in a database. All methods block."""

    def __init__(self, database: RunDatabase) -> None:
        self._database = database

    def watch(self, connection: sa.Connection, roots: Sequence[str], seconds: float) -> None:
        """Somebody watches these outermost runs for so long."""
        now = self._database.now
        statement = sa.text(
            f"INSERT INTO {self._database.watches} (root, expires) VALUES (:root, {now} + :seconds) "  # noqa: S608
            "ON CONFLICT (root) DO UPDATE SET expires = excluded.expires"
        )
        clock = self._database.clock()
        # in one order, so that two processes do not wait for each other
        for root in sorted(roots):
            connection.execute(statement, {"root": root, "seconds": seconds, **clock})

    def list_watched(self, connection: sa.Connection, roots: Sequence[str]) -> frozenset[str]:
        """The outermost runs among these that somebody watches."""
        query = sa.text(
            f"SELECT root FROM {self._database.watches} "  # noqa: S608
            f"WHERE root IN :roots AND expires > {self._database.now}"
        ).bindparams(sa.bindparam("roots", expanding=True))
        names = {"roots": list(roots), **self._database.clock()}
        return frozenset(connection.execute(query, names).scalars()) if roots else frozenset()

    def add(self, connection: sa.Connection, node: str, reports: Sequence[tuple[str, Any]]) -> None:
        """Store reports of a node, as JSON, each with its outermost run."""
        statement = sa.text(
            f"INSERT INTO {self._database.reports} (root, node, at, report) "  # noqa: S608
            f"VALUES (:root, :node, {self._database.now}, :report)"
        )
        clock = self._database.clock()
        for root, report in reports:
            text = orjson.dumps(report).decode()
            connection.execute(statement, {"root": root, "node": node, "report": text, **clock})

    def list_after(
        self, connection: sa.Connection, numbers: Mapping[str, int], node: str
    ) -> list[tuple[str, int, Any]]:
        """The reports of outermost runs after a number of each, of other nodes than ``node``, in order."""
        query = sa.text(
            f"SELECT id, report FROM {self._database.reports} "  # noqa: S608
            "WHERE root = :root AND id > :id AND node <> :node ORDER BY id"
        )
        reports: list[tuple[str, int, Any]] = []
        for root, number in numbers.items():
            rows = connection.execute(query, {"root": root, "id": number, "node": node})
            reports += [(root, row.id, orjson.loads(row.report)) for row in rows]
        return reports

    def forget_old(self, connection: sa.Connection) -> None:
        """Delete the reports and watches that nobody needs any more."""
        database, clock = self._database, self._database.clock()
        old = sa.text(f"DELETE FROM {database.reports} WHERE at < {database.now} - :kept_s")  # noqa: S608
        connection.execute(old, {"kept_s": KEPT_S, **clock})
        over = sa.text(f"DELETE FROM {database.watches} WHERE expires < {database.now}")  # noqa: S608
        connection.execute(over, clock)
