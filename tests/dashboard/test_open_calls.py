"""Skills that ask their caller, called from a page: a question is a form, and its answer goes on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Outcome
from retinue.core.errors import InputRefusedError, InputRequiredError, InvalidParametersError
from retinue.dashboard.open_calls import OPEN_OF_A_CALLER, OpenCall, OpenCalls
from retinue.mesh.channel import Channel
from retinue.storage.state import State
from tests.dashboard.site import OWN, Site
from tests.system import open_system, open_wire

PAGE = "/ui/agents/travel-agent/skills/book"


@pytest.fixture
async def site(retinue_home: Path) -> AsyncIterator[Site]:
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        called: list[str] = []
        agent = Agent("travel-agent", version="1.0.0")

        @agent.skill(expose=True)
        async def book(ctx: Context) -> str:
            """Books a trip."""
            city = await ctx.elicit("Where <b>to</b>?", Literal["Rome", "Oslo"], key="city")
            sure = await ctx.elicit(f"Is {city} final?", bool, key="sure")
            called.append(city)
            return f"{city}: {sure}"

        await system.start_agent(agent)
        yield Site(system, await system.start_hub(dashboard=True), wire, called)


def read_call(page: str) -> str:
    found = re.search('name="call" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]


async def test_a_skill_that_asks_gets_its_answers_from_forms(site: Site) -> None:
    token = site.system.token
    page = (await site.read(PAGE, token)).body.decode()
    assert "This skill declares no parameters." in page
    assert "required" not in page
    page = (await site.submit(PAGE, {"action": "call"}, token, **OWN)).body.decode()
    assert "Where &lt;b&gt;to&lt;/b&gt;?" in page
    call = read_call(page)
    name = re.search('<select id="[^"]*" name="([^"]*)"', page)
    assert name is not None, page
    page = (await site.submit(PAGE, {"call": call, name[1]: '"Rome"'}, token, **OWN)).body.decode()
    assert "Is Rome final?" in page
    decision = re.search('<button name="([^"]*)" value="true">', page)
    assert decision is not None, page
    page = (
        await site.submit(PAGE, {"call": read_call(page), decision[1]: "true"}, token, **OWN)
    ).body.decode()
    assert "<pre>Rome: True</pre>" in page
    assert site.list_audit() == [("local", "book", "done")]


async def test_a_question_can_be_declined_and_belongs_to_its_caller(site: Site) -> None:
    token, other = site.system.token, site.token("mesh", name="bob")
    call = read_call((await site.submit(PAGE, {}, token, **OWN)).body.decode())
    reply = await site.submit(PAGE, {"call": call, "action": "decline"}, other, **OWN)
    assert b"no longer open" in reply.body
    reply = await site.submit(PAGE, {"call": call, "action": "decline"}, token, **OWN)
    assert b"declined" in reply.body or b"decline" in reply.body
    assert [row[:2] for row in site.list_audit()] == [("local", "book")]
    assert b"no longer open" in (await site.submit(PAGE, {"call": call}, token, **OWN)).body
    assert site.called == []


async def ask(channel: Channel) -> Outcome:
    try:
        value = await channel.elicit("How many?", {"type": "integer"})
    except InputRefusedError as error:
        return Outcome("1", "s", "needs_input", error=error)
    return Outcome("1", "s", "done", value=value)


async def test_an_answer_that_does_not_fit_leaves_the_question_open() -> None:
    calls = OpenCalls()
    call = await calls.start("ada", {}, ask)
    assert isinstance(call, OpenCall)
    with pytest.raises(InvalidParametersError):
        await calls.answer(call, "many")
    outcome = await calls.answer(calls.find(call.id, "ada"), 3)
    assert isinstance(outcome, Outcome)
    assert outcome.value == 3


async def test_the_oldest_question_of_a_caller_with_too_many_is_declined() -> None:
    calls = OpenCalls()
    other = await calls.start("bob", {}, ask)
    started = [await calls.start("ada", {}, ask) for _ in range(OPEN_OF_A_CALLER + 1)]
    names = [call.id for call in started if isinstance(call, OpenCall)]
    with pytest.raises(InputRequiredError):
        calls.find(names[0], "ada")
    assert isinstance(other, OpenCall)
    for name, caller in ((names[1], "ada"), (names[-1], "ada"), (other.id, "bob")):
        assert calls.find(name, caller).question.message == "How many?"
    calls.end()
