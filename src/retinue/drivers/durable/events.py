"""The events of runs in their database, so that any process can follow any run.

Events are written a moment after they happened, many in one transaction, and are numbered there
within their outermost run. One with ``once`` is written at most once for its run: whoever repeats it,
such as a node that takes over, changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa
import structlog

from retinue.core.errors import StateError
from retinue.drivers.durable.database import RunDatabase
from retinue.workflows.run_records import EventKind, RunEvent

_log = structlog.get_logger("retinue.runs")

LINGER_S = 0.01
"""How long a first event waits for others to be written with it."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event that has no number yet."""

    root: str
    run_id: str
    kind: EventKind
    step: str
    facts: Mapping[str, Any]
    at: float = field(default_factory=time.time)
    once: str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What the events of one run say so far: the ``once`` of each, and how often it was resumed."""

    once: frozenset[str]
    resumed: int


class EventTable:
    """Writes and reads events; `flush` before the process ends."""

    def __init__(self, database: RunDatabase) -> None:
        self._database = database
        self._waiting: list[NewEvent] = []
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()

    def add(self, event: NewEvent) -> None:
        """Write an event soon."""
        self._waiting.append(event)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush_soon(), name="run events")

    async def flush(self) -> None:
        """Write what waits; raises StateError, and then it waits on."""
        async with self._writing:
            batch, self._waiting = self._waiting, []
            if not batch:
                return
            try:
                await self._database.write(lambda connection: self._insert(connection, batch))
            except BaseException:
                self._waiting = batch + self._waiting
                raise
        # Whoever waits holds the old one; the next gets a new one.
        self.changed.set()
        self.changed = asyncio.Event()

    async def list_after(self, root: str, run_id: str, seq: int) -> tuple[RunEvent, ...]:
        """The events of a run and those below it that come after number ``seq``."""
        query = sa.text(
            f"SELECT seq, kind, run_id, step, at, facts FROM {self._database.events} "  # noqa: S608
            "WHERE root = :root AND seq > :seq ORDER BY seq"
        )
        await self.flush()
        rows = await self._database.read(lambda c: c.execute(query, {"root": root, "seq": seq}).fetchall())
        return tuple(
            RunEvent(row.seq, row.kind, row.run_id, row.step, row.at, orjson.loads(row.facts))
            for row in rows
            if row.run_id == run_id or row.run_id.startswith(f"{run_id}/")
        )

    async def read_told(self, run_id: str) -> Told:
        """What was told of one run, without those below it."""
        query = sa.text(
            f"SELECT once, kind FROM {self._database.events} "  # noqa: S608
            "WHERE run_id = :run_id AND (once IS NOT NULL OR kind = 'run_resumed')"
        )
        await self.flush()
        rows = await self._database.read(lambda c: c.execute(query, {"run_id": run_id}).fetchall())
        return Told(
            frozenset(row.once for row in rows if row.once is not None),
            sum(row.kind == "run_resumed" for row in rows),
        )

    async def forget(self, roots: Sequence[str]) -> None:
        """Delete the events of outermost runs."""
        statement = sa.text(f"DELETE FROM {self._database.events} WHERE root = :root")  # noqa: S608
        parameters = [{"root": root} for root in roots]
        await self._database.write(lambda c: c.execute(statement, parameters) if parameters else None)

    async def _flush_soon(self) -> None:
        while self._waiting:
            await asyncio.sleep(LINGER_S)
            try:
                await self.flush()
            except StateError as error:
                _log.warning("events wait for their database", error=error.message)

    def _insert(self, connection: sa.Connection, batch: Sequence[NewEvent]) -> None:
        database = self._database
        roots = sorted({event.root for event in batch})
        if not database.is_sqlite:
            # One writer for each outermost run: numbers appear in their order, without gaps.
            for root in roots:
                connection.execute(
                    sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:r, 0))"), {"r": root}
                )
        known = self._read_known(connection, batch)
        latest = sa.text(f"SELECT coalesce(max(seq), 0) FROM {database.events} WHERE root = :root")  # noqa: S608
        seqs = {root: connection.execute(latest, {"root": root}).scalar_one() for root in roots}
        rows = []
        for event in batch:
            if event.once is not None:
                if (event.run_id, event.once) in known:
                    continue
                known.add((event.run_id, event.once))
            seqs[event.root] += 1
            rows.append(
                {
                    "root": event.root,
                    "seq": seqs[event.root],
                    "run_id": event.run_id,
                    "kind": event.kind,
                    "step": event.step,
                    "at": event.at,
                    "facts": orjson.dumps(dict(event.facts)).decode(),
                    "once": event.once,
                }
            )
        insert = (
            f"INSERT INTO {database.events} (root, seq, run_id, kind, step, at, facts, once) "  # noqa: S608
            "VALUES (:root, :seq, :run_id, :kind, :step, :at, :facts, :once)"
        )
        if rows:
            connection.execute(sa.text(insert), rows)

    def _read_known(self, connection: sa.Connection, batch: Sequence[NewEvent]) -> set[tuple[str, str]]:
        keyed = [event for event in batch if event.once is not None]
        if not keyed:
            return set()
        query = sa.text(
            f"SELECT run_id, once FROM {self._database.events} "  # noqa: S608
            "WHERE run_id IN :runs AND once IN :keys"
        ).bindparams(sa.bindparam("runs", expanding=True), sa.bindparam("keys", expanding=True))
        parameters = {
            "runs": sorted({event.run_id for event in keyed}),
            "keys": sorted({str(event.once) for event in keyed}),
        }
        return {(row.run_id, row.once) for row in connection.execute(query, parameters)}
