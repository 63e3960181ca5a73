"""The budget of a run: branches divide it, steps hand back what they did not use."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import BudgetSpentError, BusyError, CallTooDeepError
from retinue.workflows.loading import load_definition
from retinue.workflows.runs import Fault, StepOutcome
from retinue.workflows.spending import Spending
from tests.requirements import requirement
from tests.workflows.running import failing, open_bench

ORIGIN = {"id": "t", "depth": 1, "calls_left": 100}


def done(calls: int) -> StepOutcome:
    return StepOutcome({"value": None, "calls": calls})


def test_a_step_gets_half_and_gives_back_what_it_did_not_use() -> None:
    spending = Spending(ORIGIN)
    for used in (0, 10, 49):
        before = 100 - spending.used
        step = spending.open_step()
        origin = step.begin()
        assert origin == {**ORIGIN, "calls_left": (before - 1) // 2}
        step.told(used)
        step.close(done(used))
        assert 100 - spending.used == before - 1 - min(used, (before - 1) // 2)


def test_a_step_of_which_nothing_is_known_keeps_its_share() -> None:
    spending = Spending(ORIGIN)
    step = spending.open_step()
    step.begin()
    step.close(StepOutcome(fault=Fault("timeout", "too late")))
    assert spending.used == 50


def test_a_recorded_step_counts_what_it_has_used_and_a_failed_one_its_share() -> None:
    spending = Spending(ORIGIN)
    spending.open_step().close(done(20))
    assert spending.used == 21
    spending.open_step().close(StepOutcome(fault=Fault("timeout", "too late")))
    assert spending.used == 21 + 1 + 39


def test_branches_get_equal_parts() -> None:
    spending = Spending(ORIGIN)
    assert spending.divide(3) == {**ORIGIN, "calls_left": 33}
    spending.settle(60)
    assert spending.divide(2) == {**ORIGIN, "calls_left": 20}


def test_with_a_spent_budget_a_call_has_less_than_nothing_and_is_left_to_the_guard() -> None:
    """Which refuses it, or says that it is too deep, where that is so."""
    spending = Spending({**ORIGIN, "calls_left": 0})
    step = spending.open_step()
    assert step.begin() == {**ORIGIN, "calls_left": -1}
    step.told(0)
    step.close(StepOutcome(fault=Fault.from_error(BudgetSpentError("calls", "x"))))
    assert spending.used == 0


@pytest.mark.parametrize("origin", [None, {"id": "t", "calls_left": None}])
def test_without_a_budget_nothing_is_bounded(origin: Any) -> None:
    spending = Spending(origin)
    step = spending.open_step()
    assert step.begin() == origin
    step.close(done(5))
    assert (spending.divide(2), spending.used) == (origin, 0)


def run_of(steps: str) -> Any:
    return load_definition(f"name: w\nsteps:\n{steps}")


async def test_no_two_branches_of_a_run_start_from_the_same_budget() -> None:
    definition = run_of(
        "- {id: a, skill: do}\n"
        "- id: p\n  parallel: {}\n  branches:\n"
        "    left: [{id: b, skill: do}, {id: c, skill: do}]\n"
        "    right: [{id: d, skill: do}]\n"
        "- {id: e, skill: do}"
    )
    async with open_bench() as bench:
        bench.offer("do", {"n": 1})
        await bench.run(definition, trace=ORIGIN)
        left = {call.idempotency_key.partition("/")[2]: call.trace for call in bench.caller.calls}
    shares = {path: trace["calls_left"] for path, trace in left.items() if trace is not None}
    # 100 → a takes one; 99 → 49 for each branch; three calls later 96
    assert shares == {"a": 49, "p.left/b": 24, "p.left/c": 23, "p.right/d": 24, "e": 47}


async def test_a_retried_step_has_what_the_first_try_left() -> None:
    async with open_bench() as bench:
        bench.offer("do", failing(BusyError("later", 1), then={"n": 1}))
        await bench.run(run_of("- {id: a, skill: do, retry: {attempts: 2, delay: 1ms}}"), trace=ORIGIN)
        assert [call.trace["calls_left"] for call in bench.caller.calls if call.trace] == [49, 49]


@requirement("S-15")
async def test_a_refusal_of_the_guard_that_a_step_met_stays_that_refusal() -> None:
    """With its message, its data and the path drawn; what step it was is added."""
    refusal = CallTooDeepError("t", 6, 5, "a:x → b:y", "a → b → a")
    async with open_bench() as bench:
        bench.offer("do", failing(refusal))
        record = await bench.run(run_of("- id: p\n  parallel: {}\n  branches: {l: [{id: b, skill: do}]}"))
        with pytest.raises(CallTooDeepError) as caught:
            record.get()
    assert caught.value.message == refusal.message
    assert caught.value.data == {**refusal.data, "step": "p.l/b"}
    assert caught.value.remedy == refusal.remedy
    assert caught.value.drawn_path == "a:x → b:y"
