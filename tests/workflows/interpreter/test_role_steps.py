"""Steps that ask for a role: who is asked, and where the prompt goes (specification 7.3)."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import StepFailedError
from tests.requirements import requirement
from tests.workflows.running import Bench

TEXT = {"type": "string"}


def takes(*required: str, **properties: Any) -> dict[str, Any]:
    known = dict.fromkeys(required, TEXT) | properties
    return {"type": "object", "properties": known, "required": list(required)}


def echo(given: Any) -> Any:
    return {"got": given}


@requirement("L-30")
async def test_the_best_agent_for_the_role_is_called_by_its_skill(bench: Bench) -> None:
    bench.offer("weak_plan", echo, agent="weak", roles=["plan"], score=0.4)
    bench.offer("good_plan", echo, agent="good", roles=["plan"], score=0.9)
    bench.offer("do", echo, agent="doer", roles=["execute"], score=1.0)
    record = await bench.run("name: w\nsteps: [{role: plan, prompt: 'Plan ${{ input.x }}'}]", {"x": "it"})
    assert record.get() == {"got": {"prompt": "Plan it"}}
    assert [(call.agent, call.skill) for call in bench.caller.calls] == [("good", "good_plan")]


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (None, {"prompt": "go"}),
        (takes("prompt"), {"prompt": "go"}),
        (takes(prompt=TEXT, style=TEXT), {"prompt": "go"}),
        (takes("requirements"), {"requirements": "go"}),
        (takes("requirements", files={"type": "array"}), {"requirements": "go"}),
        (takes("prompt", "language"), {"prompt": "go", "language": "Python"}),
        (
            {"type": "object", "properties": {"n": {"type": "integer"}, "t": TEXT}, "required": ["n", "t"]},
            {"n": 3, "t": "go"},
        ),
        ({"$ref": "#/$defs/x", "$defs": {"x": takes("task")}}, {"task": "go"}),
    ],
)
async def test_the_prompt_goes_to_prompt_or_to_the_only_required_text(
    bench: Bench, schema: Any, arguments: Any
) -> None:
    bench.offer("do", echo, roles=["execute"], input_schema=schema)
    record = await bench.run("name: w\nsteps: [{prompt: go}]", {"language": "Python", "n": 3})
    assert record.get() == {"got": arguments}


async def test_an_agent_with_no_place_for_a_prompt_is_said_to_have_none(bench: Bench) -> None:
    bench.offer("do", echo, roles=["execute"], input_schema=takes("a", "b"))
    with pytest.raises(StepFailedError, match="do of do-agent has no place for a prompt") as caught:
        (await bench.run("name: w\nsteps: [{prompt: go}]")).get()
    assert "call it by skill" in caught.value.remedy


async def test_without_a_prompt_fields_are_chained_and_texts_are_quoted(bench: Bench) -> None:
    bench.offer("plan", {"plan": "1. fib"}, roles=["plan"], input_schema=takes("requirements"))
    bench.offer("build", echo, agent="b", roles=["execute"], input_schema=takes("plan"))
    bench.offer("talk", lambda given: "fine", agent="t", roles=["review"], input_schema=takes("prompt"))
    record = await bench.run(
        "name: w\nsteps: [{role: plan}, {role: execute}, {role: review}]", {"prompt": "Fibonacci"}
    )
    assert record.get() == "fine"
    assert bench.arguments[0] == {"requirements": "Fibonacci"}
    assert bench.arguments[1] == {"plan": "1. fib"}
    assert bench.arguments[2]["prompt"].startswith("Fibonacci\n\n[begin of the result of step execute, ")
    assert "1. fib" in bench.arguments[2]["prompt"]


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("{role: plan, prompt: x}", "No available agent has the role plan"),
        ("{agent: nobody, prompt: x}", "Unknown agent: nobody"),
        ("{agent: planner, prompt: x}", "Agent planner does not have the role execute"),
        ("{role: '${{ input.role }}', prompt: x}", "Unknown role: cook"),
    ],
)
async def test_who_cannot_be_asked_is_told_clearly(bench: Bench, step: str, problem: str) -> None:
    bench.offer("do", echo, agent="doer", roles=["execute"])
    bench.offer("idle", echo, agent="planner")
    with pytest.raises(StepFailedError, match=problem) as caught:
        (await bench.run(f"name: w\nsteps: [{step}]", {"role": "cook"})).get()
    assert caught.value.remedy
    assert bench.called == []


async def test_a_named_agent_that_does_not_answer_is_not_replaced(bench: Bench) -> None:
    bench.offer("do", echo, agent="mute", roles=["execute"], score=0.1)
    bench.offer("do", echo, agent="other", roles=["execute"], score=0.9)
    bench.caller.break_connection("mute")
    with pytest.raises(StepFailedError, match=r"agent mute .* is unreachable"):
        (await bench.run("name: w\nsteps: [{agent: mute, prompt: x}]")).get()


async def test_an_agent_chosen_by_score_that_does_not_answer_is_replaced_once(bench: Bench) -> None:
    bench.offer("do", echo, agent="mute", roles=["execute"], score=0.9)
    bench.offer("do", echo, agent="other", roles=["execute"], score=0.1)
    bench.caller.break_connection("mute")
    await bench.run("name: w\nsteps: [{prompt: x}]")
    assert [call.agent for call in bench.caller.calls] == ["mute", "other"]


async def test_role_and_agent_can_come_from_the_input(bench: Bench) -> None:
    for name in ("one", "two"):
        bench.offer("look", name, agent=name, roles=["review"], score=0.5)
    text = "name: w\nsteps: [{role: '${{ input.role }}', agent: '${{ input.agent }}', prompt: x}]"
    assert (await bench.run(text, {"role": "review", "agent": "two"})).get() == "two"
    assert (await bench.run(text, {"role": "review", "agent": "auto"})).get() == "one"


async def test_an_answer_can_be_read_as_text_whatever_its_form(bench: Bench) -> None:
    bench.offer("do", {"text": "said"}, roles=["execute"])
    record = await bench.run("name: w\nsteps: [{prompt: x}]\noutput: '${{ steps.execute.text }}'")
    assert record.get() == "said"


@pytest.mark.parametrize("nothing", [None, "", " \n", {}, [], {"text": ""}, {"a": [None, ""]}])
async def test_an_agent_that_returns_nothing_to_a_prompt_has_not_succeeded(
    bench: Bench, nothing: Any
) -> None:
    bench.offer("do", lambda given: nothing, roles=["execute"])
    record = await bench.run("name: w\nsteps: [{prompt: x, retry: {attempts: 2, delay: 1s}}]")
    with pytest.raises(StepFailedError, match="do returned nothing") as caught:
        record.get()
    assert caught.value.cause["type"] == "empty_output"
    assert len(bench.called) == 2
    allowed = await bench.run("name: w\nsteps: [{prompt: x, allow_empty: true}]")
    assert allowed.get() == nothing


@pytest.mark.parametrize("schema", [None, {}, {"type": "string"}, {"type": "object"}])
@pytest.mark.parametrize("nothing", [None, " "])
async def test_a_skill_that_returns_nothing_has_not_succeeded(
    bench: Bench, nothing: Any, schema: Any
) -> None:
    bench.offer("do", lambda given: nothing, output_schema=schema)
    with pytest.raises(StepFailedError, match="do returned nothing"):
        (await bench.run("name: w\nsteps: [{id: a, skill: do}]")).get()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "null"},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "object"}, {"type": "null"}]},
        {"const": None},
    ],
)
async def test_a_skill_whose_schema_says_so_may_return_null(bench: Bench, schema: Any) -> None:
    bench.offer("do", lambda given: None, output_schema=schema)
    assert (await bench.run("name: w\nsteps: [{id: a, skill: do}]")).get() is None


@pytest.mark.parametrize("something", [{}, [], 0, False, {"found": []}])
async def test_an_empty_list_is_an_answer_of_a_skill(bench: Bench, something: Any) -> None:
    bench.offer("do", lambda given: something)
    assert (await bench.run("name: w\nsteps: [{id: a, skill: do}]")).get() == something
