"""Passes what steps report from the node that executes a run to the processes that watch it.

A process that watches a run of another node says so in the database, for a few seconds at a time. The node
that executes the run looks for that twice a second and before it takes up a run, and stores the reports of a
watched run, which the others read. The reports that came before an event of the run are stored before it.
Where nobody elsewhere watches, nothing is stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
import structlog

from retinue.core.errors import StateError
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.tables.reports import ReportTables
from retinue.workflows.run_progress import RunProgress, StepReport

_log = structlog.get_logger("retinue.runs")

LOOK_S = 0.1
"""The interval at which reports are stored, and read."""

WATCH_S = 10.0
"""How long a watch lasts; a reader that has died is written for no longer."""

RENEW_S = 3.0
"""The interval at which a reader renews its watch, and looks whether the run goes on."""

UNKNOWN_LOOK_S = 0.5
"""The interval at which a reader looks for a run that is not stored yet."""

FORGET_S = 5.0
"""The interval at which old reports are deleted while new ones are stored."""

RETRY_S = 1.0
"""How long one attempt lasts to reach the database; reports that cannot be stored by then are lost."""


@dataclass(slots=True)
class _Followed:
    """A run of another process that is watched here."""

    look_at: float = 0.0
    last: int = 0
    is_announced: bool = False


class SharedReports:
    """The reports of one process, ``progress``, and those of the others on its database.

    ``is_here`` tells whether this process executes an outermost run. `node` is the executor id of this
    process, "" where it executes no runs.
    """

    def __init__(self, database: RunDatabase, progress: RunProgress, is_here: Callable[[str], bool]) -> None:
        self.node = ""
        self._database = database
        self._tables = ReportTables(database)
        self._progress = progress
        self._is_here = is_here
        self.on_watched: Callable[[bool], None] | None = None
        """Called with whether any run here is watched elsewhere."""
        self._written: dict[str, int] = {}
        """The number of the last stored report, by the outermost runs here that are watched elsewhere."""
        self._writing = asyncio.Lock()
        self._has_news = asyncio.Event()
        self._forgot_at = 0.0
        self._followed: dict[str, _Followed] = {}
        self._taking = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unsubscribe = progress.subscribe(self._has_news.set)
        progress.share(self._follow, self._catch_up)

    async def aclose(self) -> None:
        """Stop storing and reading."""
        self._unsubscribe()
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    # Runs that this process executes

    def list_watched(self, connection: sa.Connection, roots: Sequence[str]) -> frozenset[str]:
        """The outermost runs among these that somebody watches; blocks."""
        return self._tables.list_watched(connection, roots)

    def note_watched(self, watched: Collection[str]) -> None:
        """These of the runs here are watched elsewhere, and no others."""
        for root in watched:
            self._progress.watch(root)
            if root not in self._written:
                # who watched another node's run has read what was kept of it here
                self._written[root] = self._progress.last(root) if root in self._followed else 0
        for root in self._written.keys() - watched:
            del self._written[root]
        if self.on_watched is not None:
            self.on_watched(bool(self._written))
        if self._written:
            self._keep_running("store", self._store)

    async def take_up(self, root: str) -> None:
        """Look whether somebody watches an outermost run, before this process goes on with it."""
        try:
            watched = await self._database.read(self._tables.list_watched, [root], retry_s=RETRY_S)
        except (StateError, sa.exc.SQLAlchemyError) as error:
            _log.debug("watches of a run not read", run=root, error=str(error))
            return
        if watched:
            self.note_watched(self._written.keys() | watched)

    async def flush(self) -> None:
        """Store the new reports of watched runs; those that cannot be stored are lost."""
        if not self._written:
            return
        async with self._writing:
            reports: list[tuple[str, object]] = []
            for root, number in self._written.items():
                for report in self._progress.list_after(root, number):
                    reports.append((root, report.to_json()))
                    self._written[root] = report.number
            if not reports:
                return
            try:
                await self._database.write(self._tables.add, self.node, reports, retry_s=RETRY_S)
                if time.monotonic() - self._forgot_at >= FORGET_S:
                    self._forgot_at = time.monotonic()
                    await self.forget_old()
            except (StateError, sa.exc.SQLAlchemyError) as error:
                _log.debug("reports of steps lost", error=str(error))

    async def forget_old(self) -> None:
        """Delete what nobody needs any more. Raises StateError."""
        await self._database.write(self._tables.forget_old, retry_s=RETRY_S)

    async def _store(self) -> None:
        while self._written:
            await self._has_news.wait()
            self._has_news.clear()
            await self.flush()
            await asyncio.sleep(LOOK_S)

    # Runs that other processes execute

    async def announce(self, root: str) -> None:
        """Say that a run is watched here, before another node gets it; nothing if it is not watched."""
        if self._progress.is_watched(root):
            self._follow(root)
            try:
                await self._announce([root])
            except (StateError, sa.exc.SQLAlchemyError) as error:
                _log.debug("watch of a run not stored", run=root, error=str(error))

    def _follow(self, root: str) -> None:
        """Somebody watches a run here."""
        if root not in self._followed and not self._is_here(root):
            self._followed[root] = _Followed()
            self._keep_running("read", self._read)

    async def _catch_up(self, root: str) -> None:
        """Read the reports of a run that came before what was just read of its events."""
        if (followed := self._followed.get(root)) is not None and followed.is_announced:
            try:
                await self._take([root])
            except (StateError, sa.exc.SQLAlchemyError) as error:
                _log.debug("reports of other nodes not read", error=str(error))

    async def _read(self) -> None:
        while self._followed:
            # also before the first look, because most runs are about to be executed here
            await asyncio.sleep(LOOK_S)
            for root in list(self._followed):
                if self._is_here(root) or not self._progress.is_watched(root):
                    del self._followed[root]
            # the last reports of a run that has ended by the look come after it
            announced = [root for root, followed in self._followed.items() if followed.is_announced]
            try:
                await self._look_after()
                await self._take(announced)
            except (StateError, sa.exc.SQLAlchemyError) as error:
                _log.debug("reports of other nodes not read", error=str(error))
                await asyncio.sleep(RETRY_S)

    async def _look_after(self) -> None:
        """Renew the watches of the runs that go on."""
        now = time.monotonic()
        due = [root for root, followed in self._followed.items() if followed.look_at <= now]
        if not due:
            return
        await self._database.prepare()
        states = await self._database.read(self._database.client.list_going_on, due, retry_s=RETRY_S)
        await self._announce([root for root in due if states.get(root)])
        for root in due:
            if (followed := self._followed.get(root)) is not None and not states.get(root):
                # an ended run may be continued, so it is looked at again
                followed.is_announced = False
                followed.look_at = now + (RENEW_S if root in states else UNKNOWN_LOOK_S)

    async def _announce(self, roots: Sequence[str]) -> None:
        if not roots:
            return
        await self._database.write(self._tables.watch, roots, WATCH_S, retry_s=RETRY_S)
        for root in roots:
            if (followed := self._followed.get(root)) is not None:
                followed.is_announced = True
                followed.look_at = time.monotonic() + RENEW_S

    async def _take(self, roots: Sequence[str]) -> None:
        """Read the new reports of these runs; blocks no longer than an attempt at the database."""
        async with self._taking:
            numbers = {root: self._followed[root].last for root in roots if root in self._followed}
            if not numbers:
                return
            reports = await self._database.read(self._tables.list_after, numbers, self.node, retry_s=RETRY_S)
            for root, number, value in reports:
                if (followed := self._followed.get(root)) is not None:
                    followed.last = number
                    self._progress.add(root, StepReport.from_json(value))

    def _keep_running(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._tasks.get(name)
        if task is None or task.done():
            # outside of the context of a run, which may be what asks
            self._tasks[name] = asyncio.create_task(work(), name=f"{name} reports", context=Context())
