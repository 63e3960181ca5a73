"""Starts the runs of schedules when their times come; each hub and each worker has one.

No node is appointed. Every node looks at the table; the id of a run is made of the schedule and its time, so
a time that two nodes see starts one run. A time is stored as waiting before its run is started, and removed
when the run is stored, so a node that dies between the two leaves it to the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from retinue.core.errors import RetinueError
from retinue.hub.scheduling.firing import Firing, describe, has_issued_token, may_pass
from retinue.workflows.schedules import LATE_S, MAX_WAITING, LastFiring, Progress, StoredSchedule

if TYPE_CHECKING:  # with the database libraries, which a process without runs does not load
    from retinue.workflows.durable.tables.revised import ScheduleTable

LOOK_S = 5.0
"""The interval at which changes of other processes are noticed."""

RETRY_S = 1.0
"""The interval between two looks while a run waits for the one before it, or for the database."""

_log = structlog.get_logger("retinue.schedules")


class Scheduler:
    """Looks at all schedules, and fires those whose time has come; ``clock`` gives seconds since 1970."""

    def __init__(
        self,
        open_table: Callable[[], Awaitable[ScheduleTable]],
        firing: Firing,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._open_table = open_table
        self._firing = firing
        self._clock = clock
        self._changed = asyncio.Event()
        self._is_failing = False

    def wake(self) -> None:
        """Look again now, because this process has changed a schedule."""
        self._changed.set()

    async def run(self) -> None:
        """Look and wait, until cancelled."""
        while True:
            self._changed.clear()
            try:
                wait_s = await self.look()
                self._is_failing = False
            except Exception as error:  # noqa: BLE001  # the next look may succeed, and must come
                if not self._is_failing:
                    _log.warning("schedules cannot be read", error=str(error))
                self._is_failing = True
                wait_s = LOOK_S
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def look(self) -> float:
        """Fire what is due; returns the seconds until the next look."""
        table = await self._open_table()
        schedules = await table.list_all()
        home = await table.read_home() if schedules else ""
        wait_s = LOOK_S
        for schedule in schedules:
            try:
                left = await self._advance(table, schedule, is_home=schedule.home == home)
            except Exception as error:  # noqa: BLE001  # the other schedules go on
                _log.warning("schedule not advanced", schedule=schedule.id, error=str(error))
                continue
            if left is not None:
                wait_s = min(wait_s, self._seconds_until_next(left))
        return wait_s

    def _seconds_until_next(self, schedule: StoredSchedule) -> float:
        now = self._clock()
        left_s = max(0.0, schedule.next_after(now) - now)
        return min(left_s, RETRY_S) if schedule.progress.waiting else left_s

    async def _advance(
        self, table: ScheduleTable, schedule: StoredSchedule, *, is_home: bool
    ) -> StoredSchedule | None:
        """Take in the times that have come, and start their runs; None if this node has nothing to do."""
        if schedule.progress.paused or (has_issued_token(schedule.owner) and not is_home):
            return None
        if reason := self._firing.check_owner(schedule.owner):
            _log.warning("schedule paused", schedule=schedule.id, reason=reason)
            await table.change(schedule, replace(schedule.progress, paused=reason, waiting=()))
            return None
        now = self._clock()
        due, seen_until = schedule.list_due(now)
        if not schedule.progress.waiting and seen_until == schedule.progress.seen_until:
            return schedule
        if not is_home and not await self._has_definition(schedule):
            return None
        if seen_until != schedule.progress.seen_until:
            waiting = (*schedule.progress.waiting, *due)[:MAX_WAITING]
            stored = await self._change(
                table, schedule, replace(schedule.progress, seen_until=seen_until, waiting=waiting)
            )
            if stored is None:
                return schedule
            schedule = stored
        for at in schedule.progress.waiting:
            progress = await self._fire(schedule, at, now)
            stored = None if progress is None else await self._change(table, schedule, progress)
            if stored is None:
                return schedule
            schedule = stored
        return schedule

    async def _change(
        self, table: ScheduleTable, schedule: StoredSchedule, progress: Progress
    ) -> StoredSchedule | None:
        """The schedule with this progress, once stored; None if another process was faster."""
        if not await table.change(schedule, progress):
            return None
        return replace(schedule, progress=progress, revision=schedule.revision + 1)

    async def _has_definition(self, schedule: StoredSchedule) -> bool:
        """Whether this node, which is not the home of the schedule, finds the workflow as it was added."""
        try:
            await self._firing.load(schedule)
        except RetinueError:
            return False
        return True

    async def _fire(self, schedule: StoredSchedule, at: float, now: float) -> Progress | None:
        """The progress after the time ``at``; None while its run has to wait."""
        progress, rule = schedule.progress, schedule.rule
        if rule.missed == "skip" and rule.overlap != "queue" and now - at > LATE_S:
            return progress.fired(LastFiring(at, now, "skipped", reason="no node ran at that time"))
        run = schedule.run_id(at)
        previous = progress.run
        stored_id = self._firing.starter.access.stored_id(run, schedule.owner.principal)
        if previous not in (None, stored_id) and await self._firing.is_running(previous):
            if rule.overlap == "skip":
                reason = "the run before was still running"
                return progress.fired(LastFiring(at, now, "skipped", previous, reason))
            if rule.overlap == "queue":
                return None
            await self._firing.starter.runs.cancel(previous)
            if await self._firing.is_running(previous):
                return None
        try:
            loaded = await self._firing.load(schedule)
        except RetinueError as error:
            return None if may_pass(error) else self._fail(schedule, at, now, error, is_broken=True)
        try:
            started = await self._firing.start(schedule, loaded, run, rule.input)
        except RetinueError as error:
            return None if may_pass(error) else self._fail(schedule, at, now, error)
        _log.info("schedule fired", schedule=schedule.id, run=started)
        return progress.fired(LastFiring(at, now, "started", started))

    @staticmethod
    def _fail(
        schedule: StoredSchedule, at: float, now: float, error: RetinueError, *, is_broken: bool = False
    ) -> Progress:
        """The progress after a time whose run could not be started."""
        _log.warning("schedule not fired", schedule=schedule.id, error=error.message)
        reason = describe(error)
        failed = schedule.progress.fired(LastFiring(at, now, "failed", reason=reason))
        return replace(failed, broken=reason) if is_broken else failed
