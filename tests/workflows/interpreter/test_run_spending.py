"""What a run may spend on models: divided among steps and branches, counted once, exact after each replay."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from retinue.core.allowance import Allowance, Amount
from retinue.core.call import Answer, TraceContext, TraceExtension
from retinue.core.usage import amount_of
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.call_budget import CallBudget, StepBudget
from retinue.workflows.runs.records import ChildOutcome, ChildRun, Fault, Origin, StepOutcome
from tests.requirements import requirement
from tests.workflows.running import Bench, open_bench

ORIGIN = Origin(allowance=Allowance(8_000, 800_000))
FAILED = Fault("timeout", "too late")


def perform(
    step: StepBudget, usage: Any = None, *, earlier: int = 0, fault: Fault | None = None
) -> StepOutcome:
    """Make a call that reports this usage; None = it gave no answer."""
    begin = step.count.begin
    assert begin is not None
    begin(earlier)
    step.begin()
    if usage is not None:
        step.record_usage(0, usage)
    outcome = step.count.record(StepOutcome(fault=fault))
    step.count.close(outcome)
    return outcome


def test_a_step_returns_what_it_did_not_spend_and_the_next_one_has_it() -> None:
    budget = CallBudget(ORIGIN)
    assert budget.open_step().begin().allowance == Allowance(7_000, 700_000)
    perform(budget.open_step(), {"input_tokens": 500, "cost_usd": 0.1})
    assert budget.allowance == Allowance(7_500, 700_000)
    perform(budget.open_step(Allowance(900, 90)))
    assert budget.allowance == Allowance(6_600, 699_910), "without an answer the share counts as spent"
    assert amount_of(budget.usage) == Amount(1_400, 100_090)


def test_a_step_may_have_exactly_what_it_reserves_down_to_the_rest() -> None:
    budget = CallBudget(ORIGIN)
    assert budget.open_step(Allowance(1_000, None)).begin().allowance == Allowance(1_000, 800_000)
    assert budget.open_step(Allowance(10**6, 5)).begin().allowance == Allowance(8_000, 5)
    assert CallBudget(Origin()).open_step(Allowance(9, None)).begin().allowance == Allowance(9, None)


def test_interrupted_attempts_count_with_their_share_and_the_next_one_gets_what_is_left() -> None:
    budget = CallBudget(ORIGIN)
    outcome = perform(budget.open_step(Allowance(3_000, 0)), {"output_tokens": 10}, earlier=2)
    assert outcome.usage == {"output_tokens": 10, "reserved_tokens": 6_000}
    step = budget.open_step(Allowance(3_000, 0))
    begin = step.count.begin
    assert begin is not None
    begin(1)
    assert step.begin().allowance == Allowance(0, 0)


def test_a_narrowed_part_spends_from_the_whole_and_can_be_extended() -> None:
    budget = CallBudget(ORIGIN)
    perform(budget.open_step(), {"output_tokens": 1_000, "cost_usd": 0.0})
    part = budget.narrow(tokens=2_000)
    assert part.allowance is not None
    assert part.allowance.tokens == 2_000
    perform(part.open_step(), {"output_tokens": 500, "cost_usd": 0.1})
    assert part.allowance.tokens == 1_500
    assert (budget.allowance or Allowance()).tokens == 6_500
    part.settle_share(part.divide(3), 0, {"output_tokens": 400})
    assert part.allowance.tokens == 1_100
    part.extend(tokens=10_000, dollars=0.2)
    assert part.allowance == Allowance(6_100, 100_000), "not more than the whole has, and less what it spent"
    assert amount_of(part.usage).tokens == 900
    assert amount_of(budget.usage).tokens == 1_900


def test_a_part_with_limits_in_a_run_without_limits_counts_for_the_run() -> None:
    budget = CallBudget(Origin())
    part = budget.narrow(tokens=100)
    assert part.divide(2).allowance == Allowance(50, None)
    perform(part.open_step(), {"output_tokens": 40})
    assert part.allowance == Allowance(60, None)
    assert budget.allowance is None
    assert amount_of(budget.usage) == Amount(40)


def test_branches_get_equal_parts_and_one_that_tells_nothing_keeps_its_part() -> None:
    budget = CallBudget(ORIGIN)
    part = budget.divide(4)
    assert part.allowance == Allowance(2_000, 200_000)
    child = ChildRun("r/a", "a")
    budget.settle_branch(part, ChildOutcome(child, "done", usage={"output_tokens": 10, "cost_usd": 0.01}))
    budget.settle_branch(part, ChildOutcome(child, "done", usage={}))
    assert budget.allowance == Allowance(7_990, 790_000)
    budget.settle_branch(part, ChildOutcome(child, "cancelled"))
    budget.settle_branch(part, None)
    assert budget.allowance == Allowance(3_990, 390_000)


@pytest.mark.parametrize("seed", range(20))
def test_a_body_that_is_walked_again_from_its_record_has_spent_what_it_had(seed: int) -> None:
    dice = random.Random(seed)
    first, again = CallBudget(ORIGIN), CallBudget(ORIGIN)
    for _ in range(12):
        usage = dice.choice(
            [None, {}, {"output_tokens": dice.randrange(900)}, {"cost_usd": dice.randrange(9) / 100}]
        )
        most = dice.choice([None, Allowance(dice.randrange(1_000), None)])
        outcome = perform(
            first.open_step(most), usage, earlier=dice.choice([0, 0, 1]), fault=dice.choice([None, FAILED])
        )
        again.open_step(most).count.close(StepOutcome(**_recorded(outcome)))
        assert again.allowance == first.allowance
    assert again.open_step().begin() == first.open_step().begin()


def _recorded(outcome: StepOutcome) -> dict[str, Any]:
    return {"value": outcome.value, "calls": outcome.calls, "usage": outcome.to_json().get("usage")}


@requirement("S-13")
def test_the_origin_of_a_run_keeps_its_limits_and_fields_of_a_newer_release() -> None:
    trace = TraceContext("t", trusted=True, extension=TraceExtension(Allowance(5, None), {"joules_left": 7}))
    origin = Origin(trace=trace, allowance=Allowance(5, None))
    read = Origin.from_json(origin.to_json())
    assert (read.tokens_left, read.dollars_left) == (5, None)
    assert read.trace is not None
    assert read.trace.extension == TraceExtension(None, {"joules_left": 7})
    assert "allowance" not in Origin().to_json()


# runs


class Spender:
    """A skill that spends all that it may on models, or what it is told to."""

    def __init__(self, bench: Bench, spends: float = 1.0) -> None:
        self.spent = 0
        self._bench = bench
        self._part = spends

    async def __call__(self, arguments: Any) -> Answer:
        origin = self._bench.caller.calls[-1].origin
        tokens = int((origin.tokens_left or 0) * self._part)
        self.spent += tokens
        await asyncio.sleep(0)
        return Answer({"n": tokens}, usage={"output_tokens": tokens})


STEPS = """
name: w
steps:
  - {id: a, skill: do}
  - id: p
    parallel: {}
    branches:
      left: [{id: b, skill: do}, {id: c, skill: do}]
      right: [{id: d, skill: do}]
  - id: f
    foreach: {in: [1, 2, 3]}
    steps: [{id: e, skill: do}]
  - {id: g, skill: do}
"""


@pytest.mark.parametrize("part", [1.0, 0.5, 0.0])
async def test_a_run_spends_no_more_than_it_was_given_and_says_what(part: float) -> None:
    async with open_bench() as bench:
        spender = Spender(bench, part)
        bench.offer("do", spender)
        record = await bench.run(load_definition(STEPS), origin=Origin(allowance=Allowance(10_000, None)))
    assert record.status == "done"
    assert spender.spent <= 10_000
    assert amount_of(record.usage).tokens == spender.spent
    assert record.usage is not None


async def test_without_limits_a_run_sums_what_its_steps_reported_all_the_same() -> None:
    async with open_bench() as bench:
        bench.offer("do", lambda arguments: Answer({}, usage={"output_tokens": 5, "model": "m"}))
        record = await bench.run(load_definition(STEPS))
        assert amount_of(record.usage) == Amount(8 * 5)
        bench.offer("do", {"n": 1})
        assert (await bench.run(load_definition(STEPS))).usage is None


@requirement("S-14")
@pytest.mark.parametrize("kills", range(1, 12))
async def test_a_run_that_is_stopped_in_any_call_never_spends_more_and_counts_what_was_lost(
    kills: int,
) -> None:
    """Each attempt spends all of its share; what the stopped ones spent is counted, nobody reported it."""
    async with open_bench() as bench:
        spender = Spender(bench)
        begun = 0

        async def do(arguments: Any) -> Any:
            nonlocal begun
            begun += 1
            answer = await spender(arguments)
            if begun in (kills, kills + 1):
                asyncio.get_running_loop().create_task(bench.runs.cancel("r"))
                await asyncio.Event().wait()
            return answer

        bench.offer("do", do)
        steps = "".join(f"  - {{id: s{n}, skill: do}}\n" for n in range(8))
        await bench.orchestrator.start(
            load_definition(f"name: w\nsteps:\n{steps}"),
            {},
            run_id="r",
            origin=Origin(allowance=Allowance(10_000, None)),
        )
        for _ in range(3):
            record = await bench.runs.finish("r")
            if record.status == "cancelled":
                await bench.runs.resume("r")
        record = await bench.runs.finish("r")
    assert record.status == "done"
    assert spender.spent <= 10_000
    assert amount_of(record.usage).tokens == spender.spent, "exact, since each attempt spends its whole share"
