"""The table of the sessions of steps ``think``, which all nodes of a database share: a SessionStore.

A row is deleted with the run that wrote it last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.runs.ports import Change


class SessionTable:
    """The sessions in a database; all methods raise StateError where it does not answer."""

    def __init__(self, database: RunDatabase, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def find(self, key: str) -> Mapping[str, Any] | None:
        """As `SessionStore.find`."""
        await self._database.prepare()
        return await self._database.read(self._read, key)

    async def change(self, key: str, root: str, change: Change) -> None:
        """As `SessionStore.change`."""

        def write(connection: sa.Connection) -> None:
            self._lock(connection, key)
            history = orjson.dumps(change(self._read(connection, key))).decode()
            statement = sa.text(
                f"INSERT INTO {self._database.sessions} (key, root, changed, history) "  # noqa: S608
                "VALUES (:key, :root, :changed, :history) ON CONFLICT (key) DO UPDATE "
                "SET root = excluded.root, changed = excluded.changed, history = excluded.history"
            )
            connection.execute(
                statement, {"key": key, "root": root, "changed": self._clock(), "history": history}
            )

        await self._database.prepare()
        await self._database.write(write)

    async def forget(self, roots: Sequence[str]) -> None:
        """Delete the sessions that these deleted runs wrote last."""
        if roots:
            await self._database.write(self._delete, roots)

    def _read(self, connection: sa.Connection, key: str) -> Mapping[str, Any] | None:
        query = sa.text(f"SELECT history FROM {self._database.sessions} WHERE key = :key")  # noqa: S608
        stored = connection.execute(query, {"key": key}).scalar()
        history: Mapping[str, Any] | None = None if stored is None else orjson.loads(stored)
        return history

    def _lock(self, connection: sa.Connection, key: str) -> None:
        """Let no other transaction change this session; SQLite has one writer at a time anyway."""
        if not self._database.is_sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext(:key))"), {"key": key})

    def _delete(self, connection: sa.Connection, roots: Sequence[str]) -> None:
        statement = sa.text(f"DELETE FROM {self._database.sessions} WHERE root IN :roots").bindparams(  # noqa: S608
            sa.bindparam("roots", expanding=True)
        )
        connection.execute(statement, {"roots": list(roots)})
