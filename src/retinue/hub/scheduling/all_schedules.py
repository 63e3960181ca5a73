"""Schedules and triggers as one list, whose names are unique."""

from __future__ import annotations

from typing import Any

from retinue.core.call import Principal
from retinue.core.errors import InvalidParametersError, InvalidRequestError, Problem, UnknownScheduleError
from retinue.hub.scheduling.book import Change, ScheduleBook
from retinue.hub.scheduling.firing import Firing
from retinue.hub.scheduling.rows import make_name
from retinue.hub.scheduling.trigger_book import TriggerBook

Json = dict[str, Any]

SCHEDULE = "schedule"


class AllSchedules:
    """The schedules and triggers that start workflows at times and by events."""

    def __init__(self, schedules: ScheduleBook, triggers: TriggerBook, firing: Firing) -> None:
        self._schedules = schedules
        self._triggers = triggers
        self._firing = firing

    async def add(
        self,
        principal: Principal,
        workflow: str,
        name: str | None,
        *,
        schedule: Json | str | None = None,
        on: Json | str | None = None,
        secret: str | None = None,
    ) -> Json:
        """Add the schedule, or the trigger ``on`` an event; without both, the only one of the workflow.

        Raises InvalidRequestError for a workflow with several, and what `ScheduleBook.add` and
        `TriggerBook.add` raise.
        """
        if schedule is not None and on is not None:
            raise InvalidParametersError([Problem("on", "give schedule or on, not both")])
        if schedule is None and on is None:
            on = await self._choose(workflow)
        is_trigger = on not in (None, SCHEDULE)
        book = self._schedules if is_trigger else self._triggers
        stored_name = make_name(workflow, name)
        if await book.has(principal, stored_name):
            other = "starts at certain times" if is_trigger else "starts on events"
            raise InvalidRequestError(
                f"{stored_name} exists and {other}", remedy="choose another name, or remove it first"
            )
        if is_trigger:
            return await self._triggers.add(principal, workflow, name, on, secret)
        if secret is not None:
            raise InvalidParametersError([Problem("secret", "field 'secret' is for webhooks only")])
        return await self._schedules.add(principal, workflow, name, schedule)

    async def list_all(self, principal: Principal) -> list[Json]:
        """All that the caller has access to, by name."""
        rows = [*await self._schedules.list_all(principal), *await self._triggers.list_all(principal)]
        return sorted(rows, key=lambda row: str(row["schedule"]))

    async def change(self, principal: Principal, name: str, change: Change) -> Json:
        """Pause, resume or remove one, or start the run of a schedule now; raises UnknownScheduleError."""
        if await self._triggers.has(principal, name):
            # what is the caller's own comes before a schedule of other callers with this name
            return await self._triggers.change(principal, name, change)
        try:
            return await self._schedules.change(principal, name, change)
        except UnknownScheduleError:
            return await self._triggers.change(principal, name, change)

    async def _choose(self, workflow: str) -> str | None:
        """The only way in which a workflow says that it starts; None for a schedule, or for none."""
        definition = (await self._firing.starter.library.get(workflow)).definition
        ways = [] if definition.schedule is None else [SCHEDULE]
        ways += [] if definition.on is None else definition.on.kinds
        if len(ways) > 1:
            raise InvalidRequestError(
                f"workflow {definition.name} starts in several ways: {', '.join(ways)}",
                remedy=f"choose one: retinue schedules add {workflow} --on {ways[-1]}",
            )
        return ways[0] if ways else None
