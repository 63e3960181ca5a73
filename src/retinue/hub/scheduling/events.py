"""Starts the run of an event for a trigger, once, however often and wherever the event arrives."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog

from retinue.core.errors import (
    BusyError,
    ExpressionError,
    InvalidParametersError,
    NotAllowedError,
    Problem,
    RepeatedEventError,
    RetinueError,
)
from retinue.hub.scheduling.firing import Firing, describe, has_issued_token, may_pass
from retinue.workflows.definitions.loading import Loaded
from retinue.workflows.expressions.templates import render
from retinue.workflows.schedules import LastFiring
from retinue.workflows.triggers import Event, StoredTrigger, TriggerProgress

if TYPE_CHECKING:  # with the database libraries, which a process without runs does not load
    from retinue.workflows.durable.tables.triggers import TriggerTable

_log = structlog.get_logger("retinue.schedules")


@dataclass(frozen=True, slots=True)
class StartedByEvent:
    """The run of an event by the id that its owner names; ``is_new`` = the event was not seen before."""

    run: str
    is_new: bool


class EventStarter:
    """Starts runs for events; ``clock`` gives seconds since 1970."""

    def __init__(self, firing: Firing, *, clock: Callable[[], float] = time.time) -> None:
        self._firing = firing
        self._clock = clock

    async def start(
        self, table: TriggerTable, trigger: StoredTrigger, event: Event, *, sent_at: float
    ) -> StartedByEvent:
        """Start the run of an event, or find it; ``sent_at`` is the time of this sending of it.

        Raises NotAllowedError for a trigger that starts nothing, RepeatedEventError for the same sending,
        InvalidParametersError for a payload that does not fit the workflow, BusyError, RunConflictError for
        another payload under the same id, and what prevents the run.
        """
        try:
            loaded = await self._load(table, trigger)
            run_input = await _make_input(trigger, event)
        except NotAllowedError:
            raise  # the reason is that of the trigger, and stored with it
        except RetinueError as error:
            await self._note(table, trigger, self._last(event, "failed", reason=describe(error)))
            raise
        run = trigger.run_id(event.id)
        claim = await table.claim(trigger, event.id, sent_at=sent_at, now=self._clock())
        if claim.what == "repeated":
            raise RepeatedEventError(event.id, run)
        if claim.what == "busy":
            limit = f"{trigger.options.per_minute} events a minute start a run of {trigger.name}"
            raise BusyError(limit, claim.retry_after_s)
        try:
            started = await self._firing.start(trigger, loaded, run, run_input, event.trace)
        except RetinueError as error:
            if claim.what == "new":
                await table.release(trigger, event.id)
            await self._note(table, trigger, self._last(event, "failed", reason=describe(error)))
            raise
        _log.info("event started a run", trigger=trigger.id, event_id=event.id, run=started)
        await self._note(table, trigger, self._last(event, "started", run=started))
        return StartedByEvent(run, claim.what == "new")

    async def _load(self, table: TriggerTable, trigger: StoredTrigger) -> Loaded:
        """The workflow of a trigger that may start runs; raises NotAllowedError with the reason."""
        if trigger.progress.paused:
            raise _refused(trigger, "is paused", trigger.progress.paused)
        is_home = trigger.home == await table.read_home()
        if has_issued_token(trigger.owner) and not is_home:
            raise _refused(
                trigger,
                "is not known well enough at this hub",
                f"only the hub that issued it knows whether {trigger.owner.id} is still valid",
            )
        if reason := self._firing.check_owner(trigger.owner):
            _log.warning("trigger paused", trigger=trigger.id, reason=reason)
            await table.change(trigger, replace(trigger.progress, paused=reason))
            raise _refused(trigger, "is paused", reason)
        try:
            return await self._firing.load(trigger)
        except RetinueError as error:
            if may_pass(error):
                raise
            reason = describe(error)
            if is_home and trigger.progress.broken != reason:
                _log.warning("trigger broken", trigger=trigger.id, error=error.message)
                await table.change(trigger, replace(trigger.progress, broken=reason))
            raise _refused(trigger, "is broken", reason) from error

    def _last(self, event: Event, what: Any, *, run: str | None = None, reason: str = "") -> LastFiring:
        return LastFiring(event.at, self._clock(), what, run, reason)

    async def _note(self, table: TriggerTable, trigger: StoredTrigger, last: LastFiring) -> None:
        """Store what has become of an event, unless the trigger was changed meanwhile."""
        progress: TriggerProgress = trigger.progress.fired(last)
        if not await table.change(trigger, progress):
            _log.debug("event not noted", trigger=trigger.id)


def _refused(trigger: StoredTrigger, what: str, reason: str) -> NotAllowedError:
    return NotAllowedError(
        f"trigger {trigger.name} {what}: {reason}", remedy="its owner sees the reason: retinue schedules"
    )


async def _make_input(trigger: StoredTrigger, event: Event) -> Any:
    """The input of the run; raises InvalidParametersError where the event lacks what a template reads."""
    template = trigger.options.input
    if template is None:
        return event.value
    try:
        return await render(template, event.variables, "input")
    except ExpressionError as error:
        raise InvalidParametersError(
            [Problem("payload", f"the input of {trigger.name} cannot be made of the event: {error.message}")]
        ) from error
