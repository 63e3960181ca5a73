"""Turns of ``retinue chat`` with a hub in this process: memory, tools, questions, costs and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from retinue import Agent, Context
from retinue.cli.chat.partner import Partner, choose_partner
from retinue.cli.chat.questions import Questions
from retinue.cli.chat.screen import Screen
from retinue.cli.chat.turn import TurnEnd, Turns
from retinue.client.hub_choice import choose_known
from retinue.client.hub_skills import HubSkills
from retinue.core.errors import InvalidSettingError, NoModelError, RetinueError, UnknownAgentError
from retinue.markdown.agent import ThinkingAgent
from retinue.markdown.definition import parse_agent
from retinue.runtime.commands.client import open_client
from retinue.testing import ModelTurn, ScriptedModel
from tests.system import System

Printed = pytest.CaptureFixture[str]

GUIDE = """\
---
name: guide
description: Guides through the city.
tools: "*/cross"
retinue: {approve: "*/cross"}
---
You guide.
"""


def make_city() -> Agent:
    agent = Agent("city", version="1.0.0")

    @agent.skill
    async def cross(street: str) -> str:
        """Crosses a street."""
        return f"crossed {street}"

    @agent.skill
    async def wait_for_bus(ctx: Context) -> str:
        """Waits for a bus of the city."""
        await asyncio.Event().wait()
        return "it came"

    return agent


def use(skill: str, **arguments: Any) -> ModelTurn:
    return ModelTurn("Let me see.", calls=[(f"city__{skill}", arguments)])


async def _no_line() -> str | None:
    return None


def answers(lines: Iterable[str]) -> Any:
    rest = iter(lines)

    async def read() -> str | None:
        return next(rest, None)

    return read


class Talk:
    """A conversation with a hub of a test."""

    def __init__(self, hub: HubSkills, owner: HubSkills, partner: Partner, lines: Iterable[str] | None) -> None:
        self.hub = hub
        self.screen = Screen(is_live=True)
        questions = None if lines is None else Questions(owner, answers(lines), self.screen.end_line)
        self.turns = Turns(hub, partner, "talk", self.screen, questions)

    async def say(self, prompt: str) -> TurnEnd:
        end = await self.turns.take(prompt)
        self.screen.end(end)
        return end


@asynccontextmanager
async def open_talk(
    system: System, *agents: Agent, name: str | None = None, lines: Iterable[str] | None = ()
) -> AsyncIterator[Talk]:
    hub = await system.start_hub()
    for agent in agents:
        await system.start_agent(agent)
    choice = choose_known(system.state, hub.url)
    async with AsyncExitStack() as stack:
        clients = [
            HubSkills(
                await stack.enter_async_context(open_client(system.settings, system.state, hub=one)), 30.0
            )
            for one in (choice, replace(choice, token=system.state.owner_token()))
        ]
        await clients[0].read("refresh_agents")
        yield Talk(*clients, await choose_partner(clients[0], name), lines)


async def test_each_turn_knows_the_earlier_ones_and_shows_text_tools_and_costs(
    system: System, capsys: Printed
) -> None:
    model = ScriptedModel(
        ModelTurn(calls=[("find_skills", {"what": "cross a street"})]),
        use("cross", street="High Street"),
        "You are across.",
        scripts=(),
        prices={"input": 10.0, "output": 10.0},
    )
    async with open_talk(system, make_city(), model) as talk:
        end = await talk.say("Cross the High Street")
        assert (end.status, end.output) == ("done", "You are across.")
        shown = capsys.readouterr().err
        for line in ("→ find_skills: cross a street", "Let me see.", "→ city/cross", "← city/cross"):
            assert line in shown
        assert shown.count("You are across.") == 1
        assert "tokens in" in shown
        assert "$0." in shown
        again = await talk.say("And back")
        prompt = model.requests[-1].messages[0]
        assert "Cross the High Street" in str(prompt)
        assert "You are across." in str(prompt)
        assert again.status == "done"
        assert "in all: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        (["what?", "y"], "crossed High Street"),
        (["n too much traffic"], "a person refused it: too much traffic"),
    ],
)
async def test_a_call_of_an_agent_in_markdown_is_approved_in_the_conversation(
    system: System, capsys: Printed, lines: list[str], result: str
) -> None:
    model = ScriptedModel(use("cross", street="High Street"), "Done.", repeats=True)
    guide = ThinkingAgent(parse_agent(GUIDE, "guide.md"))
    async with open_talk(system, make_city(), model, guide, name="guide", lines=lines) as talk:
        assert (await talk.say("Cross")).output == "Done."
        assert result in model.list_results()[-1][0]
        shown = capsys.readouterr().err
        assert "May city/cross be called?" in shown
        assert '"street": "High Street"' in shown
        await talk.say("Again")
        assert "Done." in str(model.requests[-2].messages[0])


async def test_a_cancelled_turn_ends_its_run_and_not_the_conversation(system: System) -> None:
    model = ScriptedModel(use("wait_for_bus"), "Here.")
    async with open_talk(system, make_city(), model, ThinkingAgent(parse_agent(GUIDE.replace("*/cross", "wait_for_bus").replace("retinue: {approve", "retinue: {deny"), "guide.md"))) as talk:
        taking = asyncio.create_task(talk.say("Wait"))
        await asyncio.sleep(0.1)
        taking.cancel()
        assert (await taking).status == "cancelled"
