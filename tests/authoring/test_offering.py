"""Resources, prompts and content parts as an author writes them; mistakes are told when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.core.call import Answer, Part
from retinue.core.errors import (
    InvalidSettingError,
    OutputInvalidError,
    UnknownPromptError,
    UnknownResourceError,
    UnknownSkillError,
)
from retinue.core.record import Skill
from retinue.mesh.permissions import ExposureLists
from retinue.mesh.reading import Change

PNG = Part.image(b"png")


async def answer() -> str:
    """Answers."""
    return "answer"


async def of_day(day: str) -> str:
    return day


async def needing(what: str) -> str:
    return what


# what is refused


@pytest.mark.parametrize(
    ("uri", "function", "problem"),
    [
        ("no-uri", answer, "not a URI"),
        ("a://{", answer, "unbalanced brace"),
        ("a://{day}{night}", answer, "without text between"),
        ("a://{day}", answer, "no parameter for day"),
        ("a://fixed", needing, "nothing gives what"),
        ("a://{day}", needing, "no parameter for day"),
    ],
)
def test_a_resource_that_cannot_be_read_is_refused(uri: str, function: Any, problem: str) -> None:
    with pytest.raises(InvalidSettingError, match=problem):
        Agent("a").resource(uri)(function)


def test_names_are_given_once() -> None:
    agent = Agent("a")
    agent.resource("a://{day}")(of_day)
    agent.prompt("ask")(needing)
    agent.completes("ask", "what")(lambda value: [value])
    with pytest.raises(InvalidSettingError, match="there is one already"):
        agent.resource("a://{day}")(of_day)
    with pytest.raises(InvalidSettingError, match="there is one already"):
        agent.prompt("ask")(needing)
    with pytest.raises(InvalidSettingError, match="there is one already"):
        agent.completes("ask", "what")(lambda value: [value])
    for owner, argument in (("ask", "nope"), ("nope", "what"), ("a://{day}", "night")):
        with pytest.raises(InvalidSettingError, match="no such argument"):
            agent.completes(owner, argument)(lambda value: [value])


def test_only_a_live_resource_changes() -> None:
    agent = Agent("a")
    agent.resource("a://still")(answer)
    with pytest.raises(InvalidSettingError, match="it has no subscriptions"):
        agent.resource_changed("a://still")
    with pytest.raises(UnknownResourceError):
        agent.resource_changed("a://nope")


# what the record says


def test_the_record_holds_what_was_declared() -> None:
    agent = Agent("a")
    agent.resource("a://{day}", mime="text/html", expose=True, title="Day")(of_day)
    agent.prompt(answer)
    agent.prompt("ask", private=True)(needing)
    record = agent.record()
    (resource,) = record.resources
    assert (resource.name, resource.mime, resource.visibility, resource.title) == (
        "of_day",
        "text/html",
        "exposed",
        "Day",
    )
    assert [(one.name, one.visibility, one.description) for one in record.prompts] == [
        ("answer", "mesh", "Answers."),
        ("ask", "private", ""),
    ]
    assert [one.name for one in agent.record(with_facts=True).resources] == ["of_day", "profile"]


def _stumble(change: Change) -> None:
    raise ZeroDivisionError


def test_each_change_is_told_and_counted() -> None:
    agent = Agent("a")
    told: list[Change] = []
    unsubscribe = agent.changes.subscribe(told.append)
    agent.changes.subscribe(_stumble)
    revision = agent.revision
    agent.skill("one")(answer)
    agent.prompt("ask")(answer)
    agent.resource("a://live", live=True)(answer)
    agent.resource_changed("a://live")
    agent.forget_skill("one")
    agent.forget_prompt("ask")
    assert told == [
        Change("tools"),
        Change("prompts"),
        Change("resources"),
        Change("resource", "a://live"),
        Change("tools"),
        Change("prompts"),
    ]
    assert agent.revision == revision + 5
    unsubscribe()
    agent.skill("two")(answer)
    assert len(told) == 6
    with pytest.raises(UnknownSkillError):
        agent.forget_skill("one")
    with pytest.raises(UnknownPromptError):
        agent.forget_prompt("ask")


def test_lists_decide_for_what_comes_later_too_and_can_be_taken_away() -> None:
    agent = Agent("a")
    agent.skill("one", expose=True)(answer)
    agent.expose_by(ExposureLists(expose_tools=["two"]))
    agent.skill("two")(answer)
    assert {skill.id: skill.visibility for skill in agent.skills} == {"one": "private", "two": "exposed"}
    agent.expose_by(None)
    assert {skill.id: skill.visibility for skill in agent.skills} == {"one": "exposed", "two": "mesh"}


# content parts


async def test_a_skill_may_return_parts() -> None:
    agent = Agent("a")

    @agent.skill
    async def one() -> Part:
        return PNG

    @agent.skill
    async def several() -> list[Part | str]:
        return ["as asked:", PNG]

    @agent.skill
    async def beside() -> Answer:
        return Answer({"width": 1}, parts=(PNG,))

    assert [skill.output_schema for skill in agent.skills] == [None, None, None]
    assert (await agent.ask("one")).parts == (PNG,)
    assert (await agent.ask("several")).parts == (Part.text("as asked:"), PNG)
    outcome = await agent.ask("beside")
    assert (outcome.value, outcome.parts) == ({"width": 1}, (PNG,))
    # an endpoint without content blocks shows the parts as data
    image = {"kind": "image", "mime_type": "image/png", "name": None, "size": 3, "data": "cG5n"}
    assert await agent.call("one") == {"parts": [image]}


async def test_the_value_beside_parts_is_checked() -> None:
    agent = Agent("a")

    @agent.skill
    async def wrong() -> Answer:
        return Answer(object(), parts=(PNG,))

    with pytest.raises(OutputInvalidError):
        await agent.call("wrong")


async def test_an_overridden_hook_may_return_parts() -> None:
    class Painter(Agent):
        async def execute_skill(self, skill_id: str, params: Any) -> Any:
            return PNG

    agent = Painter("a", skills=[Skill("paint")])
    assert (await agent.ask("paint")).parts == (PNG,)
