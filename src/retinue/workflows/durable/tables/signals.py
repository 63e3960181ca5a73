"""The table of signals: each is stored until one receive, in any process, takes it.

A receive marks the signal with its own name, so that a receive repeated after a crash gets the same one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import orjson
import sqlalchemy as sa
import structlog

from retinue.core.errors import StateError
from retinue.workflows.durable.database import RunDatabase

_log = structlog.get_logger("retinue.runs")

POLL_S = 0.25
"""The interval at which signals from other processes are polled, for all waiting receives together."""


class SignalTable:
    """The signals of all runs."""

    def __init__(self, database: RunDatabase) -> None:
        self._database = database
        self._waiting: Counter[str] = Counter()
        self._arrived = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None

    async def put(self, run_id: str, topic: str, value: Any) -> None:
        await self._database.write(lambda c: self.insert(c, run_id, topic, value))
        self._wake()

    def insert(self, connection: sa.Connection, run_id: str, topic: str, value: Any) -> None:
        """As `put`, as part of a transaction; no receive is woken."""
        statement = sa.text(
            f"INSERT INTO {self._database.signals} (run_id, topic, value) "  # noqa: S608
            "VALUES (:run_id, :topic, :value)"
        )
        parameters = {"run_id": run_id, "topic": topic, "value": orjson.dumps(value).decode()}
        connection.execute(statement, parameters)

    async def count_all(self, run_id: str, topic: str) -> int:
        """The number of values of a topic, taken or not."""
        query = sa.text(
            f"SELECT count(*) FROM {self._database.signals} "  # noqa: S608
            "WHERE run_id = :run_id AND topic = :topic"
        )
        names = {"run_id": run_id, "topic": topic}
        return int(await self._database.read(lambda c: c.execute(query, names).scalar()) or 0)

    async def list_all(self, run_id: str, topic: str) -> list[Any]:
        """The values of a topic, taken or not, in the order in which they came."""
        query = sa.text(
            f"SELECT value FROM {self._database.signals} "  # noqa: S608
            "WHERE run_id = :run_id AND topic = :topic ORDER BY id"
        )
        names = {"run_id": run_id, "topic": topic}
        values = await self._database.read(lambda c: c.execute(query, names).scalars().all())
        return [orjson.loads(value) for value in values]

    async def count_open(self, run_id: str, topic: str) -> int:
        """The number of values of a topic that no receive has taken."""
        query = sa.text(
            f"SELECT count(*) FROM {self._database.signals} "  # noqa: S608
            "WHERE run_id = :run_id AND topic = :topic AND taken_by IS NULL"
        )
        names = {"run_id": run_id, "topic": topic}
        return int(await self._database.read(lambda c: c.execute(query, names).scalar()) or 0)

    async def take(self, run_id: str, topic: str, receiver: str, timeout_s: float) -> Any:
        """Take the next value of a topic for the receive named ``receiver``; raises TimeoutError."""
        given_up_at = asyncio.get_running_loop().time() + timeout_s
        self._waiting[run_id] += 1
        try:
            while True:
                arrived = self._arrived
                signal = await self._database.write(lambda c: self._take(c, run_id, topic, receiver))
                if signal is not None:
                    return orjson.loads(signal)
                if self._poller is None or self._poller.done():
                    self._poller = asyncio.create_task(self._poll(), name="run signals")
                async with asyncio.timeout_at(given_up_at):
                    await arrived.wait()
        finally:
            self._waiting[run_id] -= 1
            self._waiting += Counter()  # drops the counts that are 0

    async def forget(self, roots: Sequence[str]) -> None:
        """Delete the signals of outermost runs and of their child runs."""
        statement = sa.text(
            f"DELETE FROM {self._database.signals} "  # noqa: S608
            "WHERE run_id = :root OR substr(run_id, 1, length(:below)) = :below"
        )
        parameters = [{"root": root, "below": f"{root}/"} for root in roots]
        await self._database.write(lambda c: c.execute(statement, parameters) if parameters else None)

    def close(self) -> None:
        if self._poller is not None:
            self._poller.cancel()

    def _take(self, connection: sa.Connection, run_id: str, topic: str, receiver: str) -> str | None:
        table = self._database.signals
        names = {"run_id": run_id, "topic": topic, "receiver": receiver}
        mine = f"SELECT value FROM {table} WHERE run_id = :run_id AND taken_by = :receiver"  # noqa: S608
        value: str | None = connection.execute(sa.text(mine), names).scalar()
        if value is not None:
            return value
        next_one = (
            f"UPDATE {table} SET taken_by = :receiver WHERE id = "  # noqa: S608
            f"(SELECT min(id) FROM {table} WHERE run_id = :run_id AND topic = :topic AND taken_by IS NULL) "
            "AND taken_by IS NULL RETURNING value"
        )
        taken: str | None = connection.execute(sa.text(next_one), names).scalar()
        return taken

    async def _poll(self) -> None:
        query = sa.text(f"SELECT DISTINCT run_id FROM {self._database.signals} WHERE taken_by IS NULL")  # noqa: S608
        while self._waiting:
            await asyncio.sleep(POLL_S)
            try:
                rows = await self._database.read(lambda c: c.execute(query).scalars().all())
            except StateError as error:
                _log.warning("signals wait for their database", error=error.message)
                continue
            if not self._waiting.keys().isdisjoint(rows):
                self._wake()

    def _wake(self) -> None:
        # Waiting tasks hold this object; later ones get the next.
        self._arrived.set()
        self._arrived = asyncio.Event()
