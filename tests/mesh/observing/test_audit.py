"""The audit log: what is kept of each call, newest first; one suite for every implementation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from retinue.core.call import Call, TraceContext
from retinue.mesh.observing.events import EventBus, LateBeginnings, ToolCallEvent, now, record_calls
from tests.mesh.scripted import make_call, make_dispatcher
from tests.requirements import requirement
from tests.support.memory_audit import MemoryAudit


@pytest.fixture
def audit() -> MemoryAudit:
    return MemoryAudit(keep=3)


def test_the_newest_rows_come_first(audit: MemoryAudit) -> None:
    for number in range(3):
        audit.append({"n": number})
    assert [row["n"] for row in audit.recent(2)] == [2, 1]
    assert [row["n"] for row in audit.recent(10)] == [2, 1, 0]
    assert list(audit.recent(0)) == []


def test_only_so_many_rows_are_kept() -> None:
    audit = MemoryAudit(keep=2)
    for number in range(5):
        audit.append({"n": number})
    assert [row["n"] for row in audit.recent(9)] == [4, 3]


def test_a_row_stays_as_it_was_appended(audit: MemoryAudit) -> None:
    row = {"n": 1}
    audit.append(row)
    row["n"] = 2
    assert audit.recent(1)[0]["n"] == 1


@requirement("P-26")
async def test_every_call_leaves_its_rows_and_no_secret(audit: MemoryAudit) -> None:
    events = EventBus()
    events.subscribe(record_calls(audit.append))
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": {"plan": "hunter2"}}, events=events)
    await dispatcher.dispatch(make_call(arguments={"requirements": "hunter2"}))
    await dispatcher.dispatch(make_call("nope", trace=TraceContext("t")))
    rows = list(audit.recent(10))
    assert [row["type"] for row in rows] == ["CALL:ENDED", "CALL:ENDED", "EXEC:TOOL_CALL"]
    assert [row.get("status") for row in rows] == ["refused", "done", None]
    assert "hunter2" not in str(rows)


async def test_a_call_leaves_a_second_row_only_if_it_takes_long(audit: MemoryAudit) -> None:
    written = asyncio.Event()

    def append(row: Mapping[str, Any]) -> None:
        audit.append(row)
        written.set()

    async def plan(call: Call) -> dict[str, str]:
        async with asyncio.timeout(30):
            await written.wait()
        return {"plan": "1. read"}

    events = EventBus()
    events.subscribe(LateBeginnings(record_calls(append), after_s=0.01))
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": plan}, events=events)
    await dispatcher.dispatch(make_call())
    assert [row["type"] for row in audit.recent(9)] == ["CALL:ENDED", "EXEC:TOOL_CALL"]


async def test_calls_that_nobody_sees_end_leave_their_beginning(audit: MemoryAudit) -> None:
    rows = LateBeginnings(record_calls(audit.append), after_s=3_600)
    events = EventBus()
    events.subscribe(rows)
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": {"plan": "p"}}, events=events)
    await dispatcher.dispatch(make_call())
    rows(ToolCallEvent("1", "create_plan", {}, "local", "t", 0, now()))
    rows.close()
    assert [row["type"] for row in audit.recent(9)] == ["EXEC:TOOL_CALL", "CALL:ENDED"]
