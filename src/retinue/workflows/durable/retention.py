"""Decides how long ended runs and their ids are kept, and deletes the others.

A run is deleted by its age. The bound on the number of runs protects the disk, and the log tells when runs
are deleted before their age. A run that failed half undone stays until it is resumed to the end or cancelled.
The id of a deleted run is still an idempotency key, so its digest stays longer, with that of its request.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

import sqlalchemy as sa
import structlog

from retinue.core.errors import INCOMPLETE, RunConflictError
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.dbos_engine import EngineClient
from retinue.workflows.durable.events import EventTable
from retinue.workflows.durable.run_rows import RunRows
from retinue.workflows.durable.tables.approvals import ApprovalTable
from retinue.workflows.durable.tables.held_artifacts import HeldArtifacts
from retinue.workflows.durable.tables.sessions import SessionTable
from retinue.workflows.durable.tables.signals import SignalTable
from retinue.workflows.runs.records import Fault, RunRequest, read_json

_log = structlog.get_logger("retinue.runs")

BATCH = 200
"""The number of runs that are deleted at once."""

KEEP_IDS = 1_000_000
"""The largest number of ids of deleted runs; each takes about 250 bytes with its index."""

TOLD_EVERY_S = 3_600.0
"""The interval between two warnings that runs are deleted before their age."""

_DAY_S = 86_400.0

OnDeleted = Callable[[Sequence[str], Sequence[str]], Awaitable[None]]
"""Told of the ids of deleted runs and of their chains of calls, and of the digests that they held."""


class Retention:
    """Deletes ended runs older than ``keep_days`` or beyond the newest ``keep``, and remembers their ids."""

    def __init__(
        self,
        database: RunDatabase,
        rows: RunRows,
        events: EventTable,
        signals: SignalTable,
        held: HeldArtifacts,
        sessions: SessionTable,
        approvals: ApprovalTable,
        *,
        on_deleted: OnDeleted | None = None,
        keep: int,
        keep_days: float,
        keep_ids_days: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._rows = rows
        self._events = events
        self._signals = signals
        self._held = held
        self._sessions = sessions
        self._approvals = approvals
        self._on_deleted = on_deleted
        self._keep = keep
        self._keep_days = keep_days
        self._keep_ids_days = keep_ids_days
        self._clock = clock
        self._told_at = float("-inf")

    async def prune(self) -> int:
        """Delete the ended runs that need not be kept, with all below them; returns the number of runs."""
        oldest = self._clock() - self._keep_days * _DAY_S
        half_undone = await self._database.read(list_half_undone, self._database.client)
        count = early = 0
        while True:
            # The half-undone ones may be the oldest of all.
            limit = BATCH + len(half_undone)
            ended = await self._database.read(self._database.client.list_ended, oldest, self._keep, limit)
            gone = {run_id: at for run_id, at in ended if run_id not in half_undone}
            if not gone:
                break
            early += sum(at >= oldest for at in gone.values())
            await self._delete(gone)
            count += len(gone)
        if early and time.monotonic() - self._told_at >= TOLD_EVERY_S:
            self._told_at = time.monotonic()
            _log.warning("runs deleted before runs.keep_days", runs=early, keep=self._keep)
        await self._database.write(self._forget_ids)
        return count

    async def refuse_used(self, run_id: str, request: RunRequest | None = None) -> None:
        """Raise RunConflictError for the id of a deleted run; it tells whether the request was the same."""
        query = sa.text(f"SELECT request FROM {self._database.used_ids} WHERE id = :id")  # noqa: S608
        names = {"id": _digest(run_id)}
        used = await self._database.read(lambda connection: connection.execute(query, names).scalar())
        if used is not None:
            raise RunConflictError(run_id, is_deleted=request is None or used == request.digest)

    async def _delete(self, gone: dict[str, float]) -> None:
        rows = await self._rows.find(list(gone))
        used = [
            {"id": _digest(run_id), "request": row.record.request.digest, "ended": gone[run_id]}
            for run_id, row in rows.items()
        ]
        # Before the runs: a process that dies in between deletes them again.
        await self._database.write(self._remember_ids, used)
        await self._database.ask(self._database.client.delete, list(gone))
        await self._events.forget(list(gone))
        await self._signals.forget(list(gone))
        await self._sessions.forget(list(gone))
        await self._approvals.forget(list(gone))
        digests = await self._held.forget(list(gone))
        if self._on_deleted is not None:
            traces = [row.record.request.origin.trace for row in rows.values()]
            chains = [trace.id for trace in traces if trace is not None]
            await self._on_deleted([*gone, *chains], sorted(digests))

    def _remember_ids(self, connection: sa.Connection, used: Sequence[dict[str, object]]) -> None:
        statement = sa.text(
            f"INSERT INTO {self._database.used_ids} (id, request, ended) "  # noqa: S608
            "VALUES (:id, :request, :ended) ON CONFLICT DO NOTHING"
        )
        if used:
            connection.execute(statement, used)

    def _forget_ids(self, connection: sa.Connection) -> None:
        table = self._database.used_ids
        old = sa.text(f"DELETE FROM {table} WHERE ended < :oldest")  # noqa: S608
        connection.execute(old, {"oldest": self._clock() - self._keep_ids_days * _DAY_S})
        beyond = sa.text(
            f"DELETE FROM {table} WHERE ended < "  # noqa: S608
            f"(SELECT ended FROM {table} ORDER BY ended DESC LIMIT 1 OFFSET :keep)"
        )
        connection.execute(beyond, {"keep": KEEP_IDS})


def list_half_undone(connection: sa.Connection, client: EngineClient) -> frozenset[str]:
    """The runs that failed and have steps left to undo."""
    failures = client.list_faults(connection, INCOMPLETE)
    return frozenset(
        run_id
        for run_id, failure in failures
        if isinstance(failure.data, dict) and read_json(Fault, failure.data).data.get("undo") == INCOMPLETE
    )


def _digest(run_id: str) -> str:
    return sha256(run_id.encode()).hexdigest()
