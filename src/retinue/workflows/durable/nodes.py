"""Nodes: the processes that execute runs, their leases, their executor ids, and failover between them.

A node renews its lease every third of the lease's duration. A node that lost its lease starts no effects
until it has it again, and then checks whether each run is still its own. Any living node reassigns the
runs of dead ones, by an update that matches only rows which still belong to them.

Leases end by the clock of the database, which may be set at any time. So the time in a row says only how long
the lease lasts from when it was seen; from there on each node counts by its own monotonic clock. A node whose
row is in the table lives. A node that saw a row end removes it, if it was not renewed since.

A node's executor id is a numbered slot of the state folder. At its launch the engine takes back what its
executor id left behind, so two living processes must not share one: a slot is held by a file lock, which
the operating system releases when the process dies.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
from filelock import FileLock, Timeout

from retinue.core.errors import StateError
from retinue.storage.files import hold_lock, make_folder, refuse_gone, replace_file, storage_errors
from retinue.storage.runs_file import Mark
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.dbos_engine import VERSION
from retinue.workflows.durable.tables.hosted import HostedTable, Hosts
from retinue.workflows.runs.hosting import RunCode

_MAX_SLOTS = 1000
_log = structlog.get_logger("retinue.runs")


@dataclass(frozen=True, slots=True)
class Node:
    """A node with a valid lease, and its last reported number of outermost runs."""

    executor: str
    running: int


class Lease:
    """The lease of this process: `begin` before the first run is executed, `end` after the last one.

    ``epoch`` counts how often the lease was lost. An execution that began in an earlier epoch must check
    that its run still belongs to it. ``count_running`` gives the number of outermost runs of this process.
    ``hosted`` are the workflows in Python that it announces.
    """

    def __init__(
        self,
        database: RunDatabase,
        executor: str,
        *,
        lease_s: float,
        count_running: Callable[[], int],
        hosted: HostedTable | None = None,
    ) -> None:
        self.epoch = 0
        self.executor = executor
        self.nodes: tuple[Node, ...] = ()
        self._hosted = hosted or HostedTable(database)
        self._hosts: Hosts = {}
        self._must_announce = True
        self._looked = asyncio.Event()
        self._database = database
        self._lease_s = lease_s
        self._count_running = count_running
        self._until = 0.0
        self._since = 0.0
        self._seen = SeenLeases(lease_s)
        self._held = asyncio.Event()
        self._renewing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rescuing: asyncio.Task[None] | None = None

    @property
    def left_s(self) -> float:
        """The remaining seconds of the lease, 0 for a lost lease."""
        return max(0.0, self._until - time.monotonic())

    @property
    def may_take_over(self) -> bool:
        """Whether the other nodes have had time to renew their leases since the database answers again.

        A renewal that an outage held up for longer than the lease was asked for before, and shows no loss.
        """
        return self.left_s > 0 and time.monotonic() - self._since >= self._lease_s * 2 / 3

    async def begin(self, dead: Sequence[str] = ()) -> None:
        """Acquire the lease, and take over the runs of nodes without a valid lease.

        Raises StateError where the database does not answer.
        """
        await self.renew()
        if dead:
            await self.rescue(dead)
        self._tasks.add(asyncio.create_task(self._keep(), name="lease of the runs"))

    async def end(self) -> None:
        """Release the lease, if held, so that other nodes take over at once."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if not self._until:
            return
        statement = sa.text(f"DELETE FROM {self._database.nodes} WHERE executor = :executor")  # noqa: S608

        def give_back(connection: sa.Connection) -> None:
            connection.execute(statement, {"executor": self.executor})
            self._hosted.forget(connection, self.executor)

        try:
            await self._database.write(give_back, retry_s=1.0)
        except StateError as error:
            _log.warning("lease not given back", error=error.message)

    async def hold(self) -> int:
        """Wait until the lease is held; returns its epoch."""
        while time.monotonic() >= self._until:
            self._held.clear()
            await self._held.wait()
        return self.epoch

    def list_able(self, code: RunCode) -> list[Node]:
        """The other living nodes that have this code, idlest first."""
        return [
            node
            for node in self.nodes
            if node.executor != self.executor
            and any(workflow.executes(code) for workflow in self._hosts.get(node.executor, ()))
        ]

    async def await_look(self) -> None:
        """Return when the leases of the nodes have been read again."""
        await self._looked.wait()

    async def renew_lost(self) -> None:
        """Renew the lease now if it is lost; raises StateError."""
        async with self._renewing:
            if time.monotonic() >= self._until:
                await self.renew()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                async with self._renewing:
                    await self.renew()
            except StateError as error:
                _log.warning("lease not renewed", error=error.message)
                continue
            if not self.may_take_over or (self._rescuing is not None and not self._rescuing.done()):
                continue
            # In its own task, because it may wait for locks of a frozen node for longer than the lease lasts.
            self._rescuing = asyncio.create_task(self._rescue(), name="runs of lost nodes")
            self._tasks.add(self._rescuing)
            self._rescuing.add_done_callback(self._tasks.discard)

    async def _rescue(self) -> None:
        try:
            await self.rescue()
        except StateError as error:
            _log.warning("runs of lost nodes not taken over", error=error.message)

    async def renew(self) -> None:
        """Renew the lease, and see which nodes live. Raises StateError where the database does not answer."""
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
            if self._must_announce:
                self._hosted.announce(connection, self.executor)
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
        look, self._hosts = await self._database.read(lambda c: (self._look(c), self._hosted.read(c)))
        # In no other transaction: a node that is frozen in one holds locks, and other nodes wait for it.
        self._must_announce = not self._hosted.is_announced(self._hosts, self.executor)
        if abs(step_s := self._seen.take_in(look)) >= self._lease_s / 3:
            _log.warning("the clock of the runs was set", seconds=round(step_s, 1))
        living = self._seen.list_living(time.monotonic())
        self.nodes = tuple(
            Node(row.executor, row.running)
            for row in look.rows
            if row.executor in living and row.version == VERSION
        )
        self._looked.set()
        self._looked = asyncio.Event()

    async def rescue(self, dead: Sequence[str] | None = None) -> None:
        """Reassign the runs of nodes whose lease has expired; with ``dead``, only of these nodes."""
        over = self._seen.list_over(time.monotonic())
        # Its own lease is judged by the other nodes.
        over.pop(self.executor, None)

        def reassign(connection: sa.Connection) -> dict[str, int]:
            if dead is not None:
                forget = sa.text(f"DELETE FROM {self._database.nodes} WHERE executor IN :dead")  # noqa: S608
                parameters = {"dead": list(dead)}
                connection.execute(forget.bindparams(sa.bindparam("dead", expanding=True)), parameters)
            else:
                self._remove_unrenewed(connection, over)
            self._hosted.forget_lost(connection)
            return self._reassign(connection, dead, over)

        moved = await self._database.write(reassign, retry_s=self._lease_s / 3)
        for executor, runs in moved.items():
            _log.info("runs taken over", node=executor, runs=runs)

    def _look(self, connection: sa.Connection) -> Look:
        """Read all leases, and the time of the database."""
        query = sa.text(
            "SELECT executor, version, running, expires, "  # noqa: S608
            f"cast({self._database.now} AS double precision) AS now "
            f"FROM {self._database.nodes} ORDER BY running, executor"
        )
        began_at = time.monotonic()
        rows = connection.execute(query, self._database.clock()).fetchall()
        return Look(rows, began_at, time.monotonic())

    def _remove_unrenewed(self, connection: sa.Connection, over: Mapping[str, float]) -> None:
        statement = sa.text(
            f"DELETE FROM {self._database.nodes} WHERE executor = :executor AND expires = :expires"  # noqa: S608
        )
        for executor, expires in over.items():
            connection.execute(statement, {"executor": executor, "expires": expires})

    def _reassign(
        self, connection: sa.Connection, only: Sequence[str] | None, over: Collection[str]
    ) -> dict[str, int]:
        """Queue the runs of failed nodes at running nodes, each run together with its child runs."""
        client = self._database.client
        living = f"SELECT executor FROM {self._database.nodes} WHERE version = :version"  # noqa: S608
        names: dict[str, Any] = {"version": VERSION}
        lost = client.list_lost(connection, living, names, only)
        able = connection.execute(sa.text(f"{living} ORDER BY running, executor"), names).scalars()
        # A node that was seen to be over may have renewed its lease since: it gets runs the next time.
        shares = share_out(lost, [executor for executor in able if executor not in over])
        return {
            executor: client.requeue_lost(connection, living, names, runs, executor)
            for executor, runs in shares.items()
        }


@dataclass(frozen=True, slots=True)
class Look:
    """The rows of all leases with the time of the database, read between two times of the monotonic clock.

    A row has ``executor``, ``expires`` and ``now``.
    """

    rows: Sequence[Any]
    began_at: float
    ended_at: float


class SeenLeases:
    """When the leases of all nodes end by the monotonic clock, as far as one process has seen them.

    ``lease_s`` is the duration of its own lease, which a lease gets at least when it was renewed at the time
    at which the clock of the database was set: it cannot be told whether before or after.
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._offsets: tuple[float, float] | None = None
        self._looked_at: float | None = None
        self._ends: dict[str, tuple[float, float]] = {}

    def take_in(self, look: Look) -> float:
        """Note which leases were renewed; gives the seconds by which the clock was set since the last."""
        if not look.rows:
            self._ends = {}
            return 0.0
        now = look.rows[0].now
        step_s = self._compare_offsets(now - look.ended_at, now - look.began_at)
        # What was renewed since the last look lasts a lease from then, although the clock was set twice.
        least_s = 0.0 if self._looked_at is None else self._looked_at + self._lease_s - look.ended_at
        self._looked_at = look.began_at
        ends: dict[str, tuple[float, float]] = {}
        for row in look.rows:
            known = self._ends.get(row.executor)
            if known is not None and known[0] == row.expires:
                ends[row.executor] = known
            else:
                left_s = max(0.0, least_s, self._left_s(row.expires - now, step_s))
                ends[row.executor] = row.expires, look.ended_at + left_s
        self._ends = ends
        return step_s

    def list_living(self, at: float) -> frozenset[str]:
        """The nodes whose lease lasts at a time of the monotonic clock."""
        return frozenset(executor for executor, (_, until) in self._ends.items() if at < until)

    def list_over(self, at: float) -> dict[str, float]:
        """The nodes whose lease is over at a time of the monotonic clock, each with the time in its row."""
        return {executor: expires for executor, (expires, until) in self._ends.items() if until <= at}

    def _left_s(self, left_s: float, step_s: float) -> float:
        """How long a renewed lease lasts that has ``left_s`` by the clock of the database."""
        if abs(step_s) < self._lease_s / 3:
            # Such a step ends no lease that is renewed in time.
            return left_s
        # Renewed after the clock was set, or before.
        possible = [seconds for seconds in (left_s, left_s + step_s) if seconds > 0]
        return max(self._lease_s, min(possible, default=0.0))

    def _compare_offsets(self, low: float, high: float) -> float:
        """By how much the clock was set at least, if its distance to the monotonic one is between these.

        A slow answer widens the range, so that it is never taken for a step.
        """
        before, self._offsets = self._offsets, (low, high)
        if before is None:
            return 0.0
        return max(0.0, low - before[1]) + min(0.0, high - before[0])


def share_out(runs: Sequence[str], executors: Sequence[str]) -> dict[str, list[str]]:
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
        host = read_host(folder)
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


def read_host(folder: Path) -> str:
    """The random name of this state folder among all that share a database, created once."""
    path = folder / "host"
    make_folder(folder)
    with hold_lock(folder / ".lock", mode=0o600):
        if path.exists():
            return path.read_text("ascii").strip()
        host = secrets.token_hex(6)
        replace_file(path, host.encode())
        return host
