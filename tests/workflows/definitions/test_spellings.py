"""The spelling of seed 001's ecosystem: the same workflow comes out, and runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import DefinitionError
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.loading import load_definition
from tests.requirements import requirement
from tests.workflows.running import Bench

PIPELINE = """
metadata:
  id: code-generation
  name: Code generation
  version: 1.0.0
  description: Plan, build and review
  tags: [code, review]
steps:
  - id: plan
    skill: create_plan
    inputs: {requirements: "{{ workflow.input.requirements }}"}
    outputs: the_plan
    timeout: 300
    step_type: sequential
  - id: build-it
    skill: generate_code
    inputs: {plan: "{{ steps.plan.outputs.plan }}", first: "{{ steps.the_plan.outputs.steps.0 }}"}
    timeout: 0.5
  - id: review
    skill: review_code
    inputs: {code: "{{ steps.build-it.outputs.code }}", note: "for {{ workflow.input.requirements }}, $5"}
"""

PARALLEL = """
metadata: {id: both}
steps:
  - id: both
    skill: parallel
    step_type: parallel
    branches:
      steps:
        - {id: a, skill: left, inputs: {}}
        - {id: b, skill: right, inputs: {x: "{{ workflow.input }}"}}
  - {id: end, skill: join, inputs: {a: "{{ steps.a.outputs }}", b: "{{ steps.b.outputs.x.n }}"}}
"""

CONDITIONAL = """
metadata: {id: pick}
steps:
  - {id: look, skill: look, inputs: {}}
  - id: pick
    skill: none
    step_type: conditional
    condition: "{{ steps.look.outputs.kind }} == 'big'"
    branches:
      if_true:
        - {id: big, skill: big, inputs: {}}
        - {id: bigger, skill: big, inputs: {}, condition: "{{ workflow.input.more }}"}
      if_false:
        - {id: small, skill: small, inputs: {}}
  - {id: end, skill: end, inputs: {}}
"""


def fault(text: str) -> DefinitionError:
    with pytest.raises(DefinitionError) as caught:
        load_definition(text, source="flow.yaml")
    assert caught.value.remedy
    return caught.value


@requirement("P-29")
async def test_a_pipeline_in_that_spelling_runs_and_gives_what_every_step_gave(bench: Bench) -> None:
    bench.offer("create_plan", {"plan": "p", "steps": ["one", "two"]})
    bench.offer("generate_code", {"code": "c"})
    bench.offer("review_code", {"review": "8/10", "feedback": "good"})
    definition = load_definition(PIPELINE)
    record = await bench.run(definition, {"requirements": "fib"})
    assert record.get() == {
        "plan": "p",
        "steps": ["one", "two"],
        "code": "c",
        "review": "8/10",
        "feedback": "good",
    }
    assert bench.arguments == [
        {"requirements": "fib"},
        {"plan": "p", "first": "one"},
        {"code": "c", "note": "for fib, $5"},
    ]
    assert (definition.name, definition.version, definition.tags) == (
        "code-generation",
        "1.0.0",
        ("code", "review"),
    )
    assert [step.timeout_s for step in definition.steps] == [300, 0.5, 300]


@requirement("P-16")
async def test_a_parallel_step_in_that_spelling_runs_its_steps_as_branches(bench: Bench) -> None:
    bench.offer("left", {"l": 1})
    bench.offer("right", lambda given: given)
    bench.offer("join", lambda given: {"joined": given})
    record = await bench.run(PARALLEL, {"n": 4})
    assert record.get()["joined"] == {"a": {"l": 1}, "b": 4}


@pytest.mark.parametrize(
    ("kind", "more", "called"),
    [
        ("big", True, ["look", "big", "big", "end"]),
        ("big", False, ["look", "big", "end"]),
        ("tiny", True, ["look", "small", "end"]),
    ],
)
async def test_a_conditional_step_becomes_two_conditions(
    bench: Bench, kind: str, more: bool, called: list[str]
) -> None:
    bench.offer("look", {"kind": kind})
    for skill in ("big", "small", "end"):
        bench.offer(skill, {skill: 1})
    await bench.run(CONDITIONAL, {"more": more})
    assert bench.called == called


def test_absent_inputs_chain_and_given_ones_do_not() -> None:
    steps = "steps: [{id: a, skill: x}, {id: b, skill: y, inputs: {}}]"
    definition = load_definition(f"metadata: {{id: w}}\n{steps}")
    assert [step.with_ for step in definition.steps] == [None, {}]


def test_a_dollar_before_a_template_stays_a_dollar() -> None:
    definition = load_definition(
        'metadata: {id: w}\nsteps: [{id: a, skill: x, inputs: {price: "${{ workflow.input.n }}"}}]'
    )
    assert definition.steps[0].with_ == {"price": "${{ '$' }}${{ input.n }}"}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (PIPELINE.replace("steps.plan.outputs.plan", "steps.plaan.outputs.plan"), 17, "'plaan'"),
        (
            PIPELINE.replace("{{ steps.plan.outputs.plan }}", "{{ steps.plan.result }}"),
            17,
            "reads nothing known",
        ),
        (PIPELINE.replace("timeout: 0.5", "timeout: soon"), 18, "is no duration"),
        (PIPELINE.replace("timeout: 0.5", "timout: 5"), 18, "unknown key 'timout'"),
        (PIPELINE.replace("timeout: 0.5", "retry: 5"), 18, "it must be an object"),
        (PIPELINE.replace("skill: review_code", "skil: review_code"), 20, "unknown key 'skil'"),
        (PIPELINE.replace("    skill: review_code\n", ""), 19, "'skill' is missing"),
        (PIPELINE + "error_handling: {on_failure: pray}\n", 22, "'pray' is no way to handle errors"),
        (PARALLEL.replace("step_type: parallel", "step_type: switch"), 4, "without a condition"),
        (PARALLEL.replace("step_type: parallel", "step_type: paralel"), 6, "unknown step_type"),
        (PARALLEL.replace("steps:\n        -", "stepz:\n        -"), 8, "unknown key 'stepz'"),
        (PARALLEL.replace("id: b, skill", "id: a, skill"), 10, "used twice"),
        (CONDITIONAL.replace("== 'big'", "=== 'big'"), 8, "= is no operator"),
        (
            CONDITIONAL.replace("    condition: \"{{ steps.look.outputs.kind }} == 'big'\"\n", ""),
            5,
            "without a condition",
        ),
        ("metadata: {}\nsteps: []\n", 1, "'id' is missing"),
        ("metadata: {id: w}\nsteps: 3\n", 2, "no list of steps"),
        ("metadata: {id: w}\nsteps: [3]\n", 2, "no step"),
    ],
)
def test_a_fault_has_the_line_of_the_text_as_written(text: str, line: int, problem: str) -> None:
    found = fault(text)
    assert problem in found.message
    assert found.line == line


@pytest.mark.parametrize("handling", ["stop", "{on_failure: stop}", "null", "{}"])
def test_error_handling_that_stops_is_what_happens_anyway(handling: str) -> None:
    load_definition(PIPELINE + f"error_handling: {handling}\n")


MARKS = "{{ }} workflow.input .x steps.a .outputs $ ' - 0 text metadata".split(" ")  # noqa: SIM905


@given(st.lists(st.sampled_from(MARKS), max_size=12).map("".join))
def test_no_template_crashes_the_reader(text: str) -> None:
    steps = [{"id": "a", "skill": "x"}, {"id": "b", "skill": "y", "inputs": {"t": text}}]
    try:
        definition = load_definition({"metadata": {"id": "w"}, "steps": steps})
    except DefinitionError as error:
        assert error.remedy  # noqa: PT017  # many mixtures are no templates
        return
    assert Definition.from_json(definition.to_json()) == definition
