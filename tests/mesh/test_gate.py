"""Messages that run no skill: admitted, guarded and told of like calls."""

from __future__ import annotations

import asyncio

import pytest

from retinue.core.call import ANONYMOUS, Call, TraceContext
from retinue.core.errors import BusyError, CallTooDeepError, RemoteFaultError
from retinue.mesh.events import CallEndedEvent, Event, EventBus
from retinue.mesh.gate import Gate
from retinue.mesh.guards import TraceGuard
from retinue.mesh.limits import Limits, LimitSettings


def _gate(max_in_flight: int = 10) -> tuple[Gate, list[Event]]:
    events, seen = EventBus(), []  # type: ignore[var-annotated]
    events.subscribe(seen.append)
    return Gate(TraceGuard(), Limits(LimitSettings(max_in_flight, None, 10)), events), seen


def _call(depth: int = 0) -> Call:
    return Call("1", "tools/list", {}, ANONYMOUS, "mcp", TraceContext("t", depth=depth))


def _told(seen: list[Event]) -> tuple[str, str | None]:
    (event,) = seen
    assert isinstance(event, CallEndedEvent)
    return event.outcome.status, event.outcome.agent


def test_a_message_that_passes_is_done() -> None:
    """With the trace that the guard made of its claims."""
    gate, seen = _gate()
    with gate.admit(_call(), "a") as passage:
        assert passage.trace.id == "t"
    assert _told(seen) == ("done", "a")


def test_what_the_guard_or_a_limit_refuses_is_told_as_refused() -> None:
    """And leaves nothing behind that would count."""
    gate, seen = _gate()
    with pytest.raises(CallTooDeepError), gate.admit(_call(6), "a"):
        raise AssertionError("it must not come so far")
    assert _told(seen) == ("refused", "a")
    full, seen = _gate(max_in_flight=1)
    with full.admit(_call(), "a"), pytest.raises(BusyError), full.admit(_call(), "a"):
        raise AssertionError("it must not come so far")
    with full.admit(_call(), "a"):
        pass


def test_what_the_block_raises_is_what_became_of_the_message() -> None:
    """An agent's own error has failed, a caller that gives up has cancelled."""
    gate, seen = _gate()
    with pytest.raises(RemoteFaultError), gate.admit(_call(), "a"):
        raise RemoteFaultError("a", -1, "no")
    assert _told(seen) == ("failed", "a")
    gate, seen = _gate()
    with pytest.raises(asyncio.CancelledError), gate.admit(_call(), "a"):
        raise asyncio.CancelledError
    (event,) = seen
    assert isinstance(event, CallEndedEvent)
    assert event.outcome.error is not None
    assert event.outcome.error.type == "cancelled"
