"""What the dispatch path tells about a call, a cancelled one included, and under which trace."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from retinue.core.call import LOCAL, Call, Hop, Principal, TraceContext
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.observing.events import CallEndedEvent, Event, ToolCallEvent
from tests.mesh.scripted import (
    make_call,
    make_dispatcher,
    make_listing,
    unreachable,
)
from tests.requirements import requirement

EXPOSED_ONLY = Principal("client", "token", frozenset({"exposed"}))


def observed(dispatcher: Dispatcher) -> list[Event]:
    seen: list[Event] = []
    dispatcher.admission.events.subscribe(seen.append)
    return seen


async def hang(_: Call) -> None:
    await asyncio.Event().wait()


# cancellation


async def test_a_cancelled_call_is_recorded_once_and_the_cancellation_goes_on() -> None:
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": hang})
    seen = observed(dispatcher)
    call = make_call()
    task = asyncio.create_task(dispatcher.dispatch(call))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ended = [event for event in seen if isinstance(event, CallEndedEvent)]
    assert [(e.call.id, e.outcome.error and e.outcome.error.type) for e in ended] == [(call.id, "cancelled")]
    assert ended[0].outcome.agent == "plan-agent"


# events


@requirement("P-26")
async def test_a_call_is_announced_once_before_it_runs_and_told_once_when_it_ended() -> None:
    order: list[str] = []

    async def act(_: Call) -> dict[str, str]:
        order.append("runs")
        return {"plan": ""}

    dispatcher, _, _ = make_dispatcher(
        make_listing("a"), make_listing("b"), acts={"a": unreachable("a"), "b": act}
    )
    dispatcher.admission.events.subscribe(lambda event: order.append(event.type))
    await dispatcher.dispatch(make_call())
    assert order == ["EXEC:TOOL_CALL", "runs", "CALL:ENDED"]


async def test_the_announcement_has_the_keys_of_seed_004_and_the_trace_that_the_guard_gave() -> None:
    dispatcher, _, _ = make_dispatcher()
    seen = observed(dispatcher)
    call = make_call(trace=TraceContext("abc", depth=2))
    await dispatcher.dispatch(call)
    announced = seen[0]
    assert isinstance(announced, ToolCallEvent)
    row = announced.as_json()
    assert row.pop("timestamp")
    assert row == {
        "type": "EXEC:TOOL_CALL",
        "id": call.id,
        "tool": "create_plan",
        "arguments": {"requirements": "a parser"},
        "caller": "anonymous",
        "trace_id": "abc",
        "depth": 2,
    }


@requirement("P-26")
@pytest.mark.parametrize(
    "call",
    [
        make_call("nope"),
        make_call(arguments={}),
        make_call(trace=TraceContext("t", depth=9)),
        make_call(principal=EXPOSED_ONLY),
    ],
    ids=["unknown", "bad parameters", "too deep", "hidden"],
)
async def test_a_refused_call_is_not_announced_but_told(call: Call) -> None:
    dispatcher, _, _ = make_dispatcher()
    seen = observed(dispatcher)
    await dispatcher.dispatch(call)
    assert [event.type for event in seen] == ["CALL:ENDED"]


async def test_nothing_of_a_call_is_lost_when_it_gets_its_trace() -> None:
    seen: list[Call] = []

    async def act(call: Call) -> dict[str, str]:
        seen.append(call)
        return {"plan": ""}

    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    given = TraceContext("", 2, (Hop("a", "x"),), ("h",), 9, 8.0, parent, "v=1", {"k": "v"})
    call = make_call(
        principal=LOCAL,
        trace=given,
        endpoint="a2a",
        agent="plan-agent",
        version_range=">=1",
        idempotency_key="k",
        run_step="r/1",
    )
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": act})
    assert (await dispatcher.dispatch(call)).status == "done"
    ran = seen[0]
    assert ran.deadline == pytest.approx(asyncio.get_running_loop().time() + 8, abs=1)
    assert replace(ran, trace=given, deadline=None) == call
    assert replace(ran.trace, id="") == given


async def test_a_new_chain_gets_an_id_at_depth_nought() -> None:
    dispatcher, _, _ = make_dispatcher()
    seen = observed(dispatcher)
    for _ in range(2):
        await dispatcher.dispatch(make_call())
    traces = [event.call.trace for event in seen if isinstance(event, CallEndedEvent)]
    assert len({trace.id for trace in traces}) == 2
    assert all(trace.id and trace.depth == 0 for trace in traces)
