"""Loading: what is accepted, and every fault with its line, its problem and a remedy."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import DefinitionError, UnknownWorkflowError
from retinue.workflows.definitions.definition import Definition, Step, list_calls
from retinue.workflows.definitions.loading import list_builtins, load_builtin, load_definition
from retinue.workflows.definitions.values import parse_duration, render_duration
from tests.requirements import requirement
from tests.time_bounds import Stopwatch

EVERYTHING = """
name: everything
description: one of each
version: 1.0.0
input: {type: object, properties: {requirements: {type: string}}, required: [requirements]}
steps:
  - id: plan
    skill: create_plan
    agent: plan-agent
    version: ">=1.0.0"
    with: {requirements: "${{ input.requirements }}"}
    retry: {attempts: 3, delay: 1s, backoff: 2}
    timeout: 5m
  - id: each
    parallel: {mode: all}
    steps: [{id: a, skill: x}, {id: b, skill: y, when: has(steps.plan.output.plan)}]
  - id: named
    parallel: {}
    branches: {left: [{id: c, skill: x}, {id: d, skill: y}], right: [{id: e, skill: z}]}
  - id: refine
    loop: {max: 3, until: "has(steps.check.output.failed) && steps.check.output.failed == 0"}
    steps:
      - {id: build, skill: generate_code, with: {review: "${{ loop.index > 1 ? steps.check.output : {} }}"}}
      - {id: check, skill: review_code}
output: {plan: "${{ steps.plan.output.plan }}", review: "${{ steps.check.output }}"}
"""


def fault(text: str | dict[str, Any]) -> DefinitionError:
    with pytest.raises(DefinitionError) as caught:
        load_definition(text, source="flow.yaml")
    assert caught.value.remedy
    assert caught.value.source == "flow.yaml"
    return caught.value


def with_step(step: str) -> str:
    return f"name: w\nsteps:\n  - {{id: first, skill: s}}\n  - {step}\n"


@requirement("P-29")
def test_a_definition_in_yaml_loads_and_its_canonical_form_is_the_same_definition() -> None:
    definition = load_definition(EVERYTHING)
    canonical = definition.to_json()
    assert Definition.from_json(orjson.loads(orjson.dumps(canonical))) == definition
    assert load_definition(canonical) == definition
    assert load_definition(orjson.dumps(canonical).decode()) == definition
    assert definition.steps[0].timeout_s == 300
    assert definition.steps[0].retry is not None
    assert [definition.steps[0].retry.delay_before(n) for n in (2, 3)] == [1, 2]
    assert list_calls(definition) == ("create_plan", "x", "y", "z", "generate_code", "review_code")


def test_a_step_without_a_limit_has_three_hundred_seconds() -> None:
    assert Step(id="a", skill="x").timeout_s == 300


@pytest.mark.parametrize(
    ("text", "line", "problem", "remedy"),
    [
        ("name: w\nsteps: []\n", 2, "no steps", "add at least one"),
        ("name: w\n", 1, "'steps' is missing", "add steps"),
        ("name: w\nsteps: plan\n", 2, "steps: it must be a list; it is a string", "retinue docs workflows"),
        (
            "name: w\nsteps: [plan]\n",
            2,
            "steps[0]: it must be an object; it is a string",
            "retinue docs workflows",
        ),
        ("name: 1\nsteps: [{id: a, skill: b}]\n", 1, "name: it must be a string; it is a number", "quote"),
        ("steps: [{id: a, skill: b}]\n", 1, "'name' is missing", "add name"),
        (with_step("{id: a, skill: b, with: {n: ${{ input.n }}}}"), 4, "", "put quotes around it"),
        ("name: w\nsteps: [\n", 3, "", "mend the YAML"),
        ("- a\n", 1, "no workflow", "an object"),
        ("", 0, "no workflow", "an object"),
        ("name: w\nname: w\n", 2, "key 'name' stands twice", "remove one"),
        (
            "name: w\nstepps: []\nsteps: [{id: a, skill: b}]\n",
            2,
            "unknown key 'stepps'",
            "did you mean steps?",
        ),
        (
            "name: w\nsettings: {max_duraton: 1s}\nsteps: [{id: a, skill: b}]\n",
            2,
            "unknown key 'max_duraton'",
            "did you mean max_duration?",
        ),
        (with_step("{id: a, skil: b}"), 4, "unknown key 'skil'", "did you mean skill?"),
        (with_step("{id: a, skill: b, zzzzzz: 1}"), 4, "unknown key 'zzzzzz'", "known here: id, "),
        (with_step("{id: first, skill: b}"), 4, "id 'first' is used twice", "own id"),
        (with_step("{id: 1a, skill: b}"), 4, "'1a' is no name", "letters"),
        (with_step("{id: a}"), 4, "none of them", "exactly one of skill, parallel, loop, foreach"),
        (with_step("{id: a, skill: b, loop: {max: 1}, steps: []}"), 4, "skill and loop", "exactly one"),
        (
            with_step("{id: a, skill: b, steps: [{id: c, skill: d}]}"),
            4,
            "'steps' does not belong",
            "parallel or loop",
        ),
        (with_step("{id: a, loop: {max: 2}}"), 4, "needs steps", "add steps"),
        (
            with_step("{id: a, loop: {max: 0}, steps: [{id: c, skill: d}]}"),
            4,
            "greater than or equal to 1",
            "docs",
        ),
        (
            with_step("{id: a, loop: {max: 2}, version: '1', steps: [{id: c, skill: d}]}"),
            4,
            "'version'",
            "a skill",
        ),
        (with_step("{id: a, parallel: {}}"), 4, "needs steps, branches, or a role", "add"),
        (with_step("{id: a, parallel: {}, branches: {x: []}}"), 4, "at least one step each", "add"),
        (with_step("{id: a, parallel: {mode: al}, steps: [{id: c, skill: d}]}"), 4, "'all'", "docs"),
        (with_step("{id: a, skill: b, timeout: 300}"), 4, "300 has no unit: write 300s", "docs"),
        (with_step("{id: a, skill: b, timeout: 5 minutes}"), 4, "is no duration", "docs"),
        (with_step("{id: a, skill: b, timeout: 0s}"), 4, "out of range", "docs"),
        (with_step("{id: a, skill: b, retry: {attempts: 99}}"), 4, "less than or equal to 20", "docs"),
        (
            with_step("{id: a, skill: b, retry: {attempts: 2, dellay: 1s}}"),
            4,
            "'dellay'",
            "did you mean delay?",
        ),
        (with_step("{id: a, skill: b, version: 1.0}"), 4, "must be a string; it is a number", "quote"),
        (with_step("{id: a, skill: b, with: words}"), 4, "gives no arguments", "object"),
        (with_step('{id: a, skill: b, with: {x: "${{ 1 + }}"}}'), 4, "it ends where", "CEL"),
        (with_step('{id: a, skill: b, with: {x: "${{ input.x"}}'), 4, "without its }}", "close it"),
        (
            with_step('{id: a, skill: b, with: {x: ["${{ steps.nope.output }}"]}}'),
            4,
            "no step has the id 'nope'",
            "there",
        ),
        (
            with_step('{id: a, skill: b, with: {x: "${{ steps.firts.output }}"}}'),
            4,
            "'firts'",
            "did you mean first?",
        ),
        (
            with_step('{id: a, skill: b, with: {x: "${{ steps.first.outputs }}"}}'),
            4,
            "no 'outputs'",
            "steps.first.output",
        ),
        (with_step("{id: a, skill: b, when: steps.a.output.x}"), 4, "has not run", "comes before"),
        (with_step("{id: a, skill: b, when: exec('rm')}"), 4, "there is no function exec", "CEL"),
        (with_step("{id: a, skill: b, when: loop.index == 1}"), 4, "outside a loop", "nested"),
        (
            with_step("{id: a, loop: {max: 1, until: loop.count == 1}, steps: [{id: c, skill: d}]}"),
            4,
            "no 'count'",
            "index",
        ),
        ("name: w\ninput: {type: nonsense}\nsteps: [{id: a, skill: b}]\n", 2, "input", "schema"),
        (
            "name: w\nsteps: [{id: a, skill: b}]\noutput: everything\n",
            3,
            "'everything' is no output",
            "merged",
        ),
        (
            "name: w\nsteps: [{id: a, skill: b}]\noutput: {x: '${{ steps.b.output }}'}\n",
            3,
            "'b'",
            "there are: a",
        ),
        (
            "name: w\nsteps: [{id: a-b, skill: b}]\noutput: '${{ steps.a-b.output }}'\n",
            3,
            "nothing is named",
            'steps["a-b"]',
        ),
        ("name: '../etc'\nsteps: [{id: a, skill: b}]\n", 1, "is no name", "letters"),
    ],
)
def test_a_fault_has_its_line_its_problem_and_a_remedy(
    text: str, line: int, problem: str, remedy: str
) -> None:
    found = fault(text)
    assert problem in found.message
    assert remedy in found.remedy
    assert found.line == line


@pytest.mark.parametrize(
    ("step", "problem", "remedy"),
    [
        ("{id: a, ask: true, wait_for: go}", "'ask' does not belong to a wait_for step", "with a skill"),
        ("{id: a, skill: b, ask: {timeout: 2m}}", "2m is longer than 60 s", "shorter time"),
        ("{id: a, skill: b, ask: {who: me}}", "unknown key 'who'", "known here: capabilities, timeout"),
        ("{id: a, skill: b, role: plan}", "'role' does not belong to a skill step", "step of its own"),
        ("{id: a, skill: b, prompt: x}", "'prompt' does not belong to a skill step", "role"),
        ("{id: a, skill: b, workflow: x}", "skill and workflow", "exactly one"),
        ("{id: a, skill: b, foreach: '${{ input.x }}'}", "skill and foreach", "exactly one"),
        ("{id: a, skill: b, agents: [c]}", "unknown key 'agents'", "did you mean agent?"),
        ("{id: a, role: planer}", "Unknown role: planer", "plan, execute, review"),
        ("{id: a, foreach: nothing, steps: [{id: b, skill: c}]}", "no list", "${{"),
        ("{id: a, foreach: '${{ input.x }}'}", "needs steps", "add steps"),
        ("{id: a, switch: input.x}", "needs branches", "add branches"),
        ("{id: a, switch: input.x, branches: {y: []}}", "needs branches", "add branches"),
        ("{id: a, switch: 'input.x +', branches: {y: [{id: b, skill: c}]}}", "it ends where", "CEL"),
        ("{id: a, skill: b, on_error: pray}", "stop, continue or {goto", "retinue docs workflows"),
        ("{id: a, skill: b, on_error: {goto: first}}", "a jump back to 'first'", "use loop"),
        ("{id: a, skill: b, on_error: {goto: a}}", "a jump back to 'a'", "use loop"),
        ("{id: a, skill: b, on_error: {goto: z}}", "no later step beside this one", "there are: none"),
        ("{id: a, skill: b, then: first}", "a jump back to 'first'", "use loop"),
        ("{id: a, skill: b, cache: {ttl: 3}}", "has no unit", "retinue docs workflows"),
        ("{id: a, skill: b, cache: often}", "cache is true, false or {ttl", "retinue docs workflows"),
        ("{id: a, skill: b, compensate: {skil: c}}", "unknown key 'skil'", "did you mean skill?"),
        ("{id: a, loop: {max: 2}, compensate: {skill: c}, steps: [{id: b, skill: c}]}", "loop step", "in it"),
        (
            "{id: a, parallel: {mode: race}, steps: [{id: b, skill: c, compensate: {skill: d}}]}",
            "a step of a race",
            "act on the winner",
        ),
        ("{id: a, parallel: {mode: ballot}}", "'race', 'all', 'vote' or 'merge'", "docs"),
        ("{id: a, parallel: {agents: x, k: 2}}", "'k' without a vote", "mode: vote"),
        ("{id: a, parallel: {role: plan, reviewer: x}}", "nothing to do", "vote or merge"),
        ("{id: a, parallel: {agents: [3]}}", "a list of agents' names", "docs"),
        ("{id: a, parallel: {role: plan}, steps: [{id: b, skill: c}]}", "'role' beside steps", "nested"),
        ("{id: a, parallel: {}, branches: {1x: [{id: b, skill: c}]}}", "'1x' is no name", "letters"),
        ("{id: a, wait_for: {schema: {type: object}}}", "'topic' is missing", "add topic"),
        ("{id: a, wait_for: {topic: x, schema: {$ref: 'http://x'}}}", "refused", "simplify"),
        ("{id: a, wait_for: x, with: {a: 1}}", "'with' does not belong to a wait_for", "skill, role"),
        ("{id: a, skill: b, validate: size(}", "it ends where", "CEL"),
        ("{id: a, skill: b, transform: '${{ steps.b.output }}'}", "no step has the id 'b'", "there are"),
        ("{id: a, skill: b, transform: '${{ steps.first.outpt }}'}", "has no 'outpt'", "steps.first.output"),
        ("{id: a, skill: b, when: loop.item == 1}", "loop.item outside a loop", "nested"),
        (
            "{id: a, loop: {max: 2}, steps: [{id: b, skill: c, when: loop.item == 1}]}",
            "loop.item outside a foreach",
            "loop.index",
        ),
        ("{id: a, skill: b, when: 'system(input.x)'}", "there is no function system", "CEL"),
        (
            "{id: a, skill: b, with: {x: '${{ __import__(\"os\") }}'}}",
            "there is no function __import__",
            "CEL",
        ),
    ],
)
def test_a_key_in_the_wrong_place_is_refused_with_what_would_be_right(
    step: str, problem: str, remedy: str
) -> None:
    found = fault(with_step(step))
    assert problem in found.message
    assert remedy in found.remedy
    assert found.line == 4


def test_the_first_fault_in_the_text_is_the_one_told() -> None:
    text = "name: w\nsteps:\n  - {id: a, skill: b, timeout: 3}\n  - {id: c, skil: d}\n"
    assert fault(text).line == 3


def test_a_step_sees_no_sibling_branch_but_sees_the_whole_loop_around_it() -> None:
    siblings = """
    name: w
    steps:
      - id: p
        parallel: {}
        steps:
          - {id: a, skill: x}
          - {id: b, skill: y, when: has(steps.a.output)}
    """
    found = fault(siblings)
    assert found.line == 8
    assert "has not run" in found.message
    load_definition(f"name: w\nsteps:\n- id: l\n  loop: {{max: 2}}\n  steps:{siblings.split('steps:', 1)[1]}")


def test_references_in_a_circle_are_refused() -> None:
    text = """
    name: w
    steps:
      - {id: a, skill: x, with: {v: "${{ steps.b.output }}"}}
      - {id: b, skill: x, with: {v: "${{ steps.a.output }}"}}
    """
    assert fault(text).line == 4


def bomb() -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for one, two in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{two}: &{two} [{', '.join([f'*{one}'] * 9)}]")
    return "\n".join(lines)


def deep(levels: int) -> dict[str, Any]:
    step: dict[str, Any] = {"id": f"s{levels}", "skill": "x"}
    for level in reversed(range(levels)):
        step = {"id": f"s{level}", "loop": {"max": 1}, "steps": [step]}
    return {"name": "w", "steps": [step]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (bomb(), "more than 50,000 values"),
        ("a: &a [*a]", "stands for nothing yet"),
        ("a: &a 1\nb: [" + "*a, " * 101 + "]", "more than 100 aliases"),
        ("[" * 3_000, "nested deeper than 64"),
        ('{"a":' * 3_000, "nested"),
        ("a: !!python/object/apply:os.system ['true']", "tags are not read"),
        ("name: w\nsteps:\n" + "- {id: a, skill: b}\n" * 20_000, "larger than 256 kB"),
        (
            {"name": "w", "steps": [{"id": f"s{n}", "skill": "x"} for n in range(5_000)]},
            "5,000 steps; at most 1,000",
        ),
        (deep(9), "nested deeper than 8 steps"),
        (deep(200), "nested deeper than 64 levels"),
        ({"name": "w", "steps": [{"id": "a", "skill": "b", "with": {"x": {1, 2}}}]}, "no JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_a_hostile_definition_is_refused_soon(text: Any, problem: str) -> None:
    stopwatch = Stopwatch()
    found = fault(text)
    assert problem in found.message or problem in found.remedy
    stopwatch.check(3)


def test_ten_thousand_steps_are_refused_with_the_line_of_the_first_too_many() -> None:
    text = "name: w\nsteps:\n" + "".join(f"- {{id: s{n}, skill: x}}\n" for n in range(1_500))
    found = fault(text)
    assert "1,500 steps; at most 1,000" in found.message
    assert found.line == 1_003


@given(st.text(max_size=200))
def test_no_text_crashes_the_loader(text: str) -> None:
    with pytest.raises(DefinitionError):
        load_definition(text)


PIECES = "name: w steps: - { } [ ] id: a skill: b , & * ! ' when: loop: parallel: ${{ }} metadata: 1"


@given(st.lists(st.sampled_from([*PIECES.split(), "\n"]), max_size=25).map(" ".join))
def test_no_mixture_of_pieces_crashes_the_loader(text: str) -> None:
    try:
        load_definition(text)
    except DefinitionError as error:
        assert error.remedy  # noqa: PT017  # most mixtures fail, a few are workflows


@given(st.integers(1, 10_000), st.sampled_from(["ms", "s", "m"]))
def test_a_duration_is_a_number_with_a_unit(number: int, unit: str) -> None:
    factor = {"ms": 0.001, "s": 1, "m": 60}[unit]
    assert parse_duration(f"{number}{unit}") == pytest.approx(number * factor)
    for wrong in (f"{number}", f"{number} {unit}", f"-{number}{unit}", f"{number}{unit}x", f"{unit}{number}"):
        with pytest.raises(ValueError, match="write a number with a unit"):
            parse_duration(wrong)


@given(st.integers(1, 10**9).map(lambda micros: micros / 1_000_000))
def test_a_rendered_duration_is_read_back(seconds: float) -> None:
    assert parse_duration(render_duration(seconds)) == pytest.approx(seconds, abs=1e-9)


@requirement("P-29")
def test_the_built_in_workflows_load_by_name() -> None:
    assert "plan-build-test" in list_builtins()
    for name in list_builtins():
        assert load_builtin(name).definition.name == name


def test_an_unknown_built_in_suggests_the_near_one() -> None:
    with pytest.raises(UnknownWorkflowError) as caught:
        load_builtin("plan-build-tests")
    assert caught.value.near == ("plan-build-test",)
