"""Events of calls and their observers: log lines, the audit log and tracing spans.

Every call emits a ToolCallEvent when it is admitted and a CallEndedEvent when it has ended. Log lines and
audit rows are rendered in batches, so that a call does not wait for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeVar

import structlog

from retinue.core.call import LOCAL, Call, Outcome, TraceContext
from retinue.core.errors import ExecutionFailedError, RetinueError
from retinue.core.log_lines import find_json_lines
from retinue.core.quick_dataclass import quick_dataclass
from retinue.core.record import HUB_NAME, ListingKey
from retinue.core.text import MIN_TOKEN_LENGTH, hide_tokens
from retinue.mesh.observing.call_facts import KEY, MESSAGE, render_facts
from retinue.mesh.observing.reasons import write_reason

_log = structlog.get_logger("retinue.events")

E = TypeVar("E")

BATCH_S = 0.02
"""How long an event waits for the observers that take batches. With 0.2 s the rendering of one batch holds
up the slowest calls by 3 ms."""

BEGINNING_AFTER_S = 1.0
"""How long a call runs before its beginning has a row of its own."""

POLLS = frozenset({"list_agents", "list_runs"})
"""Skills of the hub that terminals call every few seconds."""

POLL_RECORDED_EVERY_S = 60.0

RECORDED_ARGUMENTS = {"answer_approval": ("approval", "verdict"), "set_policy_mode": ("mode",)}
"""Skills of the hub and those of their arguments that rows have: they say who permitted which call."""

_TEXT_OF_CALLERS = (
    "skill",
    "tool",
    "agent",
    "caller",
    "team",
    "id",
    "trace_id",
    "approval",
    "verdict",
    "mode",
)
"""Keys of rows that hold text of a caller, which may be a token that was put into the wrong place."""

MAX_NAMED_LENGTH = 600
"""Maximum number of characters of such a text in a row or log line. Callers may send names of any length."""


@quick_dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """An admitted inbound call, emitted before its skill runs (seed 004, S-10; specification 5, doubt 13)."""

    id: str
    tool: str
    arguments: Any
    caller: str
    trace_id: str
    depth: int
    timestamp: datetime
    type: Literal["EXEC:TOOL_CALL"] = "EXEC:TOOL_CALL"

    def as_json(self) -> dict[str, Any]:
        """The event with exactly the keys of specification 5, doubt 13."""
        return {
            "type": self.type,
            "id": self.id,
            "tool": self.tool,
            "arguments": self.arguments,
            "caller": self.caller,
            "trace_id": self.trace_id,
            "depth": self.depth,
            "timestamp": self.timestamp.isoformat(),
        }


@quick_dataclass(frozen=True, slots=True)
class CallEndedEvent:
    """The outcome of a call, including calls that were rejected."""

    call: Call
    outcome: Outcome
    timestamp: datetime
    is_message: bool = False
    """Whether it ran no skill; ``call.skill`` is then a method, which may be the caller's text."""
    policy: Mapping[str, Any] | None = None
    """What the policies said of it; None for nothing worth a row."""
    listing: str | None = None
    """The digest of the listing that was called."""
    place: ListingKey | None = None
    """The id of that listing, which tells agents of one name apart."""
    type: Literal["CALL:ENDED"] = "CALL:ENDED"
    _row: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """The event as a flat row without arguments or values, which may hold secrets (P-26).

        ``reason`` is the text of the error, without secrets. `RECORDED_ARGUMENTS` are in the row. ``team`` is
        that of an agent that calls for itself.
        """
        if not self._row:  # the audit row and the log line have the same
            self._row.update(self._render())
        return self._row.copy()

    def _render(self) -> dict[str, Any]:
        call, outcome = self.call, self.outcome
        row: dict[str, Any] = {
            "type": self.type,
            "id": call.id,
            "door": call.endpoint,
            "caller": call.principal.id,
            "skill": call.skill,
            "agent": outcome.agent,
            "version": outcome.version,
            "status": outcome.status,
            "duration_ms": round(outcome.duration_ms, 3),
            "attempts": len(outcome.attempts),
            "trace_id": call.trace.id,
            "depth": call.trace.depth,
            "timestamp": self.timestamp.isoformat(),
        }
        if call.principal.team and not call.principal.through:
            row["team"] = call.principal.team
        if outcome.usage is not None:
            row["usage"] = dict(outcome.usage)
        if call.run_step:
            row["run_step"] = call.run_step
        if self.policy is not None:
            row["policy"] = dict(self.policy)
        recorded = RECORDED_ARGUMENTS.get(call.skill)
        if recorded is not None and isinstance(call.arguments, Mapping):
            arguments = call.arguments
            row.update({key: text for key in recorded if isinstance(text := arguments.get(key), str)})
        if outcome.error is not None:
            row["error"] = outcome.error.type
            row["reason"] = write_reason(outcome.error, call.arguments)
        return row


Event = ToolCallEvent | CallEndedEvent

Observer = Callable[[Event], None]
BatchObserver = Callable[[Sequence[Event]], None]


class EventBus:
    """Passes each event to every observer, in order. An observer that raises is logged and kept."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()
        self._later: tuple[Observer, ...] = ()
        self._of_batches: tuple[BatchObserver, ...] = ()
        self._batch: list[Event] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def observed(self) -> bool:
        """Whether there is an observer; without one, no events need to be created."""
        return bool(self._observers or self._later or self._of_batches)

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Add an observer; returns the function that removes it."""
        self._observers = (*self._observers, observer)

        def unsubscribe() -> None:
            self._observers = tuple(o for o in self._observers if o is not observer)

        return unsubscribe

    def subscribe_later(self, observer: Observer) -> None:
        """Add an observer that gets the events in batches, `BATCH_S` after the first one of each."""
        self._later = (*self._later, observer)

    def subscribe_batches(self, observer: BatchObserver) -> None:
        """As `subscribe_later`, for an observer that takes all events of a batch at once."""
        self._of_batches = (*self._of_batches, observer)

    def emit(self, event: Event) -> None:
        for observer in self._observers:
            _notify(observer, event)
        if self._later or self._of_batches:
            self._batch.append(event)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(BATCH_S, self.flush)

    def flush(self) -> None:
        """Pass the waiting events on at once, as a process does before it ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._batch = self._batch, []
        for event in batch:
            for observer in self._later:
                _notify(observer, event)
        if batch:
            for takes_all in self._of_batches:
                _notify(takes_all, batch)


def _notify(observer: Callable[[E], None], event: E) -> None:
    try:
        observer(event)
    except Exception as error:  # noqa: BLE001 - a failing observer must not fail the call
        _log.warning("observer failed", observer=repr(observer), error=str(error))


def now() -> datetime:
    """The current time in UTC, for the timestamp of an event."""
    return datetime.now(UTC)


def log_line(event: Event) -> None:
    """An observer that logs one line per ended call (P-26), with the traceback where a skill raised."""
    if isinstance(event, CallEndedEvent):
        _log.info("call", **_log_row(event))


def log_lines(batch: Sequence[Event]) -> None:
    """As `log_line`, for all events of a batch; lines of JSON leave in one write."""
    lines = find_json_lines()
    rows: list[dict[str, Any]] = []
    for event in batch:
        if lines is None:
            log_line(event)
        elif isinstance(event, CallEndedEvent):
            row = _log_row(event)
            if "exc_info" not in row:
                rows.append(row)
                continue
            lines.write_calls(rows)
            rows.clear()
            _log.info("call", **row)
    if lines is not None:
        lines.write_calls(rows)


def _log_row(event: CallEndedEvent) -> dict[str, Any]:
    row = event.as_json()
    del row["type"]
    row["timestamp"] = row["timestamp"].replace("+00:00", "Z")
    if len(event.call.skill) > MAX_NAMED_LENGTH:
        row["skill"] = _cut(hide_tokens(event.call.skill))
    for key in RECORDED_ARGUMENTS.get(event.call.skill, ()):
        if key in row:
            row[key] = _cut(row[key])
    error = event.outcome.error
    raised = error.__cause__ if isinstance(error, ExecutionFailedError) else None
    if raised is not None and not isinstance(raised, RetinueError):
        row["exc_info"] = raised
    return row


def _cut(text: str) -> str:
    return text if len(text) <= MAX_NAMED_LENGTH else f"{text[: MAX_NAMED_LENGTH - 1]}…"


def record_calls(append: Callable[[Mapping[str, Any]], None]) -> Observer:
    """An observer that appends every event to the audit log, as a flat JSON object.

    ``append`` must not block for long. Rows have no other arguments than `RECORDED_ARGUMENTS`, and no values,
    because these may be secret.
    """

    def observe(event: Event) -> None:
        row = event.as_json()
        row.pop("arguments", None)
        if isinstance(event, CallEndedEvent) and row["agent"] is not None:
            row[KEY] = MESSAGE if event.is_message else render_facts(event.call, event.listing)
        for key in _TEXT_OF_CALLERS:
            text = row.get(key)
            if text is not None and len(text) >= MIN_TOKEN_LENGTH:
                row[key] = _cut(hide_tokens(text))
        append(row)

    return observe


class LateBeginnings:
    """An observer that passes the beginning of a call on only if the call takes longer than ``after_s``.

    The end of a short call says all that its beginning says, so an audit log keeps one row for it.
    """

    def __init__(self, observer: Observer, *, after_s: float = BEGINNING_AFTER_S) -> None:
        self._observer = observer
        self._after_s = after_s
        self._begun: dict[str, tuple[float, ToolCallEvent]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, ToolCallEvent):
            loop = asyncio.get_running_loop()
            self._begun[event.id] = (loop.time() + self._after_s, event)
            if self._timer is None:
                self._timer = loop.call_later(self._after_s, self._pass_on)
            return
        self._begun.pop(event.call.id, None)
        self._observer(event)

    def close(self) -> None:
        """Pass the waiting beginnings on, because these calls end unseen."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _, event in self._begun.values():
            self._observer(event)
        self._begun.clear()

    def _pass_on(self) -> None:
        """Pass on the beginnings that have waited long enough, oldest first."""
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._begun:
            due, event = next(iter(self._begun.values()))
            if due > loop.time():
                self._timer = loop.call_at(due, self._pass_on)
                return
            del self._begun[event.id]
            self._observer(event)


class OncePerMinute:
    """An observer that passes events on to another one, and of repeated reads of the hub one a minute.

    A repeated read is a successful call of one of `POLLS` by the holder of the state token, who may read
    the database of the hub as well: ``retinue top`` makes two every five seconds. The beginning of such a
    call is passed on when it ends. Calls of other callers, failures and all other skills pass unchanged.
    The minute is one of ``monotonic``, in seconds, so it does not change when the clock is set.
    """

    def __init__(
        self, observer: Observer, owner: str = LOCAL.id, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._observer = observer
        self._owner = owner
        self._monotonic = monotonic
        self._begun: dict[str, ToolCallEvent] = {}
        self._recorded_at: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, ToolCallEvent):
            if event.tool in POLLS and event.caller == self._owner:
                self._begun[event.id] = event
            else:
                self._observer(event)
            return
        begun = self._begun.pop(event.call.id, None) if self._begun else None
        if begun is not None:
            if self._is_repeated(event):
                return
            self._observer(begun)
        self._observer(event)

    def _is_repeated(self, event: CallEndedEvent) -> bool:
        if event.outcome.status != "done" or event.outcome.agent != HUB_NAME:
            return False
        now = self._monotonic()
        last = self._recorded_at.get(event.call.skill)
        if last is not None and now - last < POLL_RECORDED_EVERY_S:
            return True
        self._recorded_at[event.call.skill] = now
        return False


class Span(Protocol):
    """The tracing span of one call, joined to its caller's span by ``traceparent``."""

    def carry(self, trace: TraceContext) -> TraceContext:
        """The trace for further calls of this call: its ``traceparent`` is this span."""

    def attempt(self, agent: str, trace: TraceContext) -> AbstractContextManager[TraceContext]:
        """Open the span of one attempt at an agent of another process; gives the trace that it is sent."""

    def close(self, outcome: Outcome) -> None:
        """End the span; called in the task that opened it."""


OpenSpan = Callable[[Call], Span]
"""Opens a span that is current until it is closed."""
