"""Creates and migrates the tables that Retinue adds to the engine's database, or refuses a newer form.

Processes of two releases share a database while one release replaces the other. So the database tells which
version its tables have, and which version a release must know at least in order to use them. A script that
only adds something leaves the tables usable for older releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import sqlalchemy as sa

from retinue.core.errors import StateError

SCRIPTS = (
    """
CREATE TABLE IF NOT EXISTS {events} (
    root TEXT NOT NULL, seq BIGINT NOT NULL, run_id TEXT NOT NULL, kind TEXT NOT NULL, step TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL, facts TEXT NOT NULL, once TEXT, PRIMARY KEY (root, seq));
CREATE UNIQUE INDEX IF NOT EXISTS retinue_events_once ON {events} (run_id, once);
CREATE TABLE IF NOT EXISTS {signals} (
    id {serial}, run_id TEXT NOT NULL, topic TEXT NOT NULL, value TEXT NOT NULL, taken_by TEXT);
CREATE INDEX IF NOT EXISTS retinue_signals_open ON {signals} (run_id, topic, id);
CREATE TABLE IF NOT EXISTS {nodes} (
    executor TEXT PRIMARY KEY, version TEXT NOT NULL, expires DOUBLE PRECISION NOT NULL,
    running BIGINT NOT NULL)
""",
    """
CREATE TABLE IF NOT EXISTS {used_ids} (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, ended DOUBLE PRECISION NOT NULL);
CREATE INDEX IF NOT EXISTS retinue_used_ids_ended ON {used_ids} (ended)
""",
    """
CREATE TABLE IF NOT EXISTS {schedules} (
    id TEXT PRIMARY KEY, spec TEXT NOT NULL, progress TEXT NOT NULL, revision BIGINT NOT NULL)
""",
    """
CREATE TABLE IF NOT EXISTS {triggers} (
    id TEXT PRIMARY KEY, hook TEXT UNIQUE, spec TEXT NOT NULL, progress TEXT NOT NULL,
    revision BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS {deliveries} (
    trigger_id TEXT NOT NULL, event TEXT NOT NULL, sent_at DOUBLE PRECISION NOT NULL,
    at DOUBLE PRECISION NOT NULL, PRIMARY KEY (trigger_id, event))
""",
    """
CREATE TABLE IF NOT EXISTS {hosted} (
    executor TEXT NOT NULL, name TEXT NOT NULL, workflow TEXT NOT NULL, PRIMARY KEY (executor, name))
""",
    """
CREATE TABLE IF NOT EXISTS {approvals} (
    id TEXT PRIMARY KEY, digest TEXT NOT NULL, caller TEXT NOT NULL, state TEXT NOT NULL,
    expires DOUBLE PRECISION NOT NULL, record TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS retinue_approvals_digest ON {approvals} (digest)
""",
    """
CREATE TABLE IF NOT EXISTS {artifacts} (
    root TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (root, digest));
CREATE INDEX IF NOT EXISTS retinue_artifacts_digest ON {artifacts} (digest)
""",
    """
CREATE TABLE IF NOT EXISTS {sessions} (
    key TEXT PRIMARY KEY, root TEXT NOT NULL, changed DOUBLE PRECISION NOT NULL, history TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS retinue_sessions_root ON {sessions} (root)
""",
    """
CREATE TABLE IF NOT EXISTS {call_counts} (
    key TEXT PRIMARY KEY, expires DOUBLE PRECISION NOT NULL, times TEXT NOT NULL)
""",
    """
CREATE TABLE IF NOT EXISTS {policy_digests} (
    executor TEXT PRIMARY KEY, digest TEXT NOT NULL)
""",
    """
CREATE TABLE IF NOT EXISTS {watches} (
    root TEXT PRIMARY KEY, expires DOUBLE PRECISION NOT NULL);
CREATE TABLE IF NOT EXISTS {reports} (
    id {serial}, root TEXT NOT NULL, node TEXT NOT NULL, at DOUBLE PRECISION NOT NULL, report TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS retinue_reports_root ON {reports} (root, id)
""",
)
"""One script for each version. Append new ones; never change a released one.

The first one finds its tables in databases that were made before they had a version.
"""

USABLE_FROM = 1
"""The version that a release must know to use the tables as these scripts leave them: raise it with a script
that changes existing tables.
"""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The facts in the database about its tables: their version, the releases that may use them, their
    creator.
    """

    version: int
    usable_from: int
    release: str


class OwnTables:
    """The tables in the database of ``engine``, with their names.

    ``scripts`` and ``usable_from`` are what this release knows. All methods block: call them in a thread.
    """

    def __init__(
        self, engine: sa.Engine, *, scripts: Sequence[str] = SCRIPTS, usable_from: int = USABLE_FROM
    ) -> None:
        self._engine = engine
        self._scripts = scripts
        self._usable_from = usable_from
        self._is_sqlite = engine.dialect.name == "sqlite"
        own = "retinue_" if self._is_sqlite else "retinue."
        self.events, self.signals, self.nodes = f"{own}events", f"{own}signals", f"{own}nodes"
        self.used_ids = f"{own}used_ids"
        self.schedules = f"{own}schedules"
        self.triggers, self.deliveries = f"{own}triggers", f"{own}deliveries"
        self.artifacts = f"{own}artifacts"
        self.hosted = f"{own}hosted_workflows"
        self.approvals = f"{own}approvals"
        self.sessions = f"{own}sessions"
        self.call_counts = f"{own}call_counts"
        self.policy_digests = f"{own}policy_digests"
        self.watches, self.reports = f"{own}watches", f"{own}reports"
        self._versions = f"{own}schema_version"

    def check(self) -> None:
        """Raises StateError for tables that a newer release has made unusable for this one."""
        with self._engine.connect() as connection:
            self._check(self._read(connection))

    def update(self) -> None:
        """Create the tables, or run the scripts that they lack, in one transaction; raises as `check`."""
        with self._engine.connect() as connection:
            # Asked before anything is locked: the scripts wait for writers, such as a frozen node.
            stored = self._read(connection)
            connection.rollback()
            if stored.version >= len(self._scripts):
                self._check(stored)
                return
            self._lock(connection)
            # Another process may have done it meanwhile.
            stored = self._read(connection)
            self._check(stored)
            serial = "INTEGER PRIMARY KEY AUTOINCREMENT" if self._is_sqlite else "BIGSERIAL PRIMARY KEY"
            names = {
                "events": self.events,
                "signals": self.signals,
                "nodes": self.nodes,
                "used_ids": self.used_ids,
                "schedules": self.schedules,
                "triggers": self.triggers,
                "deliveries": self.deliveries,
                "artifacts": self.artifacts,
                "hosted": self.hosted,
                "approvals": self.approvals,
                "sessions": self.sessions,
                "call_counts": self.call_counts,
                "policy_digests": self.policy_digests,
                "watches": self.watches,
                "reports": self.reports,
                "serial": serial,
            }
            for script in self._scripts[stored.version :]:
                for statement in script.format(**names).split(";"):
                    connection.exec_driver_sql(statement)
            if stored.version < len(self._scripts):
                self._write(connection, max(stored.usable_from, self._usable_from))
            connection.commit()

    def _check(self, stored: TableFacts) -> None:
        if stored.usable_from > len(self._scripts):
            raise StateError(
                f"the database of the runs belongs to Retinue {stored.release}: its tables have version "
                f"{stored.version}, and Retinue {version('retinue')} knows versions up to "
                f"{len(self._scripts)}",
                remedy=f"update Retinue here to {stored.release} or newer, "
                "or restore a backup from before its update",
            )

    def _read(self, connection: sa.Connection) -> TableFacts:
        known = (
            f"SELECT 1 FROM sqlite_master WHERE name = '{self._versions}'"  # noqa: S608
            if self._is_sqlite
            else f"SELECT to_regclass('{self._versions}')"
        )
        if connection.exec_driver_sql(known).scalar() is None:
            return TableFacts(0, 0, "")
        read = f"SELECT version, usable_from, release FROM {self._versions}"  # noqa: S608
        row = connection.exec_driver_sql(read).first()
        return TableFacts(0, 0, "") if row is None else TableFacts(*row)

    def _lock(self, connection: sa.Connection) -> None:
        """Let no other process change the tables until the end of the transaction."""
        if self._is_sqlite:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('retinue'))")
        connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS retinue")

    def _write(self, connection: sa.Connection, usable_from: int) -> None:
        connection.exec_driver_sql(
            f"CREATE TABLE IF NOT EXISTS {self._versions} "
            "(version BIGINT NOT NULL, usable_from BIGINT NOT NULL, release TEXT NOT NULL)"
        )
        connection.exec_driver_sql(f"DELETE FROM {self._versions}")  # noqa: S608
        insert = sa.text(f"INSERT INTO {self._versions} VALUES (:version, :usable_from, :release)")  # noqa: S608
        connection.execute(
            insert,
            {"version": len(self._scripts), "usable_from": usable_from, "release": version("retinue")},
        )
