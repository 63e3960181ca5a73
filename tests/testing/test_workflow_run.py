"""Workflows in tests: over agents, scripted skills and signals."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue import (
    Agent,
    AgentUnreachableError,
    BusyError,
    CallTimedOutError,
    DefinitionError,
    InvalidParametersError,
    InvalidSettingError,
    OutputInvalidError,
    VersionConflictError,
)
from retinue.testing import in_turn, run_workflow, scripted_peer

ITEMS = """
name: items
steps:
  - {id: list, skill: list_items}
  - id: each
    foreach: "${{ steps.list.output }}"
    steps:
      - {id: ask, wait_for: {topic: "approve"}}
output: {items: "${{ steps.list.output }}"}
"""


async def test_a_list_as_a_script_is_refused_with_the_forms_to_write() -> None:
    with pytest.raises(InvalidSettingError) as refused:
        scripted_peer("store", list_items=["a", "b"])
    assert (
        refused.value.message
        == "scripted_peer store: list_items: a list may be one answer, or an answer for each call"
    )
    assert refused.value.remedy == (
        "write in_turn('a', 'b') for one answer a call, or lambda arguments: ['a', 'b'] for a list"
    )
    with pytest.raises(InvalidSettingError, match="list_items"):
        await run_workflow(ITEMS, skills={"list_items": ["a", "b"]})


async def test_waits_in_branches_are_answered_each() -> None:
    run = await run_workflow(
        ITEMS, skills={"list_items": lambda arguments: ["a", "b"]}, signals={"approve": in_turn(True, False)}
    )
    assert run.get() == {"items": ["a", "b"]}


async def test_a_run_that_would_be_refused_is_refused_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "items.yaml"
    file.write_text(ITEMS)
    with pytest.raises(DefinitionError) as refused:
        await run_workflow(file, skills={"list_item": 1})
    assert refused.value.message == "items.yaml:4: steps[0].skill: Unknown skill: list_items"
    assert refused.value.remedy == "did you mean list_item?"


async def test_agents_have_their_roles_and_scores() -> None:
    first, second = Agent("first", scores={"planning": 0.2}), Agent("second", scores={"planning": 0.9})
    for agent in (first, second):

        @agent.skill("plan", roles=["plan"])
        def plan(prompt: str) -> str:
            """Plans."""
            return f"plan: {prompt}"

    run = await run_workflow(
        {"name": "p", "steps": [{"role": "plan", "prompt": "${{ input.what }}"}]},
        {"what": "x"},
        agents=[first, second],
    )
    assert (run.get(), run.agents) == ("plan: x", ["second"])


async def test_nested_workflows_are_given_as_texts() -> None:
    inner = 'name: inner\nsteps:\n  - {id: a, skill: double, with: {n: "${{ input.n }}"}}\n'
    outer = {"name": "outer", "steps": [{"id": "in", "workflow": "inner", "with": {"n": 2}}]}
    run = await run_workflow(
        outer, {}, skills={"double": lambda given: given["n"] * 2}, workflows={"inner": inner}
    )
    assert run.get() == 4


def test_errors_are_made_from_what_they_tell_first() -> None:
    assert CallTimedOutError("measure", 5).timeout_s == 5
    assert AgentUnreachableError("ruler").message == "agent ruler is unreachable: it does not answer"
    assert InvalidParametersError(["text is empty"]).message == "text is empty"
    assert "too long" in OutputInvalidError("measure", ["too long"]).message
    assert BusyError("measure").retry_after_s == 1
    assert VersionConflictError("ruler", ">=2").offered == ()
