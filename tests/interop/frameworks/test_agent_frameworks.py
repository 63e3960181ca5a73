"""Agents of other frameworks use the skills of a mesh that they do not know, by their own clients of MCP."""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Part
from retinue.core.errors import ExecutionError
from retinue.web.issued_tokens import TokenFile
from tests.interop.frameworks.running import PEERS, run_job
from tests.requirements import requirement
from tests.system import Hub, System

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)

every_framework = pytest.mark.parametrize("name", PEERS)


@dataclass
class Weather:
    city: str
    degrees: float


class StationError(ExecutionError):
    """There is no weather station."""


def weather_agent(begun: list[str]) -> Agent:
    agent = Agent("weather-agent", version="1.0.0", logging=True)

    @agent.skill(expose=True, read_only=True)
    async def weather(city: str, ctx: Context) -> Weather:
        """Tells the weather of a city."""
        if city == "Atlantis":
            raise StationError("Atlantis has no weather station", remedy="name a city on land")
        await ctx.progress(0.5, "measuring")
        await ctx.log("measured")
        return Weather(city, 21.5)

    @agent.skill("list:cities", expose=True)
    async def cities() -> list[str]:
        """Lists the cities."""
        return ["Rome", "Oslo"]

    @agent.skill(expose=True)
    async def draw_map(city: str) -> list[Part | str]:
        """Draws a map."""
        return [f"The map of {city}:", Part.image(PNG, "image/png")]

    @agent.skill(expose=True)
    async def travel(ctx: Context) -> str:
        """Books a journey."""
        begun.append("travel")
        return f"booked: {await ctx.elicit('Which city?', str)}"

    @agent.skill(expose=True, runs_code=True)
    async def calibrate() -> str:
        """Runs the program of a sensor."""
        return "calibrated"

    @agent.skill(expose=True)
    async def archive() -> str:
        """Returns a long report."""
        return "sunny " * 10_000

    return agent


def number_agent(skills: int) -> Agent:
    agent = Agent("number-agent", version="1.0.0")
    for number in range(skills):

        async def add(summand: int, number: int = number) -> int:
            """Adds a number."""
            return summand + number

        agent.skill(f"add:{number}", expose=True, read_only=True)(add)
    return agent


class Mesh:
    """A hub with an agent, a token for it, and the names of skills whose bodies have begun."""

    def __init__(self, system: System, hub: Hub, begun: list[str]) -> None:
        self.begun = begun
        self.url = f"{hub.url}/mcp"
        _, self.token = TokenFile(system.state.keys).issue(["exposed"], name="assistant")

    async def call(self, name: str, *calls: tuple[str, dict[str, Any]], **options: Any) -> Any:
        return await run_job(name, calls, url=self.url, token=self.token, **options)


@pytest.fixture
async def mesh(system: System) -> Mesh:
    begun: list[str] = []
    await system.start_agent(weather_agent(begun))
    return Mesh(system, await system.start_hub(), begun)


@every_framework
@requirement("S-16")
async def test_values_images_and_errors_with_their_remedy_reach_the_model(mesh: Mesh, name: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("weather-agent__weather", {"city": "Rome"}),
        ("weather-agent__list_cities", {}),
        ("weather-agent__draw_map", {"city": "Rome"}),
        ("weather-agent__archive", {}),
        ("weather-agent__weather", {"city": "Atlantis"}),
        ("weather-agent__weather", {"city": "Rome", "unit": "K"}),
        ("weather-agent__calibrate", {}),
    ]
    if name != "langgraph":  # it asks its caller about each question
        calls.append(("weather-agent__travel", {}))
    tools, seen = await mesh.call(name, *calls)
    assert {"find_skills", "call_skill", "weather-agent__weather", "weather-agent__list_cities"} <= set(tools)
    value, cities, picture, long, *failed = seen
    assert value["value"] == {"city": "Rome", "degrees": 21.5}
    assert cities["value"] == ["Rome", "Oslo"]
    assert picture["text"] == "The map of Rome:"
    assert picture["images"] == [["image/png", base64.b64encode(PNG).decode()]]
    assert "sunny sunny" in long["text"]
    assert len(long["text"]) < 10_000
    station, wrong, refused, *unasked = [one["text"] for one in failed]
    assert station == "Execution failed: Atlantis has no weather station — name a city on land"
    assert wrong == "Invalid parameters: unknown field 'unit' — there are: city"
    assert "wants a token with the scope runs_code — create one: retinue token new" in refused
    for text in unasked:
        assert "supports elicitation" in text or "the capability elicitation" in text
    if name != "openai-agents":  # there a failure is its text alone
        assert {one["failed"] for one in failed} == {True}
        assert {one["failed"] for one in (value, cities, picture, long)} == {False}


@every_framework
async def test_skills_beyond_the_list_are_found_and_called_and_their_questions_reach_a_person(
    mesh: Mesh, system: System, name: str
) -> None:
    await system.start_agent(number_agent(45))
    tools, (hits, weather, number, unknown, asked) = await mesh.call(
        name,
        ("find_skills", {"query": "weather of a city"}),
        ("call_skill", {"skill": "weather", "arguments": {"city": "Oslo"}}),
        ("call_read_only_skill", {"skill": "add:7", "arguments": {"summand": 1}}),
        ("call_skill", {"skill": "weathr", "arguments": {"city": "Oslo"}}),
        ("call_skill", {"skill": "travel"}),
        answer="Oslo",
    )
    assert not [tool for tool in tools if "__" in tool]
    assert "weather(city: string)" in hits["text"] or "weather(city: string)" in str(hits["value"])
    assert weather["value"] == {"city": "Oslo", "degrees": 21.5}
    assert number["value"] in (8, "8")
    assert "did you mean weather?" in unknown["text"]
    if name == "openai-agents":  # its client declares no elicitation
        assert "input required: Which city?" in asked["text"]
        return
    assert (asked["failed"], asked["text"]) == (False, "booked: Oslo")
    # LangGraph begins a step anew when it goes on after an interrupt
    assert len(mesh.begun) == (2 if name == "langgraph" else 1)


@every_framework
async def test_the_tools_come_over_standard_streams_too(system: System, name: str) -> None:
    """`retinue mcp` has the rights of the state, so the skill that runs code is called."""
    await system.start_agent(weather_agent([]))
    await system.start_hub()
    tools, (value, done) = await run_job(
        name,
        [("weather-agent__weather", {"city": "Rome"}), ("weather-agent__calibrate", {})],
        command=[sys.executable, "-m", "retinue", "mcp"],
        environment={"RETINUE_HOME": str(system.state.root)},
    )
    assert "find_skills" in tools
    assert value["value"] == {"city": "Rome", "degrees": 21.5}
    assert done["text"] == "calibrated"
