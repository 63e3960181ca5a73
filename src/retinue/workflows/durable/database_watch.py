"""Watches the database of the runs for probes and metrics: its health and its contents.

A probe must end in time although the database hangs, and many probes must not become many connections. So
one question is asked at a time, and its answer serves everybody for a moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from retinue.core.errors import RetinueError, StateError
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.events import EventTable
from retinue.workflows.durable.executions import Executions
from retinue.workflows.durable.nodes import Node
from retinue.workflows.durable.retention import list_half_undone
from retinue.workflows.runs.records import RunStatus

TIMEOUT_S = 2.0
FRESH_S = 1.0
"""How long an answer serves."""

COUNT_EVERY_S = 15.0
"""How long the number of half-undone runs serves, because all failures are read for it."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of a process about its runs; ``problem`` is why the database does not answer, None if it
    does.

    The figures of the lease are None in a process that executes no runs.
    """

    problem: RetinueError | None = None
    query_s: float | None = None
    statuses: Mapping[RunStatus, int] = field(default_factory=dict)
    half_undone: int | None = None
    connections: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    executing: int = 0
    nodes: Sequence[Node] = ()
    own_node: str | None = None
    lease_left_s: float | None = None
    lease_losses: int | None = None


class DatabaseWatch:
    """Reads the figures of one process."""

    def __init__(self, database: RunDatabase, events: EventTable) -> None:
        self._database = database
        self._events = events
        self._asking: asyncio.Task[RunFigures] | None = None
        self._answer = RunFigures()
        self._answered_at = -FRESH_S
        self._half_undone = 0
        self._counted_at = -COUNT_EVERY_S

    async def read(self, executions: Executions | None) -> RunFigures:
        """The figures, at most `FRESH_S` old, within `TIMEOUT_S`."""
        if time.monotonic() - self._answered_at >= FRESH_S:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask(), name="figures of the runs")
            done, _ = await asyncio.wait([self._asking], timeout=TIMEOUT_S)
            if not done:
                problem = f"the database of the runs did not answer within {TIMEOUT_S:g} s"
                self._answer = self._failed(StateError(problem, remedy="check the database"))
        answer = replace(
            self._answer, steps=dict(self._events.steps_ended), connections=self._count_connections()
        )
        if executions is None:
            return answer
        lease = executions.lease
        return replace(
            answer,
            executing=executions.here.outermost,
            nodes=lease.nodes,
            own_node=lease.executor,
            lease_left_s=lease.left_s,
            lease_losses=lease.epoch,
        )

    async def _ask(self) -> RunFigures:
        began_at = time.monotonic()
        try:
            await self._database.prepare()
            client = self._database.client
            statuses = await self._database.read(client.count_by_status, retry_s=0.0)
            query_s = time.monotonic() - began_at
            if time.monotonic() - self._counted_at >= COUNT_EVERY_S:
                self._half_undone = len(await self._database.read(list_half_undone, client, retry_s=0.0))
                self._counted_at = time.monotonic()
            answer = RunFigures(query_s=query_s, statuses=statuses, half_undone=self._half_undone)
        except RetinueError as error:
            answer = self._failed(error)
        except sa.exc.SQLAlchemyError as error:
            answer = self._failed(StateError(str(error).partition("\n")[0], remedy="check the database"))
        self._answer, self._answered_at, self._asking = answer, time.monotonic(), None
        return answer

    def _failed(self, problem: RetinueError) -> RunFigures:
        """The answer without a database; the numbers of runs stay, so that they do not seem to rise later."""
        return RunFigures(problem, statuses=self._answer.statuses)

    def _count_connections(self) -> Mapping[str, int]:
        pool = self._database.engine.pool
        if not isinstance(pool, sa.QueuePool):
            return {}
        return {"used": pool.checkedout(), "idle": pool.checkedin()}
