"""Questions, progress and log lines pass through ``ctx.call``: client → hub → agent → agent, as processes."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult, LoggingMessageNotificationParams

from retinue import Agent
from tests.mcp.clients import MODES, connect, texts
from tests.processes.running import execute, program

TRIP = '''
import asyncio

from retinue import Agent, Context

agent = Agent("trip-agent", version="1.0.0", logging=True)
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@agent.skill(expose=True)
async def book_trip(city: str, ctx: Context) -> str:
    """Books a trip for a traveller."""
    await ctx.progress(0.5, f"looking for {city}")
    await ctx.log("looked", data={"city": city})
    traveller = (await ctx.elicit("Who travels?", FORM))["name"]
    seat = await ctx.elicit("Which seat?", {"type": "string", "enum": ["aisle", "window"]})
    return f"{traveller} goes to {city}, {seat}"


@agent.skill
async def lose_key() -> str:
    """Looks for a key that is not there."""
    return {}["key"]


@agent.skill(expose=True)
async def ping(ctx: Context) -> str:
    """Calls in a circle."""
    return await ctx.call("pong")


@agent.skill
async def doze(ctx: Context) -> str:
    """Sleeps for longer than anybody waits."""
    await asyncio.sleep(60)
    return "awake"
'''

HOLIDAY = '''
from retinue import Agent, Context, RetinueError
from retinue.core.errors import CallTimedOutError, InvalidParametersError

agent = Agent("holiday-agent", version="1.0.0", logging=True)


@agent.skill(expose=True)
async def plan_holiday(city: str, ctx: Context) -> str:
    """Plans a holiday; another agent books the trip."""
    return "plan: " + await ctx.call("book_trip", {"city": city})


@agent.skill
async def pong(ctx: Context) -> str:
    """Calls in a circle."""
    return await ctx.call("ping")


@agent.skill(expose=True)
async def tell_type(skill: str, arguments: dict, ctx: Context) -> list[str]:
    """Tells how a call of another agent fails."""
    try:
        await ctx.call(skill, arguments, timeout_s=1)
    except CallTimedOutError as error:
        return ["caught as a time-out", error.type, error.message]
    except InvalidParametersError as error:
        return ["caught as bad arguments", error.type, error.message]
    except RetinueError as error:
        return [type(error).__name__, error.type, error.message]
    return []
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("travel")


@pytest.fixture(scope="module")
def hub(folder: Path) -> Iterator[str]:
    """The url of a hub with both agents, three processes in all."""
    (folder / "trip.py").write_text(TRIP)
    (folder / "holiday.py").write_text(HOLIDAY)
    environment = {"RETINUE_HOME": str(folder / "state")}
    with (
        program("hub", "--bare", "--port", "0", cwd=folder, environment=environment) as hub,
        program("serve", "trip.py", cwd=folder, environment=environment) as trip,
        program("serve", "holiday.py", cwd=folder, environment=environment) as holiday,
    ):
        url = hub.url_in("http://")
        for agent in (trip, holiday):
            agent.wait_for("published")
        yield url


class Traveller:
    """The person behind the client, and what it was told."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.progress: list[tuple[float, str | None]] = []
        self.logs: list[Any] = []

    async def answer(self, context: Any, params: ElicitRequestParams) -> ElicitResult:
        self.questions.append(params.message)
        content = {"name": "Ada"} if params.message == "Who travels?" else {"answer": "window"}
        return ElicitResult(action="accept", content=content)

    async def note_log(self, params: LoggingMessageNotificationParams) -> None:
        self.logs.append(params.data)

    async def note_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, message))


@pytest.mark.parametrize("mode", MODES)
async def test_questions_progress_and_log_lines_pass_through_an_agent_that_calls_another(
    hub: str, mode: str
) -> None:
    person = Traveller()
    callbacks = {"elicitation_callback": person.answer, "logging_callback": person.note_log}
    async with connect(f"{hub}/mcp", mode, **callbacks) as client:
        result = await client.call_tool(
            "holiday-agent__plan_holiday", {"city": "Rome"}, progress_callback=person.note_progress
        )
    assert texts(result) == ["plan: Ada goes to Rome, window"]
    assert person.questions == ["Who travels?", "Which seat?"]
    assert (0.5, "looking for Rome") in person.progress
    if mode == "legacy":  # in the other era the official client asks for no log lines
        assert {"message": "looked", "city": "Rome"} in person.logs


async def test_a_person_who_declines_is_heard_two_agents_further(hub: str) -> None:
    async def decline(context: Any, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="decline")

    async with connect(f"{hub}/mcp", elicitation_callback=decline) as client:
        result = await client.call_tool("holiday-agent__plan_holiday", {"city": "Rome"})
    assert result.is_error
    assert "Who travels?" in texts(result)[0]
    assert result.meta is not None
    assert result.meta["retinue/error"]["type"] == "input_refused"


async def test_a_chain_that_calls_in_a_circle_ends_though_its_caller_can_be_asked(hub: str) -> None:
    person = Traveller()
    async with connect(f"{hub}/mcp", elicitation_callback=person.answer) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("call_skill", {"skill": "ping"}, progress_callback=person.note_progress)
    assert refused.value.error.code == -33007
    assert refused.value.error.data["depth"] == 6


FAILURES = [
    pytest.param("lose_key", {}, ["ExecutionFailedError", "execution_error", "'key'"], id="raises"),
    pytest.param("doze", {}, ["caught as a time-out", "timeout"], id="times out"),
    pytest.param("book_trip", {"city": 3}, ["caught as bad arguments", "validation_error"], id="arguments"),
    pytest.param("book_trip", {"city": "Rome"}, ["InputRequiredError", "input_required"], id="nobody to ask"),
    pytest.param("bok_trip", {}, ["SkillNotOfferedError", "skill_not_offered"], id="unknown"),
]


@pytest.mark.parametrize(("skill", "arguments", "told"), FAILURES)
async def test_a_failure_has_one_class_type_and_text_in_a_test_and_over_the_wire(
    hub: str, folder: Path, skill: str, arguments: dict[str, Any], told: list[str]
) -> None:
    trip, holiday = (load_agent(folder / name) for name in ("trip.py", "holiday.py"))
    given = {"skill": skill, "arguments": arguments}
    in_process = await holiday.call("tell_type", given, peers=[trip])
    assert in_process[: len(told)] == told
    assert execute(hub, "tell_type", given)["result"] == in_process
    async with connect(f"{hub}/mcp") as client:  # over MCP all the way, as for a caller that hears progress
        result = await client.call_tool(
            "call_skill",
            {"skill": "tell_type", "arguments": given},
            progress_callback=Traveller().note_progress,
        )
    assert orjson.loads(texts(result)[0]) == in_process


def load_agent(file: Path) -> Agent:
    agent = runpy.run_path(str(file))["agent"]
    assert isinstance(agent, Agent)
    return agent
