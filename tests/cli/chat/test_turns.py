"""Turns of ``retinue chat`` with a hub in this process: memory, tools, costs and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from retinue import Agent
from retinue.cli.chat.partner import choose_partner
from retinue.cli.chat.screen import Screen, TurnEnd
from retinue.cli.chat.turn import Turns
from retinue.cli.program import program
from retinue.client.hub_choice import choose_known
from retinue.client.hub_skills import HubSkills
from retinue.client.updates import RunUpdate
from retinue.core.call import TextPiece
from retinue.core.errors import InvalidSettingError, NoModelError, StepFailedError, UnknownAgentError
from retinue.markdown.agent import ThinkingAgent
from retinue.markdown.definition import parse_agent
from retinue.runtime.commands.client import open_client
from retinue.testing import ModelTurn, ScriptedModel
from tests.system import WAIT_S, System

Printed = pytest.CaptureFixture[str]


@dataclass
class City:
    """An agent of a city, and what happened to its bus."""

    agent: Agent = field(default_factory=lambda: Agent("city", version="1.0.0"))
    waits: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        @self.agent.skill
        async def cross(street: str) -> str:
            """Crosses a street."""
            return f"crossed {street}"

        @self.agent.skill
        async def wait_for_bus() -> str:
            """Waits for a bus of the city."""
            self.waits.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
            return "it came"


def find(what: str) -> ModelTurn:
    return ModelTurn(calls=[("find_skills", {"what": what})])


def use(skill: str, **arguments: Any) -> ModelTurn:
    return ModelTurn("Let me see.", calls=[(f"city__{skill}", arguments)])


@asynccontextmanager
async def open_hub(system: System, *agents: Agent) -> AsyncIterator[HubSkills]:
    hub = await system.start_hub()
    for agent in agents:
        await system.start_agent(agent)
    choice = choose_known(system.state, hub.url)
    async with open_client(system.settings, system.state, hub=choice) as client:
        skills = HubSkills(client, WAIT_S)
        await skills.read("refresh_agents")
        yield skills


class Talk:
    """A conversation at a terminal without questions."""

    def __init__(self, turns: Turns, screen: Screen) -> None:
        self._turns = turns
        self._screen = screen

    @classmethod
    async def begin(cls, hub: HubSkills, name: str | None = None) -> Talk:
        screen = Screen(is_live=True)
        return cls(Turns(hub, await choose_partner(hub, name), "talk", screen), screen)

    async def say(self, prompt: str) -> TurnEnd:
        end = await self._turns.take(prompt)
        self._screen.end(end)
        return end


async def test_each_turn_knows_the_earlier_ones_and_shows_text_tools_and_costs(
    system: System, capsys: Printed
) -> None:
    model = ScriptedModel(
        find("cross a street"),
        use("cross", street="High Street"),
        "You are across.",
        prices={"input": 10.0, "output": 10.0},
    )
    async with open_hub(system, City().agent, model) as hub:
        talk = await Talk.begin(hub)
        end = await talk.say("Cross the High Street")
        assert (end.status, end.output) == ("done", "You are across.")
        shown = capsys.readouterr().err
        lines = (
            "→ find_skills: cross a street",
            "Let me see.",
            '→ city/cross {"street":"High Street"}',
            "← city/cross",
        )
        places = [shown.index(line) for line in lines]
        assert places == sorted(places)
        assert shown.count("You are across.") == 1
        assert "tokens in" in shown
        assert "$0." in shown
        began = len(model.requests)
        await talk.say("And back")
        assert "Cross the High Street" in str(model.requests[began].messages)
        assert "You are across." in str(model.requests[began].messages)
        assert "in all: " in capsys.readouterr().err


async def test_a_cancelled_turn_ends_its_run_and_not_the_conversation(system: System) -> None:
    city = City()
    model = ScriptedModel(find("wait for a bus"), use("wait_for_bus"), "Here.")
    async with open_hub(system, city.agent, model) as hub:
        talk = await Talk.begin(hub)
        taking = asyncio.create_task(talk.say("Wait for the bus"))
        async with asyncio.timeout(WAIT_S):
            await city.waits.wait()
            taking.cancel()
            end = await taking
            await city.left.wait()
        assert end.status == "cancelled"
        assert end.usage is not None
        assert end.usage["input_tokens"] > 0
        (run,) = (await hub.read("list_runs"))["runs"]
        assert (run["run"], run["status"]) == (end.run, "cancelled")
        city.waits.clear()
        again = asyncio.create_task(talk.say("Wait again"))
        async with asyncio.timeout(WAIT_S):
            await city.waits.wait()
            again.cancel()
            assert (await again).status == "cancelled"


async def test_a_limited_turn_gives_its_last_answer_and_a_failed_one_its_error(
    system: System, capsys: Printed
) -> None:
    model = ScriptedModel(use("cross", street="High Street"), last="As far as I came.")
    broken = ScriptedModel(ModelTurn(error="rejected"), name="broken")
    text = "---\nname: guide\nmodel: scripted\ntools: cross\nretinue: {limits: {turns: 1}}\n---\nYou guide.\n"
    guide = ThinkingAgent(parse_agent(text, "guide.md"))
    async with open_hub(system, City().agent, model, broken, guide) as hub:
        talk = await Talk.begin(hub, "guide")
        end = await talk.say("Cross")
        assert (end.status, end.output) == ("limited", "As far as I came.")
        shown = capsys.readouterr()
        assert f"retinue resume {end.run} --limit turns=N" in shown.err
        assert "As far as I came." in shown.out + shown.err
        with pytest.raises(StepFailedError, match="agent broken"):
            await (await Talk.begin(hub, "broken")).say("Cross")


async def test_without_a_partner_the_remedy_is_named(system: System) -> None:
    async with open_hub(system, City().agent) as hub:
        with pytest.raises(NoModelError) as missing:
            await choose_partner(hub, None)
        assert "set ANTHROPIC_API_KEY" in missing.value.remedy
        with pytest.raises(InvalidSettingError, match="city is neither a model nor an agent in Markdown"):
            await choose_partner(hub, "city")
        with pytest.raises(UnknownAgentError, match="Unknown agent: citi"):
            await choose_partner(hub, "citi")


def test_without_a_hub_the_remedy_is_named(retinue_home: Path) -> None:
    result = CliRunner().invoke(program, ["chat"])
    assert "no hub runs" in result.stderr
    assert "retinue hub --detach" in result.stderr
    assert result.exit_code != 0


def test_a_call_that_is_told_late_stands_behind_the_text_and_not_within_it(capsys: Printed) -> None:
    screen = Screen(is_live=True)
    call = {"kind": "call", "agent": "city", "skill": "cross", "duration_ms": 3.0}

    def write(text: str, at: int) -> RunUpdate:
        piece = TextPiece(text, at=at, step="think/turn-2/model", agent="model")
        return RunUpdate(2, "text", "think/turn-2/model", 0.0, piece=piece)

    screen.show(write("You a", 0))
    screen.show(RunUpdate(3, "step_finished", "think/turn-1/call-1", 0.0, facts=call))
    screen.show(write("re across.", 5))
    screen.show(RunUpdate(4, "step_finished", "think/turn-2/model", 0.0, facts={"kind": "model"}))
    shown = capsys.readouterr().err
    assert shown.index("You are across.") < shown.index("← city/cross")
