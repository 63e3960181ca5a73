"""A test's own caller and peers: they answer as scripted, and keep what they are told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from retinue import (
    Agent,
    CannotAskError,
    Context,
    ExecutionFailedError,
    InputRefusedError,
    InputRequiredError,
    RetinueError,
)
from retinue.authoring.forms import make_form
from retinue.core.errors import InvalidSettingError
from retinue.mesh.channel import Root
from retinue.testing.scripted_caller import DECLINED, ScriptedCaller
from retinue.testing.scripted_peer import in_turn, scripted_peer


class Meal(Enum):
    VEGAN = "vegan"
    FISH = "fish"


@dataclass
class Traveller:
    name: str
    meal: Meal = Meal.VEGAN
    age: int | None = None


class Order(BaseModel):
    count: int = Field(ge=1, description="How many")


def asking_agent() -> Agent:
    agent = Agent("asking-agent")

    @agent.skill
    async def book(ctx: Context) -> str:
        await ctx.progress(0.5, "half")
        await ctx.log("asking", data={"n": 1})
        traveller = await ctx.elicit("Who travels?", Traveller)
        seat: Any = await ctx.elicit("Which seat?", Literal["aisle", "window"])
        return f"{traveller.name} {traveller.meal.value} {traveller.age} {seat}"

    @agent.skill
    async def summarize(ctx: Context) -> list[str]:
        text = await ctx.sample("Summarize it.")
        return [text, *(root.uri for root in await ctx.roots())]

    @agent.skill
    async def ask_peer(ctx: Context) -> Any:
        return await ctx.call("measure", {"text": "x"})

    return agent


ADA = {"name": "Ada", "meal": "fish"}


@pytest.mark.parametrize(
    "answers",
    [
        [ADA, "window"],
        {"Who": ADA, "seat": "window"},
        lambda question, schema: ADA if "Who" in question else schema["enum"][1],
    ],
    ids=["list", "mapping", "function"],
)
async def test_a_scripted_person_answers_and_the_skill_gets_values_of_its_types(answers: Any) -> None:
    caller = ScriptedCaller(answers)
    assert await asking_agent().call("book", channel=caller) == "Ada fish None window"
    assert caller.questions == ["Who travels?", "Which seat?"]
    assert caller.progress_reports == [(0.5, "half")]
    assert caller.log_lines == [("info", "asking", {"n": 1})]
    assert caller.unused == ()


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        (None, CannotAskError, "the caller does not support elicitation"),
        ([DECLINED], InputRefusedError, "the question was answered with decline: Who travels?"),
        ([{"nam": "Ada"}], InputRefusedError, "the answer does not fit the question: missing required field"),
        ([ADA], InputRequiredError, "nothing is scripted for: Which seat?"),
        ({"Who": ADA}, InputRequiredError, "nothing is scripted for: Which seat?"),
        ([ADA, "wing"], InputRefusedError, "the answer does not fit the question: the value must be one of"),
    ],
)
async def test_what_is_not_scripted_fails_as_a_person_would(
    answers: Any, error: type[RetinueError], message: str
) -> None:
    with pytest.raises(error) as caught:
        await asking_agent().call("book", channel=ScriptedCaller(answers))
    assert type(caught.value) is error
    assert caught.value.message.startswith(message)


async def test_a_scripted_model_and_folders_answer_as_well() -> None:
    caller = ScriptedCaller(samples=["short"], roots=["file:///a", Root("file:///b", "b")])
    assert await asking_agent().call("summarize", channel=caller) == ["short", "file:///a", "file:///b"]
    assert caller.prompts == ["Summarize it."]
    with pytest.raises(CannotAskError, match="sampling"):
        await asking_agent().call("summarize", channel=ScriptedCaller(roots=[]))
    echo = ScriptedCaller(samples=str.upper, roots=[])
    assert await asking_agent().call("summarize", channel=echo) == ["SUMMARIZE IT."]


async def test_a_scripted_peer_answers_each_call_and_keeps_it() -> None:
    agent = asking_agent()
    peer = scripted_peer("ruler", measure=in_turn(1, ValueError("broken"), lambda given: given["text"] * 2))
    assert await agent.call("ask_peer", peers=[peer]) == 1
    with pytest.raises(ExecutionFailedError, match="broken"):
        await agent.call("ask_peer", peers=[peer])
    assert await agent.call("ask_peer", peers=[peer]) == "xx"
    with pytest.raises(RetinueError, match="measure is called more often than it has answers"):
        await agent.call("ask_peer", peers=[peer])
    assert peer.calls == [("measure", {"text": "x"})] * 4


@pytest.mark.parametrize(
    ("asked", "schema"),
    [
        (str, {"type": "string"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Meal, {"type": "string", "enum": ["vegan", "fish"]}),
        (
            Traveller,
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "meal": {"type": "string", "enum": ["vegan", "fish"], "default": "vegan"},
                    "age": {"type": "integer"},
                },
                "required": ["name"],
            },
        ),
        (
            Order,
            {
                "type": "object",
                "properties": {"count": {"type": "integer", "minimum": 1, "description": "How many"}},
                "required": ["count"],
            },
        ),
        ({"type": "integer"}, {"type": "integer"}),
    ],
)
def test_a_type_is_asked_for_as_a_form_of_plain_fields(asked: Any, schema: Any) -> None:
    assert make_form(asked)[0] == schema


def test_a_type_that_nobody_can_answer_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match=r"ctx\.elicit: Path is no type of an answer"):
        make_form(type("Path", (), {}))


FIXTURES = """
import pytest

from retinue import Agent, Context, InputRequiredError

pytest_plugins = ["retinue.testing.fixtures"]
agent = Agent("a")


@agent.skill
async def ask(ctx: Context) -> str:
    return await ctx.elicit("Who?", str) + await ctx.call("measure", {})


async def test_the_fixtures(script_caller, script_peer):
    caller = script_caller(["Ada"])
    assert await agent.call("ask", channel=caller, peers=[script_peer("p", measure="!")]) == "Ada!"


async def test_an_answer_is_left(script_caller):
    script_caller(["never"])


@agent.skill
async def ask_or_guess(ctx: Context) -> str:
    try:
        return await ctx.elicit("Which seat?", str)
    except InputRequiredError:
        return "any"


async def test_an_answer_is_missing_and_the_skill_goes_on(script_caller):
    assert await agent.call("ask_or_guess", channel=script_caller([])) == "any"
"""


def test_the_fixtures_of_pytest_make_both_and_tell_of_answers_left_over_and_missing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FIXTURES)
    options = ("-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "never asked for: ['never']" in ran.stdout
    assert "nothing is scripted for: ['Which seat?']" in ran.stdout
    assert "3 passed, 2 errors" in ran.stdout, ran.stdout + ran.stderr
