"""The interpreter over the in-memory runs: order, chaining, branches, loops, failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.core.call import TraceContext
from retinue.core.errors import (
    BusyError,
    CallTimedOutError,
    ExecutionFailedError,
    NotAllowedError,
    StepFailedError,
)
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.runs.records import Origin
from tests.requirements import requirement
from tests.workflows.running import Bench, failing


def object_schema(*required: str, optional: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    names = (*required, *optional)
    return {"type": "object", "properties": {name: {} for name in names}, "required": list(required), **more}


PIPELINE = """
name: pipeline
steps:
  - {id: plan, skill: create_plan}
  - {id: build, skill: generate_code}
  - {id: review, skill: review_code}
"""


def offer_pipeline(bench: Bench) -> None:
    bench.offer("create_plan", {"plan": "1. fib"}, input_schema=object_schema("requirements"))
    bench.offer(
        "generate_code", {"code": "def fib"}, input_schema=object_schema("plan", optional=("review",))
    )
    bench.offer(
        "review_code",
        {"review": "Code quality score: 8/10", "feedback": "good"},
        input_schema=object_schema("code"),
    )


@requirement("P-15")
async def test_a_sequence_chains_exactly_the_declared_fields_of_the_nearest_output(bench: Bench) -> None:
    offer_pipeline(bench)
    record = await bench.run(PIPELINE, {"requirements": "Fibonacci", "noise": 1})
    assert record.get() == {"review": "Code quality score: 8/10", "feedback": "good"}
    assert bench.arguments == [{"requirements": "Fibonacci"}, {"plan": "1. fib"}, {"code": "def fib"}]


@requirement("P-15")
async def test_each_agent_is_looked_up_just_before_its_call(bench: Bench) -> None:
    offer_pipeline(bench)
    record = await bench.run(PIPELINE, {"requirements": "x"})
    started = [e.step for e in await bench.events(record.id) if e.kind == "step_started"]
    assert started == ["plan/choose", "plan", "build/choose", "build", "review/choose", "review"]


async def test_merged_output_holds_what_every_step_gave_the_later_winning(bench: Bench) -> None:
    offer_pipeline(bench)
    bench.offer("review_code", {"review": "r", "plan": "revised"}, input_schema=object_schema("code"))
    record = await bench.run(PIPELINE + "output: merged\n", {"requirements": "x"})
    assert record.get() == {"plan": "revised", "code": "def fib", "review": "r"}


async def test_the_whole_output_is_sent_where_the_schema_declares_no_properties(bench: Bench) -> None:
    bench.offer("a", {"x": 1, "y": 2})
    bench.offer("b", lambda given: given)
    record = await bench.run({"name": "w", "steps": [{"id": "a", "skill": "a"}, {"id": "b", "skill": "b"}]})
    assert record.get() == {"x": 1, "y": 2}


async def test_the_whole_output_is_sent_where_additional_properties_are_allowed_explicitly(
    bench: Bench,
) -> None:
    bench.offer("a", {"x": 1, "y": 2})
    bench.offer("b", lambda given: given, input_schema=object_schema("x", additionalProperties=True))
    record = await bench.run({"name": "w", "steps": [{"id": "a", "skill": "a"}, {"id": "b", "skill": "b"}]})
    assert record.get() == {"x": 1, "y": 2}


@requirement("P-15")
async def test_a_missing_required_field_comes_from_earlier_outputs_nearest_first(bench: Bench) -> None:
    bench.offer("a", {"plan": "old", "only": "a"})
    bench.offer("b", {"plan": "new"})
    bench.offer("c", {"other": 1})
    bench.offer("d", lambda given: given, input_schema=object_schema("plan", "only", "goal"))
    steps = [{"id": name, "skill": name} for name in "abcd"]
    record = await bench.run({"name": "w", "steps": steps}, {"goal": "g", "plan": "input"})
    assert record.get() == {"plan": "new", "only": "a", "goal": "g"}


async def test_a_field_found_nowhere_fails_the_step_and_says_where_it_was_looked_for(bench: Bench) -> None:
    bench.offer("a", {"x": 1})
    bench.offer("b", {}, input_schema=object_schema("plan"))
    record = await bench.run({"name": "w", "steps": [{"id": "a", "skill": "a"}, {"id": "b", "skill": "b"}]})
    assert record.status == "failed"
    with pytest.raises(StepFailedError) as caught:
        record.get()
    assert caught.value.step == "b"
    assert caught.value.agent == "b-agent"
    assert (
        caught.value.cause["message"]
        == "step b: b needs 'plan', which is not in the outputs of a or the workflow's input"
    )
    assert "with: {plan: …}" in caught.value.remedy
    assert bench.called == ["a"]


async def test_with_is_templated_however_deep_and_keeps_types(bench: Bench) -> None:
    bench.offer("a", {"n": 3, "list": [1, {"k": None}]})
    bench.offer("b", lambda given: given)
    record = await bench.run(
        """
        name: w
        steps:
          - {id: a, skill: a}
          - id: b
            skill: b
            with:
              n: ${{ steps.a.output.n }}
              text: "n is ${{ steps.a.output.n }} of ${{ input.total }}"
              deep: [{list: "${{ steps.a.output.list }}"}, "plain", 4]
              json: "got ${{ steps.a.output.list }}"
        """,
        {"total": 9.5},
    )
    assert record.get() == {
        "n": 3,
        "text": "n is 3 of 9.5",
        "deep": [{"list": [1, {"k": None}]}, "plain", 4],
        "json": 'got [1,{"k":null}]',
    }


async def test_an_absent_key_fails_the_step_by_name(bench: Bench) -> None:
    bench.offer("a", {})
    record = await bench.run(
        {"name": "w", "steps": [{"id": "a", "skill": "a", "with": {"x": "${{ input.nothing }}"}}]}
    )
    with pytest.raises(StepFailedError, match=r"step a failed: .*key 'nothing' is absent"):
        record.get()
    assert bench.called == []


async def test_a_step_whose_condition_does_not_hold_is_skipped_and_seen(bench: Bench) -> None:
    bench.offer("a", {"failed": 0})
    bench.offer("b", {"b": 1})
    record = await bench.run(
        """
        name: w
        steps:
          - {id: a, skill: a}
          - {id: b, skill: b, when: steps.a.output.failed > 0}
        """
    )
    assert record.get() == {"failed": 0}
    skipped = [e for e in await bench.events(record.id) if e.facts.get("kind") == "skip"]
    assert [e.step for e in skipped] == ["b", "b"]
    assert bench.called == ["a"]


@pytest.mark.parametrize(
    ("when", "problem"),
    [("input.absent == 1", "key 'absent' is absent"), ("input.n", "gives an int, not true or false")],
)
async def test_a_condition_that_cannot_be_told_fails_its_step(bench: Bench, when: str, problem: str) -> None:
    bench.offer("a", {})
    record = await bench.run({"name": "w", "steps": [{"id": "a", "skill": "a", "when": when}]}, {"n": 1})
    with pytest.raises(StepFailedError, match=problem):
        record.get()


LOOP = """
name: w
steps:
  - id: refine
    loop: {max: 3, until: steps.check.output.failed == 0}
    steps:
      - id: build
        skill: build
        with:
          round: ${{ loop.index }}
          review: "${{ has(steps.check.output) ? steps.check.output : {} }}"
      - {id: check, skill: check}
output: {rounds: "${{ steps.build.output.round }}", loop: "${{ steps.refine.output }}"}
"""


async def test_a_loop_repeats_until_its_condition_and_sees_the_round_before(bench: Bench) -> None:
    bench.offer("build", lambda given: given)
    bench.offer("check", lambda given: {"failed": 2 - given["round"]})
    record = await bench.run(LOOP)
    assert record.get() == {"rounds": 2, "loop": {"failed": 0}}
    builds = [call.arguments for call in bench.caller.calls if call.skill == "build"]
    assert builds == [{"round": 1, "review": {}}, {"round": 2, "review": {"failed": 1}}]
    steps = [
        e.step
        for e in await bench.events(record.id)
        if e.kind == "step_started" and e.facts["kind"] == "call"
    ]
    assert steps == ["refine#1.build", "refine#1.check", "refine#2.build", "refine#2.check"]


async def test_a_loop_ends_after_its_last_round_even_if_the_condition_never_holds(bench: Bench) -> None:
    bench.offer("build", lambda given: given)
    bench.offer("check", {"failed": 1})
    record = await bench.run(LOOP)
    assert record.get()["rounds"] == 3


PARALLEL = """
name: w
steps:
  - {id: seed, skill: seed}
  - id: each
    parallel: {mode: all}
    branches:
      left:
        - {id: a, skill: a}
        - {id: b, skill: b}
      right:
        - {id: c, skill: c, with: {n: "${{ steps.seed.output.n }}"}}
  - {id: end, skill: end, with: {a: "${{ steps.a.output }}", each: "${{ steps.each.output }}"}}
"""


@requirement("P-16")
async def test_branches_run_side_by_side_and_their_outputs_are_seen_afterwards(bench: Bench) -> None:
    met = asyncio.Barrier(2)

    async def meet(arguments: Any) -> Any:
        async with asyncio.timeout(60):
            await met.wait()
        return {"got": arguments}

    bench.offer("seed", {"n": 7})
    bench.offer("a", meet)
    bench.offer("b", lambda given: {"b": given})
    bench.offer("c", meet)
    bench.offer("end", lambda given: given)
    record = await bench.run(PARALLEL, run_id="r")
    assert record.get() == {
        "a": {"got": {"n": 7}},
        "each": {"left": {"b": {"got": {"n": 7}}}, "right": {"got": {"n": 7}}},
    }
    keys = {call.skill: call.idempotency_key for call in bench.caller.calls}
    assert keys == {
        "seed": "r/seed",
        "a": "r/each.left/a",
        "b": "r/each.left/b",
        "c": "r/each.right/c",
        "end": "r/end",
    }
    children = [r.id for r in await bench.runs.list_all(children=True) if r.parent_id == "r"]
    assert sorted(children) == ["r/each.left", "r/each.right"]


async def test_nested_steps_of_a_parallel_step_are_its_branches(bench: Bench) -> None:
    bench.offer("a", {"v": 1})
    bench.offer("b", {"v": 2})
    record = await bench.run(
        """
        name: w
        steps:
          - id: each
            parallel: {}
            steps: [{id: x, skill: a}, {id: y, skill: b}]
        """
    )
    assert record.get() == {"x": {"v": 1}, "y": {"v": 2}}


async def test_a_failing_branch_fails_the_run_by_the_path_of_its_step(bench: Bench) -> None:
    bench.offer("seed", {"n": 1})
    bench.offer("a", {})
    bench.offer("b", failing(ValueError("broken")))
    bench.offer("c", {})
    record = await bench.run(PARALLEL)
    with pytest.raises(
        StepFailedError, match=r"step each\.left/b \(agent b-agent\) failed: broken"
    ) as caught:
        record.get()
    assert caught.value.cause["type"] == "execution_error"
    assert "end" not in bench.called


async def test_a_parallel_step_inside_a_loop_sees_the_round_before(bench: Bench) -> None:
    bench.offer("a", lambda given: {"n": given["n"] + 1})
    record = await bench.run(
        """
        name: w
        steps:
          - id: rounds
            loop: {max: 3}
            steps:
              - id: each
                parallel: {mode: all}
                steps:
                  - {id: x, skill: a, with: {n: "${{ has(steps.x.output) ? steps.x.output.n : 0 }}"}}
                  - {id: y, skill: a, with: {n: "${{ loop.index * 10 }}"}}
        """
    )
    assert record.get() == {"x": {"n": 3}, "y": {"n": 31}}


async def test_a_branch_skipped_in_this_round_gives_nothing_of_the_round_before(bench: Bench) -> None:
    bench.offer("a", lambda given: given)
    record = await bench.run(
        """
        name: w
        steps:
          - id: rounds
            loop: {max: 2}
            steps:
              - id: each
                parallel: {mode: all}
                steps:
                  - {id: x, skill: a, when: loop.index == 1, with: {round: "${{ loop.index }}"}}
                  - {id: y, skill: a, with: {round: "${{ loop.index }}"}}
        output: {each: "${{ steps.each.output }}", x: "${{ steps.x.output }}"}
        """
    )
    assert record.get() == {"each": {"x": None, "y": {"round": 2}}, "x": {"round": 1}}


@requirement("P-31")
async def test_a_failure_that_may_pass_is_tried_again_with_growing_delays(bench: Bench) -> None:
    bench.offer("a", failing(BusyError("full", 1), ExecutionFailedError("odd"), then={"ok": True}))
    step = {"id": "a", "skill": "a", "retry": {"attempts": 3, "delay": "500ms", "backoff": 3}}
    record = await bench.run({"name": "w", "steps": [step]}, run_id="r")
    assert record.get() == {"ok": True}
    assert bench.slept == [0.5, 1.5]
    assert [call.idempotency_key for call in bench.caller.calls] == ["r/a", "r/a@2", "r/a@3"]
    assert bench.caller.looked_up == ["a"]


async def test_a_failure_that_cannot_pass_is_not_tried_again(bench: Bench) -> None:
    bench.offer("a", failing(NotAllowedError("no"), then={}))
    record = await bench.run({"name": "w", "steps": [{"id": "a", "skill": "a", "retry": {"attempts": 3}}]})
    assert record.status == "failed"
    assert len(bench.called) == 1


async def test_a_skill_that_nobody_offers_fails_the_run_by_its_step(bench: Bench) -> None:
    record = await bench.run({"name": "w", "steps": [{"id": "a", "skill": "nobody"}]})
    with pytest.raises(StepFailedError, match="step a failed: Unknown skill: nobody") as caught:
        record.get()
    assert caught.value.cause["type"] == "skill_not_offered"


async def test_an_unreachable_agent_is_replaced_once_under_the_same_key(bench: Bench) -> None:
    bench.offer("a", {"by": "first"}, agent="first")
    bench.offer("a", {"by": "second"}, agent="second")
    bench.caller.break_connection("first")
    record = await bench.run({"name": "w", "steps": [{"id": "a", "skill": "a"}]}, run_id="r")
    assert record.get() == {"by": "second"}
    assert [(c.agent, c.idempotency_key) for c in bench.caller.calls] == [("first", "r/a"), ("second", "r/a")]


async def test_a_named_agent_is_never_replaced(bench: Bench) -> None:
    bench.offer("a", {}, agent="first")
    bench.offer("a", {}, agent="second")
    bench.caller.break_connection("first")
    record = await bench.run({"name": "w", "steps": [{"id": "a", "skill": "a", "agent": "first"}]})
    with pytest.raises(StepFailedError, match=r"step a \(agent first\) failed: .*unreachable"):
        record.get()


async def test_a_step_over_its_time_limit_is_cut_off_and_says_which_setting(bench: Bench) -> None:
    cut = asyncio.Event()

    async def hang(_: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    bench.offer("a", hang)
    record = await bench.run({"name": "w", "steps": [{"id": "a", "skill": "a", "timeout": "20ms"}]})
    assert cut.is_set()
    with pytest.raises(StepFailedError) as caught:
        record.get()
    assert caught.value.cause["type"] == CallTimedOutError.type
    assert caught.value.cause["data"]["setting"] == "timeout of step a"


async def test_a_result_that_is_no_json_fails_its_step(bench: Bench) -> None:
    bench.offer("a", {"x": float("nan")})
    record = await bench.run({"name": "w", "steps": [{"id": "a", "skill": "a"}]})
    with pytest.raises(StepFailedError, match="NaN and infinity are not JSON"):
        record.get()


async def test_events_carry_agent_skill_time_and_error(bench: Bench) -> None:
    bench.offer("a", failing(ValueError("broken")))
    record = await bench.run({"name": "w", "steps": [{"id": "a", "skill": "a"}]})
    events = await bench.events(record.id)
    finished = next(e for e in events if e.kind == "step_finished" and e.facts["kind"] == "call")
    assert finished.facts["agent"] == "a-agent"
    assert finished.facts["skill"] == "a"
    assert finished.facts["duration_ms"] >= 0
    assert finished.facts["error"]["message"] == "broken"
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert events[-1].kind == "run_finished"
    assert events[-1].facts["status"] == "failed"


async def test_the_trace_reaches_every_call_of_every_branch(bench: Bench) -> None:
    for skill in ("seed", "a", "b", "c", "end"):
        bench.offer(skill, {"n": 1})
    origin = Origin(frozenset({"mesh"}), "caller", TraceContext("t", depth=1, trusted=True))
    await bench.run(PARALLEL, origin=origin)
    assert [call.origin for call in bench.caller.calls] == [origin] * 5


async def test_an_output_that_cannot_be_built_fails_the_run(bench: Bench) -> None:
    bench.offer("a", {})
    record = await bench.run(
        {"name": "w", "steps": [{"id": "a", "skill": "a"}], "output": {"x": "${{ steps.a.output.x }}"}}
    )
    with pytest.raises(StepFailedError, match=r"step output failed: .*key 'x' is absent"):
        record.get()


async def test_a_long_sequence_runs(bench: Bench) -> None:
    bench.offer("a", lambda given: {"n": given["n"] + 1}, input_schema=object_schema("n"))
    steps = [{"id": f"s{index}", "skill": "a"} for index in range(200)]
    record = await bench.run({"name": "w", "steps": steps}, {"n": 0})
    assert record.get() == {"n": 200}


async def test_cancelling_a_run_cuts_off_the_calls_of_every_branch(bench: Bench) -> None:
    begun = asyncio.Barrier(3)
    cut: list[str] = []

    def hang(name: str) -> Any:
        async def answer(_: Any) -> Any:
            try:
                await begun.wait()
                await asyncio.Event().wait()
            finally:
                cut.append(name)

        return answer

    bench.offer("seed", {"n": 1})
    bench.offer("a", hang("a"))
    bench.offer("c", hang("c"))
    started = await bench.orchestrator.start(load_definition(PARALLEL), {})
    async with asyncio.timeout(60):
        await begun.wait()
        record = await bench.runs.cancel(started.id)
    assert record.status == "cancelled"
    assert sorted(cut) == ["a", "c"]
    assert "end" not in bench.called
