"""What the mesh knows is checked before a run, with the line of each finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from retinue.core.errors import SkillNotOfferedError
from retinue.workflows.definitions.loading import load
from retinue.workflows.preflight import Finding, KnownSkill, inspect_with_mesh

PLAN_INPUT = {
    "type": "object",
    "properties": {"requirements": {"type": "string"}, "rounds": {"type": "integer"}},
    "required": ["requirements"],
    "additionalProperties": False,
}
PLAN_OUTPUT = {
    "type": "object",
    "properties": {"plan": {"type": "string"}, "parts": {"$ref": "#/$defs/Parts"}},
    "additionalProperties": False,
    "$defs": {"Parts": {"type": "object", "properties": {"first": {"type": "string"}}}},
}
MESH = {
    "create_plan": KnownSkill(inputs=(PLAN_INPUT,), outputs=(PLAN_OUTPUT,)),
    "build": KnownSkill(inputs=(PLAN_INPUT, None), outputs=(PLAN_OUTPUT, None)),
    "away": KnownSkill(),
}


async def find_skill(skill: str, agent: str | None, version: str | None) -> KnownSkill:
    return MESH.get(skill) or KnownSkill(SkillNotOfferedError(skill, near=("create_plan",)))


async def inspect(text: str, nested: Mapping[str, str] | None = None, **given: Any) -> list[Finding]:
    texts = {name: load(inner, source=f"{name}.yaml") for name, inner in (nested or {}).items()}
    return await inspect_with_mesh(load(text, source="flow.yaml"), texts, find_skill, **given)


async def inspect_step(step: str, *, rest: str = "", **given: Any) -> list[tuple[str, bool]]:
    findings = await inspect(f"name: w\nsteps:\n  - {step}\n{rest}", **given)
    return [(one.fault.problem, one.blocks) for one in findings]


async def test_an_unknown_skill_has_its_place_and_near_misses() -> None:
    (finding,) = await inspect("name: w\nsteps:\n  - {id: a, skill: creat_plan}\n")
    assert (finding.fault.source, finding.fault.line, finding.fault.column) == ("flow.yaml", 3, 13)
    assert finding.fault.problem == "steps[0].skill: Unknown skill: creat_plan"
    assert finding.fault.remedy == "did you mean create_plan?"
    assert finding.blocks


async def test_a_skill_that_is_only_away_is_no_finding() -> None:
    assert await inspect_step("{id: a, skill: away, with: {anything: 1}}") == []


@pytest.mark.parametrize(
    "step",
    [
        "{id: a, skill: nope, when: has(input.x)}",
        "{id: a, skill: nope, on_error: continue}",
        "{id: a, skill: nope, on_error: {goto: b}}\n  - {id: b, wait_for: go}",
        "{id: b, wait_for: go, then: c}\n  - {id: a, skill: nope}\n  - {id: c, wait_for: go}",
        "{id: b, switch: input.x, branches: {one: [{id: a, skill: nope}]}}",
        "{id: b, parallel: {mode: race}, steps: [{id: a, skill: nope}, {id: c, skill: away}]}",
    ],
)
async def test_a_step_that_may_not_run_or_may_fail_is_a_warning(step: str) -> None:
    assert [blocks for _, blocks in await inspect_step(step)] == [False]


@pytest.mark.parametrize(
    "step",
    [
        "{id: b, loop: {max: 2}, steps: [{id: a, skill: nope}]}",
        "{id: b, foreach: [1], steps: [{id: a, skill: nope}]}",
        "{id: b, parallel: {}, steps: [{id: a, skill: nope}, {id: c, skill: away}]}",
        "{id: b, skill: away, compensate: {skill: nope}}",
    ],
)
async def test_nested_steps_and_compensations_are_checked(step: str) -> None:
    ((problem, blocks),) = await inspect_step(step)
    assert problem.endswith("skill: Unknown skill: nope")
    assert blocks


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ("{requirements: x}", []),
        (
            "{requirements: 5}",
            ["steps[0].with.requirements: create_plan refuses it: field 'requirements' must be"],
        ),
        ("{}", ["steps[0].with: create_plan refuses it: missing required field 'requirements'"]),
        ('{requirements: "${{ input }}", rounds: 2}', []),
        (
            '{requirements: "${{ input }}", rounds: x}',
            ["steps[0].with.rounds: create_plan refuses it: field 'rounds'"],
        ),
        (
            '{requirement: "${{ input }}"}',
            ["steps[0].with: create_plan", "steps[0].with.requirement: create_plan"],
        ),
        ('"${{ input }}"', []),
    ],
)
async def test_constant_arguments_are_checked_against_the_input_schema(
    arguments: str, problems: list[str]
) -> None:
    found = await inspect_step(f"{{id: a, skill: create_plan, with: {arguments}}}")
    assert len(found) == len(problems)
    for (problem, blocks), start in zip(found, problems, strict=True):
        assert problem.startswith(start)
        assert blocks


async def test_arguments_that_one_of_the_agents_may_take_are_no_finding() -> None:
    assert await inspect_step("{id: a, skill: build, with: {requirements: 5}}") == []


READ = '{{id: a, skill: create_plan}}\n  - {{id: b, skill: away, with: {{x: "${{{{ {} }}}}"}}}}'


@pytest.mark.parametrize(
    ("expression", "blocks"),
    [
        ("steps.a.output.plan", []),
        ("steps.a.output.plam", [True]),
        ("steps.a.output.plan.text", [True]),
        ("steps.a.output.parts.first", []),
        ("steps.a.output.parts.second", [False]),
        ("has(steps.a.output.plam)", []),
        ("input.x ? steps.a.output.plam : 1", [False]),
        ("steps.a.output.plam + 'x'", [True]),
    ],
)
async def test_a_key_that_no_output_has_is_found(expression: str, blocks: list[bool]) -> None:
    assert [one for _, one in await inspect_step(READ.format(expression))] == blocks


async def test_the_key_that_was_probably_meant_is_named() -> None:
    (finding,) = await inspect("name: w\nsteps:\n  - " + READ.format("steps.a.output.plam") + "\n")
    assert finding.fault.problem == "steps[1].with.x: the output of step a has no steps.a.output.plam"
    assert (finding.fault.line, finding.fault.remedy) == (4, "did you mean plan?")


async def test_outputs_that_transform_and_nested_workflows_shape_are_known() -> None:
    text = """\
name: w
steps:
  - {id: a, skill: away, transform: {x: 1}}
  - {id: n, workflow: inner, with: {who: 5}}
  - {id: s, wait_for: {topic: go, schema: {type: object, properties: {ok: {}}, additionalProperties: false}}}
output: ["${{ steps.a.output.y }}", "${{ steps.n.output.z }}", "${{ steps.s.output.no }}"]
"""
    inner = """\
name: inner
input: {type: object, properties: {who: {type: string}}}
steps:
  - {id: i, skill: nope}
output: {text: "${{ input.whom }}"}
"""
    findings = await inspect(text, {"inner": inner})
    assert [(one.fault.source, one.fault.line, one.blocks) for one in findings] == [
        ("flow.yaml", 4, True),
        ("flow.yaml", 6, True),
        ("flow.yaml", 6, True),
        ("flow.yaml", 6, True),
        ("inner.yaml", 4, True),
        ("inner.yaml", 5, True),
    ]


INPUT = "input: {type: object, properties: {who: {type: string}}}\n"


async def test_a_key_that_the_input_does_not_declare_is_found() -> None:
    step = '{id: a, skill: away, with: {x: "${{ input.whom }}"}}'
    found = await inspect_step(step, rest=INPUT)
    assert found == [("steps[0].with.x: input declares no input.whom", True)]
    assert await inspect_step(step) == []
    assert await inspect_step(step.replace("whom", "who"), rest=INPUT) == []
    assert await inspect_step(step.replace("input.whom", "has(input.whom)"), rest=INPUT) == []


async def test_a_run_looks_for_keys_in_its_own_input() -> None:
    step = '{id: a, skill: away, with: {x: "${{ input.whom.name }}"}}'
    assert await inspect_step(step, rest=INPUT, run_input={"whom": {"name": "Ada"}}) == []
    found = await inspect_step(step, rest=INPUT, run_input={"whom": {}})
    assert found == [("steps[0].with.x: the input has no input.whom.name", True)]
    guarded = '{id: a, skill: away, when: has(input.x), with: {x: "${{ input.x }}"}}'
    assert await inspect_step(guarded, run_input={}) == [("steps[0].with.x: the input has no input.x", False)]


THINK = "{id: a, think: {prompt: go, tools: %s}}"


@pytest.mark.parametrize(
    ("tools", "unknown", "blocks"),
    [
        ("[create_plan]", 0, False),
        ("[create_plan, creat_plan]", 1, False),
        ("[creat_plan, search]", 1, False),
        ("[creat_plan, other]", 2, True),
        ("[away]", 0, False),
        ("[]", 0, False),
        ("search", 0, False),
        ('"x/*"', 0, False),
    ],
)
async def test_unknown_tools_are_findings_and_refuse_a_run_only_where_none_is_left(
    tools: str, unknown: int, blocks: bool
) -> None:
    findings = await inspect_step(THINK % tools)
    assert len(findings) == unknown
    assert all(problem.startswith("steps[0].think.tools[") for problem, _ in findings)
    assert [is_blocking for _, is_blocking in findings] == [blocks] * unknown


async def test_a_glob_that_names_no_skill_is_a_finding() -> None:
    async def matches_any(pattern: str) -> bool:
        return pattern == "files/*"

    text = 'name: w\nsteps:\n  - {id: a, think: {prompt: go, tools: ["files/*", "fils/*"]}}\n'
    (finding,) = await inspect_with_mesh(load(text), {}, find_skill, matches_any=matches_any)
    assert finding.fault.problem == "steps[0].think.tools[1]: no skill is named by fils/*"
    assert not finding.blocks


async def test_a_model_that_takes_no_tools_is_a_finding() -> None:
    findings = await inspect_step("{id: a, think: {prompt: go, model: codex}}")
    assert findings == [("steps[0].think.model: agent codex takes no tools, or is unknown", False)]
    assert await inspect_step("{id: a, think: {prompt: go, model: execute}}") == []


async def test_keys_that_a_prompt_reads_are_checked() -> None:
    rest = "input: {type: object, properties: {question: {}}, additionalProperties: false}"
    findings = await inspect_step("{id: a, think: {prompt: '${{ input.quest }}'}}", rest=rest)
    assert [problem for problem, _ in findings] == ["steps[0].think.prompt: input declares no input.quest"]
