"""What a failed step leads to: it stops the run, is data for what follows, or leads elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import BusyError, NotAllowedError, StepFailedError
from tests.requirements import requirement
from tests.workflows.running import Bench, failing


async def test_a_failed_step_that_may_be_passed_over_is_data_for_the_next(bench: Bench) -> None:
    bench.offer("break", failing(NotAllowedError("not you")))
    bench.offer("tell", lambda given: given)
    record = await bench.run(
        """
        name: w
        steps:
          - {id: a, skill: break, on_error: continue}
          - id: b
            skill: tell
            with:
              failed: "${{ has(steps.a.error) }}"
              output: "${{ has(steps.a.output) }}"
              type: "${{ steps.a.error.type }}"
              agent: "${{ steps.a.error.agent }}"
              step: "${{ steps.a.error.step }}"
              message: "${{ steps.a.error.message }}"
        """
    )
    assert record.get() == {
        "failed": True,
        "output": False,
        "type": "not_allowed",
        "agent": "break-agent",
        "step": "a",
        "message": "not you",
    }
    handled = [e.facts for e in await bench.events(record.id) if e.facts.get("kind") == "handled"]
    assert handled[0]["on_error"] == "continue"


GOTO = """
name: w
steps:
  - {id: a, skill: break, on_error: {goto: mend}}
  - {id: never, skill: tell}
  - {id: mend, skill: tell, with: {why: "${{ has(steps.a.error) ? steps.a.error.message : 'nothing' }}"}}
  - {id: last, skill: tell, with: {n: 1}}
output: {mended: "${{ steps.mend.output.why }}", last: "${{ steps.last.output.n }}"}
"""


@pytest.mark.parametrize(
    ("answer", "called", "why"),
    [
        (failing(ValueError("broken")), ["break", "tell", "tell"], "broken"),
        ({"fine": True}, ["break", "tell", "tell", "tell"], "nothing"),
    ],
)
async def test_a_failed_step_can_lead_to_a_later_one(
    bench: Bench, answer: Any, called: list[str], why: str
) -> None:
    bench.offer("break", answer)
    bench.offer("tell", lambda given: given)
    record = await bench.run(GOTO)
    assert record.get() == {"mended": why, "last": 1}
    assert bench.called == called


async def test_a_done_step_can_lead_past_others(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    record = await bench.run(
        """
        name: w
        steps:
          - {id: a, skill: tell, with: {n: 1}, then: c}
          - {id: b, skill: tell, with: {n: 2}}
          - {id: c, skill: tell, with: {n: 3}}
        """
    )
    assert record.get() == {"n": 3}
    assert bench.arguments == [{"n": 1}, {"n": 3}]


async def test_the_settings_say_what_holds_for_steps_that_say_nothing(bench: Bench) -> None:
    bench.offer("break", failing(*[ValueError("x")] * 9))
    bench.offer("flaky", failing(BusyError("full", 0), then={"n": 1}))
    record = await bench.run(
        """
        name: w
        settings: {on_error: continue, retry: {attempts: 2, delay: 1s}}
        steps:
          - {id: a, skill: break}
          - {id: b, skill: flaky}
          - {id: c, skill: break, on_error: stop}
          - {id: d, skill: flaky}
        """
    )
    with pytest.raises(StepFailedError, match="step c "):
        record.get()
    assert bench.called == ["break", "break", "flaky", "flaky", "break", "break"]


async def test_a_failure_inside_a_loop_is_the_loops_own_unless_it_is_taken_there(bench: Bench) -> None:
    bench.offer("break", failing(*[ValueError("x")] * 9))
    bench.offer("tell", lambda given: given)
    record = await bench.run(
        """
        name: w
        steps:
          - id: l
            loop: {max: 3}
            on_error: continue
            steps: [{id: a, skill: break}]
          - id: m
            loop: {max: 2}
            steps:
              - {id: b, skill: break, on_error: continue}
              - {id: c, skill: tell, with: {n: "${{ loop.index }}"}}
        output: {l: "${{ steps.l.error.step }}", m: "${{ steps.m.output.n }}"}
        """
    )
    assert record.get() == {"l": "l#1.a", "m": 2}
    assert bench.called == ["break", "break", "tell", "break", "tell"]


async def test_a_failing_branch_is_data_too(bench: Bench) -> None:
    bench.offer("break", failing(ValueError("x")))
    bench.offer("tell", {"n": 1})
    record = await bench.run(
        """
        name: w
        steps:
          - id: p
            parallel: {mode: all}
            on_error: continue
            steps: [{id: a, skill: break}, {id: b, skill: tell}]
        output: "${{ steps.p.error.step }}"
        """
    )
    assert record.get() == "p.a/a"


async def test_a_condition_that_cannot_be_told_is_a_failure_of_its_step_as_well(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    record = await bench.run(
        """
        name: w
        steps:
          - {id: a, skill: tell, when: input.absent == 1, on_error: continue}
          - {id: b, skill: tell, with: {t: "${{ steps.a.error.type }}"}}
        """
    )
    assert record.get() == {"t": "expression_error"}


@requirement("L-35")
async def test_an_answer_that_breaks_its_validation_is_asked_for_again(bench: Bench) -> None:
    answers = [{"n": 1}, {"n": 5}]
    bench.offer("tell", lambda given: answers.pop(0))
    record = await bench.run(
        """
        name: w
        steps:
          - id: a
            skill: tell
            retry: {attempts: 3, delay: 1s}
            validate: steps.a.output.n > 3
            transform: {got: "${{ steps.a.output.n + 1 }}"}
        """
    )
    assert record.get() == {"got": 6}
    assert bench.slept == [1.0]


async def test_an_answer_that_stays_invalid_fails_the_step(bench: Bench) -> None:
    bench.offer("tell", {"n": 1})
    record = await bench.run("name: w\nsteps: [{id: a, skill: tell, validate: steps.a.output.n > 3}]")
    with pytest.raises(StepFailedError, match=r"does not fulfil steps.a.output.n > 3") as caught:
        record.get()
    assert caught.value.cause["type"] == "output_validation_error"


async def test_the_output_of_a_whole_loop_can_be_validated_and_transformed(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    steps = 'loop: {max: 2}, steps: [{id: a, skill: tell, with: {n: "${{ loop.index }}"}}]'
    good = await bench.run(
        f"name: w\nsteps: [{{id: l, {steps}, validate: steps.l.output.n == 2,"
        " transform: '${{ steps.l.output.n }}'}]"
    )
    assert good.get() == 2
    bad = await bench.run(f"name: w\nsteps: [{{id: l, {steps}, validate: steps.l.output.n == 1}}]")
    with pytest.raises(StepFailedError, match="step l failed"):
        bad.get()


async def test_an_output_that_breaks_the_workflows_schema_fails_the_run(bench: Bench) -> None:
    bench.offer("tell", {"n": 1})
    record = await bench.run(
        """
        name: w
        steps: [{id: a, skill: tell}]
        output_schema: {type: object, required: [total]}
        """
    )
    with pytest.raises(StepFailedError, match=r"step output failed: .*missing required field 'total'"):
        record.get()
