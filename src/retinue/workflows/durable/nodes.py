"""Nodes: the processes that execute runs, their leases, their executor ids, and failover between them.

A node renews its lease every third of the lease's duration. A node that lost its lease starts no effects
until it has it again, and then checks whether each run is still its own. Any living node reassigns the
runs of dead ones, by an update that matches only rows which still belong to them.

Leases end by the clock of the database. When that clock is set, no row tells who lives: the nodes get time
to renew, and a row that is not renewed by the time at which it would have ended is removed.

A node's executor id is a numbered slot of the state folder. At its launch the engine takes back what its
executor id left behind, so two living processes must not share one: a slot is held by a file lock, which
the operating system releases when the process dies.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
from filelock import FileLock, Timeout

from retinue.core.errors import StateError
from retinue.storage.files import make_folder, refuse_gone, replace_file, storage_errors
from retinue.storage.runs_file import Mark
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.dbos_engine import VERSION

_MAX_SLOTS = 1000
_log = structlog.get_logger("retinue.runs")


@dataclass(frozen=True, slots=True)
class Node:
    """A living node, with the number of outermost runs that it last reported."""

    executor: str
    running: int


class Lease:
    """The lease of this process: `begin` before the first run is executed, `end` after the last one.

    ``epoch`` counts how often the lease was lost. An execution that began in an earlier epoch must check
    that its run still belongs to it. ``count_running`` gives the number of outermost runs of this process.
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
        self._offset_s: float | None = None
        self._doubted: dict[str, tuple[float, float]] = {}
        self._held = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def left_s(self) -> float:
        """How long the lease still lasts, 0 for one that is lost."""
        return max(0.0, self._until - time.monotonic())

    async def begin(self, dead: Sequence[str] = ()) -> None:
        """Acquire the lease, and take over the runs of nodes that are known to be dead.

        Raises StateError where the database does not answer.
        """
        await self._beat()
        if dead:
            await self._rescue(dead)
        self._task = asyncio.create_task(self._keep(), name="lease of the runs")

    async def end(self) -> None:
        """Release the lease, so that other nodes take over at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        statement = sa.text(f"DELETE FROM {self._database.nodes} WHERE executor = :executor")  # noqa: S608
        try:
            await self._database.write(
                lambda c: c.execute(statement, {"executor": self.executor}), retry_s=1.0
            )
        except StateError as error:
            _log.warning("lease not given back", error=error.message)

    async def hold(self) -> int:
        """Wait until the lease is held; returns its epoch."""
        while time.monotonic() >= self._until:
            self._held.clear()
            await self._held.wait()
        return self.epoch

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await self._beat()
                # After an outage of the database all leases are old: the other nodes get time to renew.
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

        # A renewal that takes longer than the lease would promise a time that is over.
        def renew(connection: sa.Connection) -> Mark | None:
            connection.execute(statement, parameters | self._database.clock())
            return self._database.count_up(connection)

        mark = await self._database.write(renew, retry_s=self._lease_s / 3)
        if asked_at >= self._until:
            if self._until:
                self.epoch += 1
                _log.warning("lease was lost", epoch=self.epoch)
            self._since = asked_at
        self._until = asked_at + self._lease_s
        self._held.set()
        await self._database.remember(mark)
        rows = await self._database.read(self._read_rows)
        self.nodes = tuple(Node(row.executor, row.running) for row in rows)
        self._notice_step(rows)

    def _notice_step(self, rows: Sequence[sa.Row[Any]]) -> None:
        """Compare the clock of the database with the monotonic one; ``rows`` are those just read."""
        now = time.monotonic()
        for row in rows[:1]:
            offset_s = row.now - now
            step_s = 0.0 if self._offset_s is None else offset_s - self._offset_s
            self._offset_s = offset_s
            # A smaller one ends no lease that is renewed in time.
            if abs(step_s) < self._lease_s / 3:
                return
            _log.warning("the clock of the runs was set", seconds=round(step_s, 1))
            self._since = now
            if step_s < 0:
                self._doubted = {
                    one.executor: (one.expires, now + one.expires - one.now + step_s)
                    for one in rows
                    if one.executor != self.executor
                }

    async def _rescue(self, dead: Sequence[str] | None = None) -> None:
        """Reassign the runs of nodes whose lease is over; with ``dead``, only of these nodes."""

        now = time.monotonic()
        over = {node: expires for node, (expires, until) in self._doubted.items() if until <= now}

        def reassign(connection: sa.Connection) -> dict[str, int]:
            unrenewed = f"DELETE FROM {self._database.nodes} WHERE executor = :node AND expires = :expires"  # noqa: S608
            for node, expires in over.items():
                connection.execute(sa.text(unrenewed), {"node": node, "expires": expires})
            if dead is not None:
                forget = sa.text(f"DELETE FROM {self._database.nodes} WHERE executor IN :dead")  # noqa: S608
                parameters = {"dead": list(dead)}
                connection.execute(forget.bindparams(sa.bindparam("dead", expanding=True)), parameters)
            return self._reassign(connection, dead)

        given = await self._database.write(reassign, retry_s=self._lease_s / 3)
        self._doubted = {node: doubt for node, doubt in self._doubted.items() if node not in over}
        for executor, runs in given.items():
            _log.info("runs taken over", node=executor, runs=runs)

    def _read_rows(self, connection: sa.Connection) -> Sequence[sa.Row[Any]]:
        """The rows of the living nodes, each with the time of the database."""
        now = self._database.now
        query = sa.text(
            f"SELECT executor, running, expires, cast({now} AS double precision) AS now "  # noqa: S608
            f"FROM {self._database.nodes} WHERE version = :version AND expires >= {now} "
            "ORDER BY running, executor"
        )
        return connection.execute(query, {"version": VERSION} | self._database.clock()).fetchall()

    def _reassign(self, connection: sa.Connection, only: Sequence[str] | None) -> dict[str, int]:
        """Queue the runs of dead nodes at living ones, each run together with its child runs."""
        database, client = self._database, self._database.client
        living = (
            f"SELECT executor FROM {database.nodes} "  # noqa: S608
            f"WHERE version = :version AND expires >= {database.now}"
        )
        names: dict[str, Any] = {"version": VERSION} | database.clock()
        lost = client.list_lost(connection, living, names, only)
        shares = _share_out(lost, [row.executor for row in self._read_rows(connection)])
        given = {
            executor: client.requeue_lost(connection, living, names, runs, executor)
            for executor, runs in shares.items()
        }
        forget = f"DELETE FROM {database.nodes} WHERE expires < {database.now}"  # noqa: S608
        connection.execute(sa.text(forget), database.clock())
        return given


def _share_out(runs: Sequence[str], executors: Sequence[str]) -> dict[str, list[str]]:
    """Assign runs to nodes: outermost runs round-robin, child runs with their outermost run."""
    shares: dict[str, list[str]] = {}
    roots = sorted({run.partition("/")[0] for run in runs})
    at = {root: executors[number % len(executors)] for number, root in enumerate(roots)} if executors else {}
    for run in runs if executors else ():
        shares.setdefault(at[run.partition("/")[0]], []).append(run)
    return shares


@dataclass(frozen=True, slots=True)
class Slot:
    """A held slot: its executor id, unique among all machines, and the ids of free slots."""

    executor: str
    free: tuple[str, ...]


@contextmanager
def take_slot(folder: Path) -> Iterator[Slot]:
    """Hold the lowest free slot in ``folder``, which is created in the state folder.

    Raises StateError if it cannot be written, or the state folder does not exist.
    """
    refuse_gone(folder.parent)
    with storage_errors(folder):
        make_folder(folder)
        host = _read_host(folder)
        number, lock = _lock_lowest(folder)
        free = [other for other in _list_numbers(folder) if other != number and _is_free(folder, other)]
    try:
        yield Slot(f"{host}-{number}", tuple(f"{host}-{other}" for other in free))
    finally:
        lock.release()


def _list_numbers(folder: Path) -> list[int]:
    names = [path.stem.removeprefix("slot-") for path in folder.glob("slot-*.lock")]
    return sorted(int(name) for name in names if name.isdecimal())


def _is_free(folder: Path, number: int) -> bool:
    lock = FileLock(folder / f"slot-{number}.lock", mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    lock.release()
    return True


def _lock_lowest(folder: Path) -> tuple[int, FileLock]:
    for number in range(1, _MAX_SLOTS + 1):
        lock = FileLock(folder / f"slot-{number}.lock", mode=0o600)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        return number, lock
    raise OSError(f"all {_MAX_SLOTS} slots are taken")


def _read_host(folder: Path) -> str:
    """The random name of this state folder among all that share a database, created once."""
    path = folder / "host"
    with FileLock(folder / ".lock", mode=0o600):
        if path.exists():
            return path.read_text("ascii").strip()
        host = secrets.token_hex(6)
        replace_file(path, host.encode())
        return host
