"""The bus on which every call shows itself, and the log line of each call (P-26)."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
import structlog
from structlog.testing import capture_logs

from retinue.core.call import Attempt, Outcome, TraceContext
from retinue.core.errors import ExecutionFailedError, RemoteFaultError, UnknownSkillError
from retinue.core.log_lines import JsonLines, render_json_line
from retinue.mesh.observing import events
from retinue.mesh.observing.events import (
    CallEndedEvent,
    Event,
    EventBus,
    OncePerMinute,
    ToolCallEvent,
    log_line,
    log_lines,
    now,
)
from tests.mesh.scripted import FakeClock, make_call, make_dispatcher
from tests.requirements import requirement

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

CALL = make_call(arguments={"password": "hunter2"}, trace=TraceContext("t", depth=1))
ANNOUNCED = ToolCallEvent("1", "create_plan", {"password": "hunter2"}, "anonymous", "t", 1, AT)
ENDED = CallEndedEvent(
    CALL,
    Outcome(
        CALL.id,
        CALL.skill,
        "done",
        agent="plan-agent",
        version="1.0.0",
        value="hunter2",
        attempts=(Attempt("plan-agent", 1.5),),
        duration_ms=2.00049,
    ),
    AT,
)


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Logs as they are before a program of this process has set them up, and filtered them."""
    before = structlog.get_config()
    structlog.reset_defaults()
    monkeypatch.setattr(events, "_log", structlog.get_logger("retinue.events"))
    yield
    structlog.configure(**before)


def test_every_observer_sees_every_event_in_order_until_it_leaves() -> None:
    bus = EventBus()
    seen: list[tuple[str, Event]] = []
    assert not bus.observed
    leave = bus.subscribe(lambda event: seen.append(("a", event)))
    bus.subscribe(lambda event: seen.append(("b", event)))
    assert bus.observed
    bus.emit(ANNOUNCED)
    leave()
    leave()
    bus.emit(ENDED)
    assert seen == [("a", ANNOUNCED), ("b", ANNOUNCED), ("b", ENDED)]


def test_an_observer_may_leave_while_it_is_told() -> None:
    bus = EventBus()
    seen: list[str] = []

    def once(event: Event) -> None:
        seen.append("once")
        leave()

    leave = bus.subscribe(once)
    bus.subscribe(lambda event: seen.append("always"))
    bus.emit(ANNOUNCED)
    bus.emit(ANNOUNCED)
    assert seen == ["once", "always", "always"]


def test_an_observer_that_raises_is_logged_and_stops_nobody() -> None:
    bus = EventBus()
    seen: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("disk full")

    bus.subscribe(broken)
    bus.subscribe(seen.append)
    with capture_logs() as logs:
        bus.emit(ANNOUNCED)
    assert seen == [ANNOUNCED]
    assert [line["error"] for line in logs] == ["disk full"]


@requirement("P-26")
def test_an_ended_call_is_one_flat_row_without_arguments_or_values() -> None:
    row = ENDED.as_json()
    assert row == {
        "type": "CALL:ENDED",
        "id": CALL.id,
        "door": "execute",
        "caller": "anonymous",
        "skill": "create_plan",
        "agent": "plan-agent",
        "version": "1.0.0",
        "status": "done",
        "duration_ms": 2.0,
        "attempts": 1,
        "trace_id": "t",
        "depth": 1,
        "timestamp": "2026-01-02T03:04:05+00:00",
    }
    assert b"hunter2" not in orjson.dumps(row)


def test_a_refused_call_of_a_run_names_its_error_and_its_step() -> None:
    call = make_call("nope", run_step="run-1/plan")
    row = CallEndedEvent(
        call, Outcome(call.id, "nope", "refused", error=UnknownSkillError("nope")), AT
    ).as_json()
    assert (row["error"], row["run_step"], row["agent"]) == ("unknown_skill", "run-1/plan", None)
    assert "nope" in row["reason"]


@requirement("P-26")
def test_the_reason_of_a_failed_call_is_the_text_of_its_error_without_secrets() -> None:
    call = make_call(arguments={"text": "tea", "login": {"password": "hunter2", "codes": ["9-9-9-9"]}})
    text = (
        "no tea for hunter2; asked https://ada:pw@shop.example/?token=abc&page=2 with sk-0123456789abcdef, "
        'api_key=k1, {"client_secret": "c d", "page": 3}, Authorization: Bearer abc, password: pw-1, rtn_'
        + "x"
        * 20
    )
    outcome = Outcome(call.id, "create_plan", "failed", error=ExecutionFailedError(text))
    reason = CallEndedEvent(call, outcome, AT).as_json()["reason"]
    assert reason == (
        "no tea for ***; asked https://***@shop.example/?token=***&page=2 with ***, "
        'api_key=***, {"client_secret": ***, "page": 3}, Authorization: Bearer ***, password: ***, [token]'
    )


def test_a_long_reason_is_cut() -> None:
    call = make_call()
    outcome = Outcome(call.id, "create_plan", "failed", error=RemoteFaultError("a", -32000, "word " * 500))
    reason = CallEndedEvent(call, outcome, AT).as_json()["reason"]
    assert len(reason) == 500
    assert reason.endswith("…")


@requirement("P-26")
def test_each_ended_call_is_one_line_of_the_log_and_no_other_event_is() -> None:
    with capture_logs() as logs:
        log_line(ANNOUNCED)
        log_line(ENDED)
    assert len(logs) == 1
    assert logs[0]["event"] == "call"
    assert (logs[0]["skill"], logs[0]["status"], logs[0]["trace_id"]) == ("create_plan", "done", "t")
    assert "hunter2" not in str(logs[0])


async def test_where_a_skill_raised_its_author_finds_the_traceback_in_that_line() -> None:
    raised = KeyError("requirements")
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": [raised, RemoteFaultError("a", -1, "no")]})
    dispatcher.admission.events.subscribe(log_line)
    with capture_logs() as logs:
        await dispatcher.dispatch(make_call())
        await dispatcher.dispatch(make_call())
    assert [line.get("exc_info") for line in logs] == [raised, None]


class Lines(io.StringIO):
    """Counts the writes."""

    writes = 0

    def write(self, text: str, /) -> int:
        self.writes += 1
        return super().write(text)


@pytest.fixture
def lines() -> Lines:
    """What a process that logs JSON writes, without the time that a test cannot know."""
    written = Lines()
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        render_json_line,
    ]
    structlog.configure(processors=processors, logger_factory=JsonLines(written))
    return written


@requirement("P-26")
def test_the_lines_of_a_batch_leave_in_one_write_and_are_those_of_single_calls(lines: Lines) -> None:
    secret = CallEndedEvent(make_call("rtn_" + "x" * 20), ENDED.outcome, AT)
    for event in (ANNOUNCED, ENDED, secret, ENDED):
        log_line(event)
    one_by_one = lines.getvalue()
    assert one_by_one.count("\n") == 3
    assert "[token]" in one_by_one
    lines.truncate(lines.seek(0))
    lines.writes = 0
    log_lines([ANNOUNCED, ENDED, secret, ENDED])
    assert lines.getvalue() == one_by_one
    assert lines.writes == 1
    log_lines([ANNOUNCED])
    assert lines.writes == 1


def test_a_call_that_raised_keeps_its_place_among_the_lines_of_a_batch(lines: Lines) -> None:
    error = ExecutionFailedError("it failed")
    error.__cause__ = KeyError("requirements")
    raised = CallEndedEvent(make_call("b"), Outcome("2", "b", "failed", error=error), AT)
    log_lines([ENDED, raised, ENDED])
    rows = [orjson.loads(line) for line in lines.getvalue().splitlines()]
    assert [row["status"] for row in rows] == ["done", "failed", "done"]
    assert "KeyError: 'requirements'" in rows[1]["exception"]


def test_where_lines_are_no_json_a_batch_is_logged_call_by_call() -> None:
    with capture_logs() as logs:
        log_lines([ANNOUNCED, ENDED, ENDED])
    assert [line["event"] for line in logs] == ["call", "call"]


async def test_observers_of_whole_batches_get_each_batch_once() -> None:
    bus = EventBus()
    seen: list[list[Event]] = []
    bus.subscribe_batches(lambda batch: seen.append(list(batch)))
    assert bus.observed
    bus.emit(ANNOUNCED)
    bus.emit(ENDED)
    bus.flush()
    bus.flush()
    assert seen == [[ANNOUNCED, ENDED]]


def test_times_of_events_are_in_utc() -> None:
    assert now().tzinfo is UTC


async def test_observers_of_batches_get_the_events_in_order_a_moment_later() -> None:
    bus = EventBus()
    seen: list[tuple[str, Event]] = []
    bus.subscribe_later(lambda event: seen.append(("a", event)))
    bus.subscribe_later(lambda event: seen.append(("b", event)))
    assert bus.observed
    bus.emit(ANNOUNCED)
    bus.emit(ENDED)
    assert not seen
    async with asyncio.timeout(60):
        while not seen:
            await asyncio.sleep(0)
    assert seen == [("a", ANNOUNCED), ("b", ANNOUNCED), ("a", ENDED), ("b", ENDED)]


async def test_a_flush_passes_the_waiting_events_on_once() -> None:
    bus = EventBus()
    seen: list[Event] = []
    bus.subscribe_later(seen.append)
    bus.emit(ENDED)
    bus.flush()
    bus.flush()
    assert seen == [ENDED]
    bus.emit(ANNOUNCED)
    bus.flush()
    assert seen == [ENDED, ANNOUNCED]


def _call_of(skill: str, *, at_s: float, caller: str = "local", status: Any = "done") -> list[Event]:
    """The two events of one call of the hub."""
    at = AT + timedelta(seconds=at_s)
    principal = replace(CALL.principal, id=caller)
    call = replace(CALL, id=f"{skill}-{at_s}-{caller}", skill=skill, principal=principal)
    outcome = Outcome(call.id, skill, status, agent="retinue")
    return [ToolCallEvent(call.id, skill, {}, caller, "t", 1, at), CallEndedEvent(call, outcome, at)]


def test_of_repeated_reads_with_the_token_of_the_state_one_a_minute_is_passed_on() -> None:
    seen: list[Event] = []
    clock = FakeClock()
    observe = OncePerMinute(seen.append, monotonic=clock)
    passed = []
    for second in range(0, 125, 5):
        for skill in ("list_agents", "list_runs"):
            events_of_call = _call_of(skill, at_s=second)
            passed += events_of_call if second in (0, 60, 120) else []
            for event in events_of_call:
                observe(event)
        clock.pass_time(5)
    assert seen == passed


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_when_the_clock_was_set_repeated_reads_are_still_passed_on_once_a_minute(step_s: float) -> None:
    seen: list[Event] = []
    clock = FakeClock()
    observe = OncePerMinute(seen.append, monotonic=clock)
    calls = [_call_of("list_runs", at_s=at) for at in (0, step_s + 5, step_s + 60)]
    for call, pause_s in zip(calls, (5, 55, 0), strict=True):
        for event in call:
            observe(event)
        clock.pass_time(pause_s)
    assert seen == [*calls[0], *calls[2]]


@pytest.mark.parametrize(
    "call",
    [
        _call_of("list_agents", at_s=1, caller="token:ci"),
        _call_of("list_agents", at_s=1, status="failed"),
        _call_of("start_run", at_s=1),
    ],
    ids=["another caller", "a failure", "another skill"],
)
def test_every_other_call_is_passed_on_each_time(call: list[Event]) -> None:
    seen: list[Event] = []
    observe = OncePerMinute(seen.append)
    for event in [*_call_of("list_agents", at_s=0), *call, *call]:
        observe(event)
    assert seen[2:] == [*call, *call]


def test_a_skill_of_that_name_of_another_agent_is_passed_on_each_time() -> None:
    seen: list[Event] = []
    observe = OncePerMinute(seen.append)
    begun, ended = _call_of("list_runs", at_s=0)
    assert isinstance(ended, CallEndedEvent)
    theirs = [begun, replace(ended, outcome=replace(ended.outcome, agent="other-agent"))]
    for event in [*theirs, *theirs]:
        observe(event)
    assert seen == [*theirs, *theirs]


async def test_repeated_reads_are_left_out_of_whole_batches_as_well() -> None:
    seen: list[Event] = []
    recorded = EventBus()
    recorded.subscribe_batches(seen.extend)
    events = EventBus()
    events.subscribe(OncePerMinute(recorded.emit))
    first, again = _call_of("list_agents", at_s=0), _call_of("list_agents", at_s=5)
    for event in [*first, ANNOUNCED, *again, ENDED]:
        events.emit(event)
    recorded.flush()
    assert seen == [*first, ANNOUNCED, ENDED]
