"""Other agents and time limits per step (L-12)."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import InvalidParametersError, UnknownStepError
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.definitions.overrides import apply_overrides
from tests.workflows.running import Bench

DEFINITION = load_definition(
    """
    name: w
    steps:
      - {role: plan, prompt: x}
      - {prompt: y}
      - {prompt: z}
      - id: l
        loop: {max: 1}
        steps: [{id: deep, skill: tell, with: {n: 1}}]
      - {id: many, parallel: {role: execute, prompt: q}}
    """
)


def test_unnamed_steps_are_called_by_their_role() -> None:
    assert [step.id for step in DEFINITION.steps] == ["plan", "execute", "execute-2", "l", "many"]


def test_a_taken_id_is_left_to_whoever_wrote_it() -> None:
    found = load_definition(
        "name: w\nsteps: [{prompt: x}, {id: execute, skill: s}, {role: planning, prompt: x}]"
    )
    assert [step.id for step in found.steps] == ["execute-2", "execute", "plan"]


@pytest.mark.parametrize("key", ["execute-2", "3"])
def test_a_step_is_named_by_its_id_or_its_position(key: str) -> None:
    changed = apply_overrides(DEFINITION, agents={key: "gemini"}, timeouts={key: 1500})
    assert (changed.steps[2].agent, changed.steps[2].timeout_s) == ("gemini", 1.5)
    assert changed.steps[1] == DEFINITION.steps[1]


def test_nested_and_parallel_steps_can_be_changed_too() -> None:
    changed = apply_overrides(DEFINITION, agents={"deep": "a", "many": ["a", "b"]}, timeouts={"deep": "5m"})
    assert changed.steps[3].steps is not None
    assert (changed.steps[3].steps[0].agent, changed.steps[3].steps[0].timeout_s) == ("a", 300)
    assert changed.steps[4].parallel is not None
    assert changed.steps[4].parallel.agents == ["a", "b"]
    assert apply_overrides(DEFINITION) is DEFINITION


def test_the_agent_of_a_step_think_is_its_model() -> None:
    thinking = load_definition("{name: w, steps: [{id: t, think: {prompt: x}}]}")
    (step,) = apply_overrides(thinking, agents={"t": "claude"}).steps
    assert step.think is not None
    assert (step.think.model, step.agent) == ("claude", None)


@pytest.mark.parametrize("key", ["exekute", "0", "6", ""])
def test_an_unknown_key_is_refused_with_the_ids(key: str) -> None:
    with pytest.raises(UnknownStepError) as caught:
        apply_overrides(DEFINITION, agents={key: "a"})
    assert caught.value.remedy == "there are: plan, execute, execute-2, l, deep, many"


@pytest.mark.parametrize(
    ("agents", "timeouts", "problem"),
    [
        ({"l": "a"}, {}, "a loop step calls no agent itself"),
        ({"deep": ["a", "b"]}, {}, "calls one agent"),
        ({"deep": 3}, {}, "must be an agent's name"),
        ({"many": []}, {}, "must be an agent's name"),
        ({}, {"deep": "soon"}, "is no duration"),
        ({}, {"deep": 0}, "out of range"),
        ({}, {"deep": True}, "milliseconds"),
        ({}, {"deep": float("inf")}, "no duration"),
    ],
)
def test_what_a_step_cannot_take_is_refused(agents: Any, timeouts: Any, problem: str) -> None:
    with pytest.raises(InvalidParametersError, match=problem):
        apply_overrides(DEFINITION, agents=agents, timeouts=timeouts)


async def test_an_overridden_agent_is_the_one_called(bench: Bench) -> None:
    for name in ("one", "two"):
        bench.offer("do", name, agent=name, roles=["execute"], score=0.5 if name == "two" else 0.9)
    definition = load_definition("name: w\nsteps: [{prompt: x}]")
    assert (await bench.run(definition)).get() == "one"
    assert (await bench.run(apply_overrides(definition, agents={"1": "two"}))).get() == "two"
