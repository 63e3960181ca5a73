"""The budget of a run: branches divide it, steps hand back what they did not use."""

from __future__ import annotations

import random
from typing import Any

import pytest

from retinue.core.call import TraceContext
from retinue.core.errors import BudgetSpentError, BusyError, CallTooDeepError, InvalidRequestError
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.call_budget import CallBudget
from retinue.workflows.runs.records import ChildOutcome, ChildRun, Fault, Origin, StepOutcome
from tests.requirements import requirement
from tests.workflows.running import failing, open_bench

ORIGIN = Origin(trace=TraceContext("t", depth=1, calls_left=100))


FAILED = Fault("timeout", "too late")


def done(calls: int | None) -> StepOutcome:
    return StepOutcome({"value": None}, calls=calls)


def test_a_step_gets_half_and_gives_back_what_it_did_not_use() -> None:
    budget = CallBudget(ORIGIN)
    for used in (0, 10, 49):
        before = 100 - (budget.used or 0)
        step = budget.open_step()
        origin = step.begin()
        assert origin == ORIGIN.with_budget((before - 1) // 2)
        step.record_usage(used)
        step.count.close(done(step.calls))
        assert 100 - (budget.used or 0) == before - 1 - min(used, (before - 1) // 2)


def test_a_step_of_which_nothing_is_known_keeps_its_share() -> None:
    budget = CallBudget(ORIGIN)
    step = budget.open_step()
    step.begin()
    assert step.calls is None
    step.count.close(StepOutcome(fault=FAILED))
    assert budget.used == 50


def test_a_recorded_step_counts_what_it_has_used_and_its_share_where_that_is_not_known() -> None:
    budget = CallBudget(ORIGIN)
    budget.open_step().count.close(done(21))
    budget.open_step().count.close(StepOutcome(fault=FAILED, calls=4))
    assert budget.used == 25
    budget.open_step().count.close(done(None))
    assert budget.used == 25 + 1 + 37


def test_a_step_that_sent_nothing_has_used_nothing() -> None:
    budget = CallBudget(ORIGIN)
    step = budget.open_step()
    assert step.calls == 0
    step.count.close(done(0))
    assert budget.used == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_body_that_is_walked_again_from_its_record_has_used_what_it_had_used_the_first_time(
    seed: int,
) -> None:
    """And gives each step the same share, so that a run which moves never starts from more than it has."""
    dice = random.Random(seed)
    first, again = CallBudget(ORIGIN), CallBudget(ORIGIN)
    for _ in range(12):
        step = first.open_step()
        if dice.random() < 0.9:
            share = step.begin().calls_left or 0
            if dice.random() < 0.7:
                step.record_usage(dice.randrange(max(share, 0) + 3))
        outcome = StepOutcome(fault=dice.choice([None, FAILED]), calls=step.calls)
        step.count.close(outcome)
        again.open_step().count.close(outcome)
        assert again.used == first.used
    assert again.open_step().begin() == first.open_step().begin()


def test_branches_get_equal_parts() -> None:
    budget = CallBudget(ORIGIN)
    part = budget.divide(4)
    assert part == ORIGIN.with_budget(25)
    child = ChildRun("r/a", "a")
    budget.settle_branch(part, ChildOutcome(child, "done", calls=10))
    budget.settle_branch(part, ChildOutcome(child, "failed", calls=5))
    assert budget.used == 15


@pytest.mark.parametrize("ended", [ChildOutcome(ChildRun("r/a", "a"), "failed"), None])
def test_a_branch_that_does_not_tell_what_it_used_keeps_its_part(ended: ChildOutcome | None) -> None:
    budget = CallBudget(ORIGIN)
    budget.settle_branch(budget.divide(4), ended)
    assert budget.used == 25


def test_with_a_spent_budget_a_call_has_less_than_nothing_and_is_left_to_the_guard() -> None:
    """Which refuses it, or says that it is too deep, where that is so."""
    budget = CallBudget(ORIGIN.with_budget(0))
    step = budget.open_step()
    assert step.begin() == ORIGIN.with_budget(-1)
    step.record_usage(0)
    assert step.calls == 0
    step.count.close(StepOutcome(fault=Fault.from_error(BudgetSpentError("calls", "x")), calls=0))
    assert budget.used == 0


@pytest.mark.parametrize("origin", [Origin(), Origin(trace=TraceContext("t"))])
def test_without_a_budget_nothing_is_bounded(origin: Origin) -> None:
    budget = CallBudget(origin)
    step = budget.open_step()
    assert step.begin() == origin
    assert step.calls is None
    step.count.close(done(None))
    assert (budget.divide(2), budget.used) == (origin, None)


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
        await bench.run(definition, origin=ORIGIN)
        left = {call.idempotency_key.partition("/")[2]: call.origin for call in bench.caller.calls}
    shares = {path: origin.calls_left for path, origin in left.items()}
    # 100 → a takes one; 99 → 49 for each branch; three calls later 96
    assert shares == {"a": 49, "p.left/b": 24, "p.left/c": 23, "p.right/d": 24, "e": 47}


async def test_a_retried_step_has_what_the_first_try_left() -> None:
    async with open_bench() as bench:
        bench.offer("do", failing(BusyError("later", 1), then={"n": 1}))
        await bench.run(run_of("- {id: a, skill: do, retry: {attempts: 2, delay: 1ms}}"), origin=ORIGIN)
        assert [call.origin.calls_left for call in bench.caller.calls] == [49, 49]


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


@pytest.mark.parametrize(
    ("steps", "used"),
    [
        ("- {id: a, skill: do}\n- {id: b, skill: do}", 2),
        ("- {id: a, skill: do}\n- {id: b, skill: bad}", 2),
        ("- {id: a, skill: do, compensate: {skill: do}}\n- {id: b, skill: bad}", 3),
        ("- id: p\n  parallel: {}\n  branches: {l: [{id: a, skill: do}], r: [{id: b, skill: bad}]}", 2),
        ("- {id: a, skill: do, cache: true}\n- {id: b, skill: do, when: 'false'}", 1),
        ("- id: f\n  foreach: {in: [1, 2, 3]}\n  steps: [{id: a, skill: do}]", 3),
    ],
)
async def test_a_run_says_at_its_end_what_it_used_whether_it_is_done_or_failed(steps: str, used: int) -> None:
    async with open_bench() as bench:
        bench.offer("do", {"n": 1})
        bench.offer("bad", failing(*[InvalidRequestError("no")] * 9))
        record = await bench.run(run_of(steps), origin=ORIGIN)
        assert (record.calls, len(bench.called)) == (used, used)
        assert (await bench.run(run_of(steps))).calls is None


async def test_what_is_kept_of_a_whole_workflow_costs_no_call() -> None:
    definition = load_definition("name: w\nsettings: {cache: workflow}\nsteps: [{id: a, skill: do}]")
    async with open_bench() as bench:
        bench.offer("do", {"n": 1})
        assert [(await bench.run(definition, origin=ORIGIN)).calls for _ in range(2)] == [1, 0]
