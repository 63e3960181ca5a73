"""Adds, lists and changes schedules for callers of the hub.

A caller has access to the schedules whose owner has no rights that the caller lacks, as it has to runs.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from retinue.core.call import Principal
from retinue.core.errors import InvalidRequestError
from retinue.hub.run_access import reject_limited
from retinue.hub.scheduling.firing import Firing, own
from retinue.hub.scheduling.rows import (
    PAUSED_BY,
    RowBook,
    check_input,
    find_problem,
    make_name,
    read_rule,
    refuse_ended,
    render_last,
)
from retinue.workflows.cron import read_timezone
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.starts import Schedule
from retinue.workflows.schedules import LastFiring, Progress, StoredSchedule

if TYPE_CHECKING:  # with the database libraries, which a process without runs does not load
    from retinue.workflows.durable.tables.revised import RevisedTable

Json = dict[str, Any]

Change = Literal["pause", "resume", "remove", "run_now"]


class ScheduleBook(RowBook[StoredSchedule]):
    """The schedules of a mesh. ``exists`` = whether there may be any, ``wake`` tells the scheduler."""

    def __init__(
        self,
        open_table: Callable[[], Awaitable[RevisedTable[StoredSchedule]]],
        firing: Firing,
        *,
        exists: Callable[[], bool] = lambda: True,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(open_table, firing, exists)
        self._wake = wake
        self._clock = clock

    async def add(
        self, principal: Principal, workflow: str, name: str | None, rule_text: Json | str | None
    ) -> Json:
        """Add a schedule, or replace one of this name; ``rule_text`` replaces keys of the workflow's own one.

        Raises InvalidParametersError, NotAllowedError, UnknownWorkflowError, DefinitionError.
        """
        owner = own(principal)
        loaded = await self._firing.starter.library.get(workflow)
        name = make_name(workflow, name)
        rule = _make_rule(loaded.definition, rule_text)
        if loaded.definition.input is not None:
            rule = rule.model_copy(update={"input": {} if rule.input is None else rule.input})
            check_input(loaded.definition, rule.input)
        digest = await self._firing.digest(loaded)
        table = await self._open_table()
        now = self._clock()
        stored_id = self._access.stored_id(name, principal)
        added_at, progress = now, Progress(seen_until=now)
        former = await table.find(stored_id)
        if former is not None and former.rule == rule and not former.progress.paused:
            # its times go on, so none is lost or comes twice where only the workflow has changed
            added_at, progress = former.added_at, replace(former.progress, broken="")
        schedule = StoredSchedule(
            id=stored_id,
            workflow=workflow,
            rule=rule,
            owner=owner,
            digest=digest,
            home=await table.read_home(),
            added_at=added_at,
            progress=progress,
        )
        await table.put(schedule)
        self._wake()
        return await self._render(schedule, principal)

    async def change(self, principal: Principal, name: str, change: Change) -> Json:
        """Pause, resume or remove a schedule, or start its run now; raises UnknownScheduleError."""
        reject_limited(principal)
        table = await self._open_table()
        schedule = await self._get(table, principal, name)
        if change == "remove":
            await table.remove(schedule.id)
            return {"schedule": name, "status": "removed"}
        now = self._clock()
        run = None
        if change == "run_now":
            refuse_ended(self._firing, schedule)
            loaded = await self._firing.load(schedule)
            run = f"{schedule.name}:now-{uuid4().hex[:8]}"
            run = await self._firing.start(schedule, loaded, run, schedule.rule.input)
            last = LastFiring(now, now, "started", run)
            progress = replace(schedule.progress, run=run, last=last, broken="")
        elif change == "pause":
            progress = replace(schedule.progress, paused=f"{PAUSED_BY}{principal.id}", waiting=())
        else:
            refuse_ended(self._firing, schedule)
            await self._firing.load(schedule)
            progress = replace(schedule.progress, paused="", broken="", seen_until=now)
        while not await table.change(schedule, progress):
            # a scheduler was faster; what it has started must not be started again
            fresh = await self._get(table, principal, name)
            kept = replace(progress, seen_until=max(progress.seen_until, fresh.progress.seen_until))
            schedule, progress = fresh, kept
        self._wake()
        row = await self._render(replace(schedule, progress=progress), principal)
        return row if run is None else row | {"run": self._access.shown_id(run, principal)}

    async def _render(self, schedule: StoredSchedule, principal: Principal, *, home: str = "") -> Json:
        rule, progress, now = schedule.rule, schedule.progress, self._clock()
        problem = progress.broken
        if not progress.paused and schedule.home == home:
            problem = await find_problem(self._firing, schedule)
        row: Json = {
            "schedule": self._access.shown_id(schedule.id, principal),
            "workflow": schedule.workflow,
            "owner": schedule.owner.id,
            "status": "paused" if progress.paused else "broken" if problem else "active",
            **rule.model_dump(mode="json", exclude_none=True, exclude={"input"}),
        }
        if rule.input is not None:
            row["input"] = rule.input
        if reason := progress.paused or problem:
            row["reason"] = reason
        if not progress.paused:
            row["next"] = _render_time(rule, schedule.next_after(now))
        if progress.waiting:
            row["waiting"] = len(progress.waiting)
        if progress.last is not None:
            at = {"scheduled_at": _render_time(rule, progress.last.scheduled_at)}
            row["last"] = at | await render_last(self._firing, progress.last, principal)
        return row


def _make_rule(definition: Definition, rule_text: Json | str | None) -> Schedule:
    """The schedule of a definition with the keys that were given; raises InvalidParametersError."""
    keys: Mapping[str, Any] = {"cron": rule_text} if isinstance(rule_text, str) else rule_text or {}
    own_keys = {} if definition.schedule is None else definition.schedule.model_dump(exclude_defaults=True)
    for key, other in (("cron", "every"), ("every", "cron")):
        if key in keys:
            own_keys.pop(other, None)
    merged = {**own_keys, **keys}
    if not merged:
        raise InvalidRequestError(
            f"workflow {definition.name} has no schedule",
            remedy='give it one, as in {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}',
        )
    return read_rule(Schedule, merged, "schedule")


def _render_time(rule: Schedule, at: float) -> str:
    """A time in the zone of a schedule, as in ``2026-12-01T03:00:00+01:00``."""
    return datetime.fromtimestamp(at, read_timezone(rule.timezone)).isoformat(timespec="seconds")
