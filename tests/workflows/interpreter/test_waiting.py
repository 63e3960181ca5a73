"""An agent that is away, or whose circuit is open, is waited for: by retries and by compensations."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import (
    AgentUnreachableError,
    BusyError,
    CircuitOpenError,
    NotAllowedError,
    SkillNotOfferedError,
    StepFailedError,
    UnknownAgentError,
)
from retinue.workflows.interpreter.saga import WAIT_S
from tests.requirements import requirement
from tests.workflows.running import Bench, failing

ONE = "name: w\nsteps:\n- {id: s, skill: work, with: {n: 1}%s}\n"
SAGA = """
name: saga
steps:
- {id: reserve, skill: reserve, with: {n: 1}, compensate: {skill: free, with: {n: 1}}}
- {id: pay, skill: pay, with: {n: 1}}
"""


def refused() -> AgentUnreachableError:
    return AgentUnreachableError("work-agent", "http://127.0.0.1:1", "connection refused")


def always(error: Exception) -> Any:
    def answer(_: Any) -> Any:
        raise error

    return answer


@requirement("P-31")
@pytest.mark.parametrize(
    "away",
    [
        lambda: CircuitOpenError("work-agent", 5, "connection refused"),
        refused,
        lambda: UnknownAgentError("work-agent"),
        lambda: AgentUnreachableError.clocks_differ("work-agent", "http://127.0.0.1:1", 120.0),
    ],
    ids=["circuit open", "unreachable", "not listed", "another time"],
)
async def test_a_step_with_retry_waits_for_its_agent_and_uses_no_attempt(bench: Bench, away: Any) -> None:
    bench.offer("work", failing(*[away() for _ in range(9)], then={"n": 2}))
    record = await bench.run(ONE % ", retry: {attempts: 2}", run_id="r")
    assert record.get() == {"n": 2}
    assert {call.idempotency_key for call in bench.caller.calls} == {"r/s"}


@requirement("P-31")
@pytest.mark.parametrize(
    "unlisted",
    [SkillNotOfferedError("work", unasked=["team"]), UnknownAgentError("work-agent", unasked=["team"])],
)
async def test_a_step_with_retry_waits_for_a_registry_that_cannot_be_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, unlisted: Exception
) -> None:
    bench.offer("work", {"n": 2})
    choose, unread = bench.caller.choose, [unlisted] * 9

    async def look_up(*asked: Any) -> Any:
        if unread:
            raise unread.pop()
        return await choose(*asked)

    monkeypatch.setattr(bench.caller, "choose", look_up)
    record = await bench.run(ONE % ", retry: {attempts: 2}", run_id="r")
    assert record.get() == {"n": 2}
    assert len(bench.slept) == 9


async def test_a_step_with_retry_does_not_wait_for_a_skill_that_no_registry_lists(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_up(*_: Any) -> Any:
        raise SkillNotOfferedError("work")

    bench.offer("work", {"n": 2})
    monkeypatch.setattr(bench.caller, "choose", look_up)
    assert (await bench.run(ONE % ", retry: {attempts: 2}", run_id="r")).status == "failed"
    assert bench.slept == []


async def test_an_agent_that_dies_in_the_call_it_was_waited_for_costs_one_attempt(bench: Bench) -> None:
    died = AgentUnreachableError("work-agent", "http://127.0.0.1:1", "reset", sent=True)
    bench.offer("work", failing(refused(), refused(), refused(), died, then={"n": 2}))
    assert (await bench.run(ONE % ", retry: {attempts: 2}", run_id="r")).get() == {"n": 2}
    assert [call.idempotency_key for call in bench.caller.calls] == ["r/s"] * 5


async def test_an_open_circuit_is_waited_for_as_long_as_it_says(bench: Bench) -> None:
    bench.offer("work", failing(*[CircuitOpenError("work-agent", 4.5)] * 2, then=1))
    assert (await bench.run(ONE % ", retry: {attempts: 2}")).get() == 1
    assert bench.slept == [4.5]


async def test_the_time_of_the_step_bounds_the_wait_and_ends_all_attempts(bench: Bench) -> None:
    """The time of all its attempts."""
    bench.offer("work", always(CircuitOpenError("work-agent", 5, "connection refused")))
    with pytest.raises(StepFailedError, match=r"Circuit open .* \(waited 1 min 55 s\)") as caught:
        (await bench.run(ONE % ", timeout: 20s, retry: {attempts: 5}", run_id="r")).get()
    # five attempts of 20 s, and 1 + 2 + 4 + 8 s between them
    assert sum(bench.slept) == 115
    assert caught.value.remedy == "try again in 5 s; then run again: retinue rerun r --from s"


async def test_a_step_without_retry_fails_at_once(bench: Bench) -> None:
    bench.offer("work", always(CircuitOpenError("work-agent", 5)))
    with pytest.raises(StepFailedError, match="Circuit open"):
        (await bench.run(ONE % "")).get()
    assert bench.slept == []


async def test_the_circuit_of_a_trace_is_final(bench: Bench) -> None:
    bench.offer("work", always(CircuitOpenError("trace t", 60, "refused", {"trace_id": "t"})))
    assert (await bench.run(ONE % ", retry: {attempts: 5}")).status == "failed"
    assert (bench.called, bench.slept) == (["work"], [])


async def test_an_open_circuit_further_down_is_a_failed_attempt_of_an_agent_that_got_its_call(
    bench: Bench,
) -> None:
    relayed = CircuitOpenError.relay("Circuit open for other", {"type": "circuit_open", "retry_after_s": 3})
    bench.offer("work", failing(relayed, then=1))
    assert (await bench.run(ONE % ", retry: {attempts: 2}", run_id="r")).get() == 1
    assert [call.idempotency_key for call in bench.caller.calls] == ["r/s", "r/s@2"]


async def test_a_step_whose_agent_stays_away_says_so_and_names_what_to_do(bench: Bench) -> None:
    bench.offer("work", always(UnknownAgentError("work-agent")))
    record = await bench.run(ONE % "", run_id="r")
    with pytest.raises(StepFailedError, match="agent work-agent is away and not listed") as caught:
        record.get()
    assert caught.value.cause["type"] == "agent_unreachable"
    assert "retinue rerun r --from s" in caught.value.remedy
    assert "start work-agent again" in caught.value.remedy


@requirement("P-31")
async def test_a_compensation_waits_ten_minutes_for_its_agent_and_undoes(bench: Bench) -> None:
    undone: list[Any] = []
    states = [CircuitOpenError("free-agent", 5)] * 118

    def free(given: Any) -> None:
        if states:
            raise states.pop()
        undone.append(given)

    bench.offer("reserve", {"ref": 1})
    bench.offer("free", free)
    bench.offer("pay", failing(NotAllowedError("no money")))
    record = await bench.run(SAGA)
    assert record.fault is not None
    assert [one["ok"] for one in record.fault.data["compensated"]] == [True]
    assert undone == [{"n": 1}]
    assert "undo" not in record.fault.data
    assert sum(bench.slept) < WAIT_S


@requirement("P-31")
async def test_a_failed_run_is_resumed_to_undo_what_is_left_and_nothing_else(bench: Bench) -> None:
    bench.offer("reserve", {"ref": 1})
    bench.offer("free", failing(*[BusyError("full", 0)] * 3))
    bench.offer("pay", failing(NotAllowedError("no money")))
    record = await bench.run(SAGA, run_id="r")
    assert record.is_half_undone
    with pytest.raises(StepFailedError, match="no money") as caught:
        record.get()
    assert "finish the undoing: retinue resume r" in caught.value.remedy
    await bench.runs.resume("r")
    record = await bench.runs.finish("r")
    assert record.status == "failed"
    assert not record.is_half_undone
    assert record.fault is not None
    (told,) = record.fault.data["compensated"]
    assert (told["step"], told["ok"], sorted(told)) == ("reserve", True, ["agent", "ok", "skill", "step"])
    assert bench.called == ["reserve", "pay", *["free"] * 4]
    keys = [call.idempotency_key for call in bench.caller.calls if call.skill == "free"]
    assert keys == ["r/reserve/undo", "r/reserve/undo@2", "r/reserve/undo@3", "r/reserve/undo@4"]
    assert (await bench.runs.resume("r")).status == "failed"


async def test_what_is_left_to_undo_of_branches_and_nested_items_is_undone_by_their_run(bench: Bench) -> None:
    undone: list[Any] = []
    refusals = [BusyError("full", 0)] * 9

    def free(given: Any) -> None:
        if refusals:
            raise refusals.pop()
        undone.append(given["n"])

    bench.offer("reserve", {"ref": 1})
    bench.offer("free", free)
    bench.offer("pay", always(NotAllowedError("no money")))
    record = await bench.run(
        """
        name: w
        steps:
        - {id: a, skill: reserve, with: {}, compensate: {skill: free, with: {n: a}}}
        - id: p
          parallel: {}
          branches:
            x:
            - {id: b, skill: reserve, with: {}, compensate: {skill: free, with: {n: x}}}
            - {id: pay, skill: pay, with: {}}
            y:
            - {id: c, skill: reserve, with: {}, compensate: {skill: free, with: {n: y}}}
            - {id: buy, skill: pay, with: {}}
        """,
        run_id="r",
    )
    assert record.is_half_undone
    assert undone == []
    await bench.runs.resume("r")
    record = await bench.runs.finish("r")
    assert not record.is_half_undone
    assert sorted(undone) == ["a", "x", "y"]
