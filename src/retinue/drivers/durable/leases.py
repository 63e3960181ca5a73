"""Leases: which nodes live, and what happens with the runs of those that do not.

A node says every third of a lease that it lives. One that could not say so for a whole lease begins no
effect until it can again, and then first looks whether a run is still its own. Any living node gives
the runs of a dead one to the living, by an update that matches only what is still the dead one's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
import structlog

from retinue.core.errors import StateError
from retinue.drivers.durable.database import VERSION, RunDatabase

_log = structlog.get_logger("retinue.runs")

QUEUE_PREFIX = "node:"
"""Each node takes runs from a queue of its own: whoever gives runs away says to whom."""

_BATCH = 2_000


def queue_of(executor: str) -> str:
    """The queue of a node."""
    return f"{QUEUE_PREFIX}{executor}"


@dataclass(frozen=True, slots=True)
class Node:
    """A living node, and how many runs it said to have."""

    executor: str
    running: int


class Lease:
    """The lease of this process. `begin` before anything runs, `end` when nothing does.

    ``epoch`` counts how often the lease was lost: whoever began in an earlier one must look whether
    what it does is still its own. ``count_running`` tells how many runs this process has.
    """

    def __init__(
        self, database: RunDatabase, executor: str, *, lease_s: float, count_running: Callable[[], int]
    ) -> None:
        self.epoch = 0
        self.executor = executor
        self.nodes: tuple[Node, ...] = ()
        self._database = database
        self._lease_s = lease_s
        self._count_running = count_running
        self._until = 0.0
        self._since = 0.0
        self._held = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self, dead: Sequence[str] = ()) -> None:
        """Get the lease, and the runs of nodes that are known to be dead.

        Raises StateError where the database does not answer.
        """
        await self._beat()
        if dead:
            await self._rescue(dead)
        self._task = asyncio.create_task(self._keep(), name="lease of the runs")

    async def end(self) -> None:
        """Give the lease back, so that others take over at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        statement = sa.text(f"DELETE FROM {self._database.nodes} WHERE executor = :executor")  # noqa: S608
        try:
            await self._database.write(
                lambda c: c.execute(statement, {"executor": self.executor}), patience_s=1.0
            )
        except StateError as error:
            _log.warning("lease not given back", error=error.message)

    async def hold(self) -> int:
        """Come back as soon as the lease is held; gives the epoch."""
        while time.monotonic() >= self._until:
            self._held.clear()
            await self._held.wait()
        return self.epoch

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await self._beat()
                # Who was cut off, as all are when the database stops, gives the others time to report.
                if time.monotonic() - self._since >= self._lease_s * 2 / 3:
                    await self._rescue()
            except StateError as error:
                _log.warning("lease not renewed", error=error.message)

    async def _beat(self) -> None:
        statement = sa.text(
            f"INSERT INTO {self._database.nodes} (executor, version, expires, running) "  # noqa: S608
            f"VALUES (:executor, :version, {self._database.now} + :lease, :running) "
            "ON CONFLICT (executor) DO UPDATE SET version = excluded.version, "
            "expires = excluded.expires, running = excluded.running"
        )
        parameters = {"executor": self.executor, "version": VERSION, "lease": self._lease_s}
        parameters["running"] = self._count_running()
        asked_at = time.monotonic()
        # Not one statement may linger longer than a lease: what it promised would be over.
        await self._database.write(
            lambda c: c.execute(statement, parameters | self._database.clock()),
            patience_s=self._lease_s / 3,
        )
        if asked_at >= self._until:
            if self._until:
                self.epoch += 1
                _log.warning("lease was lost", epoch=self.epoch)
            self._since = asked_at
        self._until = asked_at + self._lease_s
        self._held.set()
        self.nodes = await self._database.read(self._read_living)

    async def _rescue(self, dead: Sequence[str] | None = None) -> None:
        """Give away the runs of nodes that do not live, or of these, which are dead whatever they said."""

        def give_away(connection: sa.Connection) -> dict[str, int]:
            if dead is not None:
                forget = sa.text(f"DELETE FROM {self._database.nodes} WHERE executor IN :dead")  # noqa: S608
                parameters = {"dead": list(dead)}
                connection.execute(forget.bindparams(sa.bindparam("dead", expanding=True)), parameters)
            return self._give_away(connection, dead)

        given = await self._database.write(give_away, patience_s=self._lease_s / 3)
        for executor, runs in given.items():
            _log.info("runs taken over", node=executor, runs=runs)

    def _read_living(self, connection: sa.Connection) -> tuple[Node, ...]:
        query = sa.text(
            f"SELECT executor, running FROM {self._database.nodes} "  # noqa: S608
            f"WHERE version = :version AND expires >= {self._database.now} ORDER BY running, executor"
        )
        rows = connection.execute(query, {"version": VERSION} | self._database.clock())
        return tuple(Node(row.executor, row.running) for row in rows)

    def _give_away(self, connection: sa.Connection, only: Sequence[str] | None) -> dict[str, int]:
        """Queue the runs of dead nodes at the living, each with all that is below it at the same one."""
        database = self._database
        living = (
            f"SELECT executor FROM {database.nodes} "  # noqa: S608
            f"WHERE version = :version AND expires >= {database.now}"
        )
        lost = (
            f"application_version = :version AND ((status = 'PENDING' AND executor_id NOT IN ({living})) "
            f"OR (status = 'ENQUEUED' AND queue_name LIKE '{QUEUE_PREFIX}%' "
            f"AND substr(queue_name, {len(QUEUE_PREFIX) + 1}) NOT IN ({living})))"
        )
        names: dict[str, Any] = {"version": VERSION} | database.clock()
        rows = connection.execute(
            sa.text(
                f"SELECT workflow_uuid, coalesce(executor_id, '') AS executor, queue_name AS queue "  # noqa: S608
                f"FROM {database.runs} WHERE {lost} LIMIT {_BATCH}"
            ),
            names,
        )
        queues = {queue_of(executor) for executor in only or ()}
        found = [
            row.workflow_uuid for row in rows if only is None or row.executor in only or row.queue in queues
        ]
        shares = _share_out(found, [node.executor for node in self._read_living(connection)])
        update = sa.text(
            f"UPDATE {database.runs} SET status = 'ENQUEUED', owner_xid = NULL, "  # noqa: S608
            f"started_at_epoch_ms = NULL, queue_name = :queue WHERE workflow_uuid IN :runs AND {lost}"
        ).bindparams(sa.bindparam("runs", expanding=True))
        given = {}
        for executor, runs in shares.items():
            done = connection.execute(update, names | {"queue": queue_of(executor), "runs": runs})
            given[executor] = done.rowcount
        forget = f"DELETE FROM {database.nodes} WHERE expires < {database.now}"  # noqa: S608
        connection.execute(sa.text(forget), database.clock())
        return given


def _share_out(runs: Sequence[str], executors: Sequence[str]) -> dict[str, list[str]]:
    """Runs by the node that gets them: outermost runs in turn, those below them with them."""
    shares: dict[str, list[str]] = {}
    roots = sorted({run.partition("/")[0] for run in runs})
    at = {root: executors[number % len(executors)] for number, root in enumerate(roots)} if executors else {}
    for run in runs if executors else ():
        shares.setdefault(at[run.partition("/")[0]], []).append(run)
    return shares
