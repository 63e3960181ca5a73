"""The thin path: the same admission, guard and record as a call has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.core.call import Call, Part, Principal, TraceContext
from retinue.core.errors import (
    CallTimedOutError,
    CallTooDeepError,
    ExecutionFailedError,
    RetinueError,
    UnknownResourceError,
)
from retinue.mesh.admission import Admission, LimitSettings, ProcessLimits
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.guard.trace_guard import AdmittedCall, TraceGuard
from retinue.mesh.observing.events import CallEndedEvent, Event
from retinue.mesh.reading import Read, Reader, ReadRequest

CLIENT = Principal("client", "anonymous")
TEXT = (Part.text("text"),)


class Source:
    """Reads by doing what the test says."""

    def __init__(self, then: Any = None) -> None:
        self.then = then
        self.seen: list[Call] = []

    async def read(self, request: ReadRequest, call: Call, admitted: AdmittedCall, channel: Channel) -> Read:
        self.seen.append(call)
        if isinstance(self.then, BaseException):
            raise self.then
        if self.then is not None:
            await self.then(channel)
        return TEXT

    def follow(self, uris: frozenset[str]) -> None:
        raise NotImplementedError


def make_request(**facts: Any) -> ReadRequest:
    given = {
        "kind": "resource",
        "name": "a://b",
        "principal": CLIENT,
        "endpoint": "mcp",
        "trace": TraceContext(""),
    }
    return ReadRequest(id="r", **{**given, **facts})


def recorded(reader: Reader) -> list[CallEndedEvent]:
    rows: list[CallEndedEvent] = []

    def note(event: Event) -> None:
        assert isinstance(event, CallEndedEvent)
        rows.append(event)

    reader.admission.events.subscribe(note)
    return rows


async def test_a_read_gives_what_its_source_has_and_is_recorded() -> None:
    reader = Reader("agent", Source())
    rows = recorded(reader)
    outcome = await reader.read(make_request())
    assert outcome.get() == TEXT
    (row,) = rows
    assert (row.call.skill, row.outcome.status, row.outcome.agent) == ("resource a://b", "done", "agent")
    assert row.call.trace.id
    assert reader.admission.limits.in_flight == 0


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (UnknownResourceError("a://b"), "refused", UnknownResourceError),
        (ValueError("torn"), "failed", ExecutionFailedError),
        (SystemExit(3), "failed", ExecutionFailedError),
    ],
)
async def test_a_failure_is_data(error: BaseException, status: str, kind: type[RetinueError]) -> None:
    reader = Reader("agent", Source(error))
    rows = recorded(reader)
    outcome = await reader.read(make_request())
    assert isinstance(outcome.error, kind)
    with pytest.raises(kind):
        outcome.get()
    assert [row.outcome.status for row in rows] == [status]


async def test_the_guard_and_the_limits_stand_before_a_read_too() -> None:
    source = Source()
    guard = TraceGuard()
    deep = await Reader("agent", source, Admission(guard)).read(
        make_request(trace=TraceContext("t", depth=6))
    )
    assert isinstance(deep.error, CallTooDeepError)
    full = Reader("agent", source, Admission(limits=ProcessLimits(LimitSettings(max_in_flight=0))))
    assert (await full.read(make_request())).error is not None
    assert source.seen == []


async def test_a_read_that_takes_too_long_is_ended_but_a_person_may_think() -> None:
    async def hang(channel: Channel) -> None:
        await asyncio.Event().wait()

    reader = Reader("agent", Source(hang), timeout_s=0.01)
    assert isinstance((await reader.read(make_request())).error, CallTimedOutError)

    class Thinking(NullChannel):
        async def elicit(self, message: str, schema: Any, *, key: str | None = None) -> Any:
            await asyncio.sleep(0.05)
            return "thought"

    async def ask(channel: Channel) -> None:
        assert await channel.elicit("?", {}) == "thought"

    patient = Reader("agent", Source(ask), timeout_s=0.02)
    assert (await patient.read(make_request(), Thinking())).error is None


async def test_a_cancelled_read_is_recorded() -> None:
    started = asyncio.Event()

    async def hang(channel: Channel) -> None:
        started.set()
        await asyncio.Event().wait()

    reader = Reader("agent", Source(hang))
    rows = recorded(reader)
    reading = asyncio.create_task(reader.read(make_request()))
    await started.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert [row.outcome.error.type for row in rows if row.outcome.error] == ["cancelled"]
    assert reader.admission.limits.in_flight == 0
