"""The table of events, through which any process can follow any run.

Events are written in batches, a moment after they happened, and numbered within their outermost run. An
event with ``once`` is stored at most once for its run, so that a node which takes a run over may repeat it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa
import structlog

from retinue.core.errors import StateError
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.runs.records import EventKind, RunEvent

_log = structlog.get_logger("retinue.runs")

LINGER_S = 0.01
"""How long the first event of a batch waits for further ones."""


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event without its number."""

    root: str
    run_id: str
    kind: EventKind
    step: str
    facts: Mapping[str, Any]
    at: float = field(default_factory=time.time)
    once: str | None = None


@dataclass(frozen=True, slots=True)
class EmittedEvents:
    """The events of one run so far: the ``once`` of each, and how often the run was resumed."""

    once: frozenset[str] = frozenset()
    resumed: int = 0

    @property
    def is_ended(self) -> bool:
        """Whether the end of the run was emitted since it was last resumed."""
        return f"end {self.resumed}" in self.once


class EventTable:
    """Writes and reads events; `flush` before the process ends."""

    def __init__(self, database: RunDatabase) -> None:
        self._database = database
        self._waiting: list[NewEvent] = []
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.before_flush: Callable[[], Awaitable[None]] | None = None
        """Stores what comes before the waiting events; it raises nothing."""
        self.changed = asyncio.Event()
        self.steps_ended = {"done": 0, "failed": 0}
        """How many steps have ended in this process, by outcome."""

    def add(self, event: NewEvent) -> None:
        """Write an event soon."""
        if event.kind == "step_finished":
            self.steps_ended["failed" if "error" in event.facts else "done"] += 1
        self._waiting.append(event)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush_soon(), name="run events")

    async def flush(self) -> None:
        """Write the waiting events; on StateError they remain waiting."""
        async with self._writing:
            batch, self._waiting = self._waiting, []
            if not batch:
                return
            try:
                if self.before_flush is not None:
                    await self.before_flush()
                await self._database.write(lambda connection: self.insert(connection, batch))
            except BaseException:
                self._waiting = batch + self._waiting
                raise
        # Waiting tasks hold this object; later ones get the next.
        self.changed.set()
        self.changed = asyncio.Event()

    async def list_after(self, root: str, run_id: str, seq: int) -> tuple[RunEvent, ...]:
        """The events of a run and those below it that come after number ``seq``."""
        query = sa.text(
            f"SELECT seq, kind, run_id, step, at, facts FROM {self._database.events} "  # noqa: S608
            "WHERE root = :root AND seq > :seq ORDER BY seq"
        )
        below = f"{run_id}/"
        await self.flush()
        rows = await self._database.read(lambda c: c.execute(query, {"root": root, "seq": seq}).fetchall())
        return tuple(
            RunEvent(number, kind, of_run, step, at, orjson.loads(facts))
            for number, kind, of_run, step, at, facts in rows
            if of_run == run_id or of_run.startswith(below)
        )

    async def list_all(self, root: str) -> tuple[tuple[RunEvent, ...], EmittedEvents]:
        """All events of an outermost run and its descendants, and a summary of the run's own events."""
        query = sa.text(
            f"SELECT seq, kind, run_id, step, at, facts, once FROM {self._database.events} "  # noqa: S608
            "WHERE root = :root ORDER BY seq"
        )
        await self.flush()
        rows = await self._database.read(lambda c: c.execute(query, {"root": root}).fetchall())
        own = [row for row in rows if row.run_id == root]
        emitted = EmittedEvents(
            frozenset([row.once for row in own if row.once is not None]),
            [row.kind for row in own].count("run_resumed"),
        )
        events = [
            RunEvent(seq, kind, run_id, step, at, orjson.loads(facts))
            for seq, kind, run_id, step, at, facts, _ in rows
        ]
        return tuple(events), emitted

    async def read_emitted(self, run_id: str) -> EmittedEvents:
        """The events of one run, without those below it."""
        query = sa.text(
            f"SELECT once, kind FROM {self._database.events} "  # noqa: S608
            "WHERE run_id = :run_id AND (once IS NOT NULL OR kind = 'run_resumed')"
        )
        await self.flush()
        rows = await self._database.read(lambda c: c.execute(query, {"run_id": run_id}).fetchall())
        return EmittedEvents(
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
            if not self._waiting and not self._writing.locked():  # the end of a run wrote them
                return
            try:
                await self.flush()
            except StateError as error:
                _log.warning("events wait for their database", error=error.message)

    def count_resumed(self, connection: sa.Connection, run_id: str) -> int:
        """How many executions of a run have continued it."""
        query = f"SELECT count(*) FROM {self._database.events} WHERE run_id = :id AND kind = 'run_resumed'"  # noqa: S608
        return int(connection.execute(sa.text(query), {"id": run_id}).scalar_one())

    def insert(self, connection: sa.Connection, batch: Sequence[NewEvent]) -> None:
        """Write events within a transaction of the caller."""
        database = self._database
        roots = sorted({event.root for event in batch})
        if not database.is_sqlite:
            # One writer at a time for each outermost run, so that readers see numbers without gaps.
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
        keyed = [(event.run_id, event.once) for event in batch if event.once is not None]
        if not keyed:
            return set()
        runs, keys = map(set, zip(*keyed, strict=True))
        query = sa.text(
            f"SELECT run_id, once FROM {self._database.events} "  # noqa: S608
            "WHERE run_id IN :runs AND once IN :keys"
        ).bindparams(sa.bindparam("runs", expanding=True), sa.bindparam("keys", expanding=True))
        rows = connection.execute(query, {"runs": sorted(runs), "keys": sorted(keys)})
        return {(run_id, once) for run_id, once in rows}


class EventSink:
    """Emits the events of one execution of a run.

    ``emitted`` are the events of earlier executions. With ``repairs``, this execution continues the work of
    an earlier one and emits events of recorded calls that the earlier one did not emit.
    """

    def __init__(self, table: EventTable, run_id: str, root: str) -> None:
        self.emitted = EmittedEvents()
        self.repairs = False
        self._table = table
        self._run_id = run_id
        self._root = root

    def emit(self, kind: EventKind, path: str, facts: Mapping[str, Any], once: str | None = None) -> None:
        """Emit an event of the step at a path, "" for the run; with ``once``, at most once for the run."""
        below = self._run_id[len(self._root) :].lstrip("/")
        step = f"{below}/{path}" if below and path else below or path
        self._table.add(NewEvent(self._root, self._run_id, kind, step, dict(facts), once=once))

    async def flush(self) -> None:
        """Store the emitted events now. Raises StateError."""
        await self._table.flush()

    def was_emitted(self, once: str) -> bool:
        return not self.repairs or once in self.emitted.once
