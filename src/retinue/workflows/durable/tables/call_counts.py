"""The table of counted calls, which all processes of a database share: the CallCounts of policies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import orjson
import sqlalchemy as sa

from retinue.policies.counts import Count, Refusal, take_all
from retinue.workflows.durable.database import RunDatabase


class CallCountTable:
    """The counts in a database; all methods raise StateError where it does not answer."""

    def __init__(self, database: RunDatabase, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def take(self, counts: Sequence[Count]) -> Refusal | None:
        """As `CallCounts.take`."""
        now = self._clock()

        def write(connection: sa.Connection) -> Refusal | None:
            self._lock(connection)
            delete = sa.text(f"DELETE FROM {self._database.call_counts} WHERE expires < :now")  # noqa: S608
            connection.execute(delete, {"now": now})
            known = {count.key: self._read(connection, count) for count in counts}
            refusal, taken = take_all(counts, known, now)
            for count in counts:
                if times := taken.get(count.key):
                    self._write(connection, count, times)
            return refusal

        await self._database.prepare()
        return await self._database.write(write)

    async def find_refusal(self, counts: Sequence[Count]) -> Refusal | None:
        """As `CallCounts.find_refusal`."""
        now = self._clock()
        await self._database.prepare()
        known = await self._database.read(lambda c: {count.key: self._read(c, count) for count in counts})
        return take_all(counts, known, now)[0]

    async def give_back(self, counts: Sequence[Count]) -> None:
        """As `CallCounts.give_back`."""

        def write(connection: sa.Connection) -> None:
            self._lock(connection)
            for count in counts:
                if times := self._read(connection, count):
                    self._write(connection, count, times[:-1])

        await self._database.prepare()
        await self._database.write(write)

    def _read(self, connection: sa.Connection, count: Count) -> list[float]:
        query = sa.text(f"SELECT times FROM {self._database.call_counts} WHERE key = :key")  # noqa: S608
        stored = connection.execute(query, {"key": count.key}).scalar()
        return [] if stored is None else list(orjson.loads(stored))

    def _write(self, connection: sa.Connection, count: Count, times: Sequence[float]) -> None:
        statement = sa.text(
            f"INSERT INTO {self._database.call_counts} (key, expires, times) "  # noqa: S608
            "VALUES (:key, :expires, :times) ON CONFLICT (key) DO UPDATE "
            "SET expires = excluded.expires, times = excluded.times"
        )
        expires = (times[-1] if times else 0.0) + count.window_s
        text = orjson.dumps(list(times)).decode()
        connection.execute(statement, {"key": count.key, "expires": expires, "times": text})

    def _lock(self, connection: sa.Connection) -> None:
        """Count one call after another; SQLite has locked the database already."""
        if not self._database.is_sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('retinue call counts'))"))
