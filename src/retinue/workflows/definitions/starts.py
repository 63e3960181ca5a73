"""The part of a definition that says when its workflow starts by itself: a schedule, and events.

As all of the grammar, these models check the shape, and a run stores their JSON form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from retinue.workflows.cron import CronTimes, RepeatedTimes, Times, read_timezone
from retinue.workflows.definitions.values import (
    MAX_TIMER_S,
    Name,
    StrictModel,
    TimerDuration,
    parse_duration,
)

Missed = Literal["skip", "once", "all"]

Overlap = Literal["skip", "queue", "cancel"]


class Schedule(StrictModel):
    """When a workflow starts by itself, once somebody has added the schedule, and with which input.

    ``cron`` has five fields, read in ``timezone``; ``every`` counts from the time at which the schedule was
    added. ``missed``: what happens after times at which no node ran; ``overlap``: what happens while the
    previous run still runs.
    """

    cron: str | None = None
    every: TimerDuration | None = None
    timezone: str = "UTC"
    input: Any = None
    missed: Missed = "once"
    overlap: Overlap = "skip"

    @model_validator(mode="after")
    def _check(self) -> Schedule:
        if (self.cron is None) == (self.every is None):
            raise ValueError("a schedule has one of cron and every")
        read_timezone(self.timezone)
        self.make_times(0.0)
        return self

    def make_times(self, began_at: float) -> Times:
        """The times of the schedule, which was added at ``began_at``."""
        if self.cron is not None:
            return CronTimes(self.cron, self.timezone)
        every_s = parse_duration(self.every or "", MAX_TIMER_S)
        if every_s < 1 or every_s % 1:
            raise ValueError(f"every {self.every} is no number of whole seconds")
        return RepeatedTimes(every_s, float(int(began_at)))


def _expand_schedule(value: Any) -> Any:
    return {"cron": value} if isinstance(value, str) else value


SchedulePart = Annotated[Schedule, BeforeValidator(_expand_schedule)]


MAX_EVENTS_A_MINUTE = 6_000

MAX_PAYLOAD_BYTES = 4 * 1024 * 1024

PerMinute = Annotated[int, Field(ge=1, le=MAX_EVENTS_A_MINUTE)]

EVENTS_A_MINUTE = 60
"""How many events of one trigger start a run in a minute, if it says nothing else."""

PAYLOAD_BYTES = 256 * 1024
"""The largest body of a webhook, if it says nothing else."""


class OnWebhook(StrictModel):
    """Starts a run for each signed request at an address of the hub.

    The payload is the JSON value in the body. It is the input, or ``input`` makes the input of it: its
    templates read the payload as ``input``.
    """

    input: Any = None
    per_minute: PerMinute = EVENTS_A_MINUTE
    max_bytes: int = Field(default=PAYLOAD_BYTES, ge=1, le=MAX_PAYLOAD_BYTES)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


PerformativeName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z_]{0,63}$")]


class OnMessage(StrictModel):
    """Starts a run for each message that arrives at the hub and fits, from a sender with a token.

    ``performative`` is one or several, none for any. ``sender``, ``receiver`` and ``topic``, which a message
    has in its payload, are globs. The input is the message, or what ``input`` makes of it.
    """

    performative: Annotated[
        tuple[PerformativeName, ...], BeforeValidator(_as_list), Field(strict=False, max_length=20)
    ] = ()
    sender: Name | None = None
    receiver: Name | None = None
    topic: Name | None = None
    input: Any = None
    per_minute: PerMinute = EVENTS_A_MINUTE


AgentEventName = Literal["joined", "left", "unreachable", "healthy"]


class OnAgent(StrictModel):
    """Starts a run when an agent of the mesh joins, leaves, becomes unreachable, or is healthy again.

    ``name`` is a glob. The input is the event, or what ``input`` makes of it.
    """

    event: Annotated[tuple[AgentEventName, ...], BeforeValidator(_as_list), Field(strict=False, min_length=1)]
    name: Name = "*"
    input: Any = None
    per_minute: PerMinute = EVENTS_A_MINUTE


TriggerOptions = OnWebhook | OnMessage | OnAgent

TRIGGERS = ("webhook", "message", "agent")
"""The kinds of events that start a workflow."""


class Triggers(StrictModel):
    """The events that start a workflow, once somebody has added the trigger."""

    webhook: OnWebhook | None = None
    message: OnMessage | None = None
    agent: OnAgent | None = None

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {value: {}}
        if isinstance(value, Mapping):
            # an empty key of a YAML text is null
            return {key: {} if event in (None, True) else event for key, event in value.items()}
        return value

    @model_validator(mode="after")
    def _check(self) -> Triggers:
        if not self.kinds:
            raise ValueError(f"on has at least one of {', '.join(TRIGGERS)}")
        return self

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of events, of `TRIGGERS`."""
        return tuple(kind for kind in TRIGGERS if getattr(self, kind) is not None)

    def select(self, kind: str) -> Triggers:
        """The trigger of one kind."""
        return Triggers.model_validate({kind: getattr(self, kind)})
