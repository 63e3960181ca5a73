"""Inspects schedules and triggers: pauses those without rights, marks broken ones, counts by status."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from retinue.core.errors import RetinueError
from retinue.hub.scheduling.firing import Firing, Stored, describe, may_pass
from retinue.hub.scheduling.rows import PAUSED_BY
from retinue.workflows.schedules import Progress
from retinue.workflows.triggers import TriggerProgress

if TYPE_CHECKING:  # with the database libraries, which a process without runs does not load
    from retinue.workflows.durable.tables.revised import ScheduleTable
    from retinue.workflows.durable.tables.triggers import TriggerTable

EVERY_S = 30.0
"""The interval between two inspections."""

STATUSES = ("active", "paused", "ended", "broken")
"""``paused`` by a person, ``ended`` = paused because the rights of the owner have ended."""

_log = structlog.get_logger("retinue.schedules")


class Inspection:
    """Inspects what belongs to this state folder, and counts the schedules and triggers of the database."""

    def __init__(
        self,
        open_schedules: Callable[[], Awaitable[ScheduleTable]],
        open_triggers: Callable[[], Awaitable[TriggerTable]],
        firing: Firing,
    ) -> None:
        self._open_schedules = open_schedules
        self._open_triggers = open_triggers
        self._firing = firing
        self.counts: Mapping[str, int] = dict.fromkeys(STATUSES, 0)
        """How many there are by status, as the last inspection found them."""

    async def run(self) -> None:
        """Inspect again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001  # the next look may succeed, and must come
                _log.debug("schedules not inspected", error=str(error))
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Inspect all once; raises StateError."""
        counts: Counter[str] = Counter(dict.fromkeys(STATUSES, 0))
        schedules = await self._open_schedules()
        home = await schedules.read_home()
        for schedule in await schedules.list_all():
            progress = schedule.progress
            if schedule.home == home and (changed := await self._judge(schedule)) is not None:
                paused, broken = changed
                progress = replace(progress, paused=paused, broken=broken)
                # times that have come wait for nothing once the rights have ended
                progress = replace(progress, waiting=()) if paused else progress
                await schedules.change(schedule, progress)
            counts[_status_of(progress)] += 1
        triggers = await self._open_triggers()
        for trigger in await triggers.list_all():
            trigger_progress = trigger.progress
            if trigger.home == home and (changed := await self._judge(trigger)) is not None:
                paused, broken = changed
                trigger_progress = replace(trigger_progress, paused=paused, broken=broken)
                await triggers.change(trigger, trigger_progress)
            counts[_status_of(trigger_progress)] += 1
        self.counts = counts

    async def _judge(self, stored: Stored) -> tuple[str, str] | None:
        """Why it is paused and why it is broken; None where that is stored already."""
        progress = stored.progress
        if progress.paused:
            return None
        if reason := self._firing.check_owner(stored.owner):
            _log.warning("schedule paused", schedule=stored.id, reason=reason)
            return reason, progress.broken
        broken = ""
        try:
            await self._firing.load(stored)
        except RetinueError as error:
            if may_pass(error):
                return None
            broken = describe(error)
        if broken == progress.broken:
            return None
        if broken:
            _log.warning("schedule broken", schedule=stored.id, reason=broken)
        return "", broken


def _status_of(progress: Progress | TriggerProgress) -> str:
    if progress.paused:
        return "paused" if progress.paused.startswith(PAUSED_BY) else "ended"
    return "broken" if progress.broken else "active"
