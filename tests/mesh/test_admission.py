"""Messages that run no skill: admitted, guarded and told of like calls."""

from __future__ import annotations

import asyncio

import pytest

from retinue.core.call import ANONYMOUS, Call, TraceContext
from retinue.core.errors import BusyError, CallTooDeepError, RemoteFaultError
from retinue.mesh.admission import Admission, LimitSettings, ProcessLimits
from retinue.mesh.guard.trace_guard import TraceGuard
from retinue.mesh.observing.events import CallEndedEvent, Event, EventBus


def _admission(max_in_flight: int = 10) -> tuple[Admission, list[Event]]:
    events, seen = EventBus(), []  # type: ignore[var-annotated]
    events.subscribe(seen.append)
    return Admission(TraceGuard(), ProcessLimits(LimitSettings(max_in_flight, None, 10)), events), seen


def _call(depth: int = 0) -> Call:
    return Call("1", "tools/list", {}, ANONYMOUS, "mcp", TraceContext("t", depth=depth))


def _told(seen: list[Event]) -> tuple[str, str | None]:
    (event,) = seen
    assert isinstance(event, CallEndedEvent)
    return event.outcome.status, event.outcome.agent


def test_a_message_that_passes_is_done() -> None:
    """With the trace that the guard made of its claims."""
    admission, seen = _admission()
    with admission.message(_call(), "a") as admitted:
        assert admitted.trace.id == "t"
    assert _told(seen) == ("done", "a")


def test_what_the_guard_or_a_limit_refuses_is_told_as_refused() -> None:
    """And leaves nothing behind that would count."""
    admission, seen = _admission()
    with pytest.raises(CallTooDeepError), admission.message(_call(6), "a"):
        raise AssertionError("it must not come so far")
    assert _told(seen) == ("refused", "a")
    full, seen = _admission(max_in_flight=1)
    with full.message(_call(), "a"), pytest.raises(BusyError), full.message(_call(), "a"):
        raise AssertionError("it must not come so far")
    with full.message(_call(), "a"):
        pass


def test_what_the_block_raises_is_what_became_of_the_message() -> None:
    """An agent's own error has failed, a caller that gives up has cancelled."""
    admission, seen = _admission()
    with pytest.raises(RemoteFaultError), admission.message(_call(), "a"):
        raise RemoteFaultError("a", -1, "no")
    assert _told(seen) == ("failed", "a")
    admission, seen = _admission()
    with pytest.raises(asyncio.CancelledError), admission.message(_call(), "a"):
        raise asyncio.CancelledError
    (event,) = seen
    assert isinstance(event, CallEndedEvent)
    assert event.outcome.error is not None
    assert event.outcome.error.type == "cancelled"
