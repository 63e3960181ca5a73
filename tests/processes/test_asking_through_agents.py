"""Questions, progress and log lines pass through ``ctx.call``: client → hub → agent → agent."""

from __future__ import annotations

import contextlib
import os
import pty
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult, LoggingMessageNotificationParams

from retinue import Agent
from retinue.storage.state import State
from tests.mcp.clients import MODES, connect, texts
from tests.processes.inside import inside
from tests.processes.running import WAIT_S, execute, run_apart, wait_until

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
        await ctx.call(skill, arguments, timeout_s=1 if skill == "doze" else 60)
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
    """The url of a hub with both agents, each inside this process."""
    (folder / "trip.py").write_text(TRIP)
    (folder / "holiday.py").write_text(HOLIDAY)
    environment = {"RETINUE_HOME": str(folder / "state")}
    with (
        inside("hub", "--bare", "--port", "0", cwd=folder, environment=environment) as hub,
        inside("serve", "trip.py", cwd=folder, environment=environment) as trip,
        inside("serve", "holiday.py", cwd=folder, environment=environment) as holiday,
    ):
        url = hub.url_in("http://")
        for agent in (trip, holiday):
            agent.wait_for("published")
        # an agent tells the hub after it has published
        wait_until(lambda: {"trip-agent", "holiday-agent"} <= list_agents(url, folder), "the hub knows both")
        yield url


def list_agents(url: str, folder: Path) -> set[str]:
    reply = execute(url, "list_agents", token=State(folder / "state").local_token())
    return {agent["name"] for agent in reply["result"]["agents"]}


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
    async with connect(
        f"{hub}/mcp", mode, elicitation_callback=person.answer, logging_callback=person.note_log
    ) as client:
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
    if told[1] == "input_required":
        return  # over MCP the client is there, and says that nobody can be asked: `cannot_ask`
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


class Terminal:
    """A command with a person at it: its standard error and input are a terminal, its output is not."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._terminal, other = pty.openpty()
        self.seen = ""
        self._passed = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "retinue", *arguments],
            env={**os.environ, "RETINUE_HOME": str(folder / "state"), "NO_COLOR": "1"},
            stdin=other,
            stdout=subprocess.PIPE,
            stderr=other,
            text=True,
        )
        os.close(other)

    def wait_for(self, text: str) -> None:
        """Read until the terminal shows ``text`` below what was waited for before."""
        while (place := self.seen.find(text, self._passed)) < 0:
            ready, _, _ = select.select([self._terminal], [], [], WAIT_S)
            assert ready, f"no {text!r} in:\n{self.seen}"
            try:
                more = os.read(self._terminal, 4096).decode()
            except OSError:  # the other end of the terminal was closed
                more = ""
            assert more, f"no {text!r} in:\n{self.seen}"
            self.seen += more
        self._passed = place + len(text)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def end(self) -> tuple[int, str]:
        """The exit code and the standard output."""
        output, _ = self.process.communicate(timeout=WAIT_S)
        ready, _, _ = select.select([self._terminal], [], [], 0)
        with contextlib.suppress(OSError):
            while ready:
                self.seen += os.read(self._terminal, 4096).decode()
                ready, _, _ = select.select([self._terminal], [], [], 0)
        os.close(self._terminal)
        return self.process.returncode, output


def test_call_shows_progress_and_asks_at_the_terminal(hub: str, folder: Path) -> None:
    terminal = Terminal(folder, "call", "plan_holiday", '{"city": "Rome"}')
    terminal.wait_for("looking for Rome")
    terminal.wait_for("name: ")
    terminal.type("\n")
    terminal.wait_for("a value is needed")
    terminal.type("Ada\n")
    terminal.wait_for("answer (one of: aisle, window): ")
    terminal.type("wing\n")
    terminal.wait_for("answer must be one of")
    terminal.type("window\n")
    code, output = terminal.end()
    assert (code, output) == (0, '"plan: Ada goes to Rome, window"\n')
    assert " 50%  looking for Rome" in terminal.seen
    assert "Who travels?" in terminal.seen
    assert "info: looked city=Rome" in terminal.seen


def test_a_question_is_declined_with_the_end_of_the_input(hub: str, folder: Path) -> None:
    terminal = Terminal(folder, "call", "plan_holiday", '{"city": "Rome"}')
    terminal.wait_for("name: ")
    terminal.type("\x04")
    code, output = terminal.end()
    assert (code, output) == (1, "")
    assert "error: Execution failed: the question was answered with decline: Who travels?" in terminal.seen


def test_an_interrupt_ends_a_call_that_asks(hub: str, folder: Path) -> None:
    terminal = Terminal(folder, "call", "plan_holiday", '{"city": "Rome"}')
    terminal.wait_for("name: ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == (130, "")
    # otherwise the hub and both agents would wait for it when they stop
    wait_until(lambda: count_calls(folder) == 0, "the call has ended at the hub")


def count_calls(folder: Path) -> int:
    """How many calls are in flight at the hub; asked by a program, so that logs here stay as they are."""
    top = run_apart("top", "--json", cwd=folder, environment={"RETINUE_HOME": str(folder / "state")})
    return int(orjson.loads(top.stdout)["calls"]["in_flight"])


def test_without_a_terminal_a_call_that_asks_is_one_error_with_the_remedy(hub: str, folder: Path) -> None:
    asked = ("call", "plan_holiday", '{"city": "Rome"}')
    refused = run_apart(*asked, cwd=folder, environment={"RETINUE_HOME": str(folder / "state")})
    assert refused.returncode == 1
    (line,) = (refused.stdout + refused.stderr).splitlines()
    assert line.startswith("error: Execution failed: input required: Who travels? — call it where a person")
