"""The bus on which every call shows itself: audit, logs, metrics and views observe the same events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

from retinue.core.call import Call, Outcome
from retinue.core.errors import ExecutionFailedError, RetinueError

_log = structlog.get_logger("retinue.events")


@dataclass(frozen=True, slots=True)
class ToolCallEvent:
    """One admitted inbound call, told before anything runs (seed 004, S-10; SPEC 5 doubt 13)."""

    id: str
    tool: str
    arguments: Any
    caller: str
    trace_id: str
    depth: int
    timestamp: datetime
    type: Literal["EXEC:TOOL_CALL"] = "EXEC:TOOL_CALL"

    def as_json(self) -> dict[str, Any]:
        """Exactly the keys of SPEC 5, doubt 13."""
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


@dataclass(frozen=True, slots=True)
class CallEndedEvent:
    """What became of a call, refused ones included."""

    call: Call
    outcome: Outcome
    timestamp: datetime
    type: Literal["CALL:ENDED"] = "CALL:ENDED"

    def as_json(self) -> dict[str, Any]:
        """One flat row without arguments or values: they may hold secrets (P-26)."""
        call, outcome = self.call, self.outcome
        row: dict[str, Any] = {
            "type": self.type,
            "id": call.id,
            "door": call.door,
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
        if call.run_step:
            row["run_step"] = call.run_step
        if outcome.error is not None:
            row["error"] = outcome.error.type
        return row


Event = ToolCallEvent | CallEndedEvent
Observer = Callable[[Event], None]


class EventBus:
    """Hands each event to every observer, in order; an observer that raises is logged and kept."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()

    @property
    def observed(self) -> bool:
        """Whether anybody listens: the hot path makes no event for nobody."""
        return bool(self._observers)

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Add an observer; returns the function that removes it."""
        self._observers = (*self._observers, observer)

        def unsubscribe() -> None:
            self._observers = tuple(o for o in self._observers if o is not observer)

        return unsubscribe

    def emit(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except Exception as error:  # noqa: BLE001 - one bad observer must not fail the call it observes
                _log.warning("observer failed", observer=repr(observer), error=str(error))


def now() -> datetime:
    """The time of an event, in UTC."""
    return datetime.now(UTC)


def log_line(event: Event) -> None:
    """Observer: one JSON log line per ended call (P-26), with the traceback where a skill raised."""
    if isinstance(event, CallEndedEvent):
        row = {k: v for k, v in event.as_json().items() if k not in ("type", "timestamp")}
        error = event.outcome.error
        raised = error.__cause__ if isinstance(error, ExecutionFailedError) else None
        if raised is not None and not isinstance(raised, RetinueError):
            row["exc_info"] = raised
        _log.info("call", **row)
