"""The text and the calls of an agent that thinks reach each endpoint while they happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import orjson
import pytest

import retinue
from retinue.authoring.agent import Agent
from retinue.cli.terminal_channel import TerminalChannel
from retinue.markdown.agent import ThinkingAgent
from retinue.markdown.definition import parse_agent
from retinue.runtime.commands.client import RunFollower, open_client
from retinue.testing import ModelTurn, ScriptedModel
from tests.doors.message_worker import say
from tests.mcp.clients import connect, texts
from tests.support.thinking import think
from tests.system import WAIT_S, Hub, System, Wire

FILE = """\
---
name: researcher
description: Answers questions from sources.
tools: count
retinue:
  expose: true
---
Answer with numbers.
"""
FIRST, LAST = "I count them first.", "There are 7 of them."
QUESTION = {"prompt": "How many?"}


class Counter:
    """An agent whose skill waits until its caller has got the text before the call."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.agent = Agent("counter", version="1.0.0")

        @self.agent.skill(read_only=True)
        async def count(number: int) -> int:
            """Counts numbers."""
            await self.go_on.wait()
            return number

    def see(self, text: str) -> None:
        """Let the call go on once the whole text of the first turn has come."""
        if FIRST.rpartition(" ")[2] in text:
            self.go_on.set()


@pytest.fixture
async def counter(system: System) -> Counter:
    counter = Counter()
    script = ModelTurn(FIRST, calls=[("counter__count", {"number": 7})]), LAST
    await system.start_agent(ScriptedModel(*script))
    await system.start_agent(counter.agent)
    return counter


@pytest.fixture
async def researcher_url(system: System) -> str:
    return (await system.start_agent(ThinkingAgent(parse_agent(FILE, "researcher.md")), has_runs=True)).url


@pytest.fixture
async def hub(system: System, counter: Counter, researcher_url: str) -> Hub:
    hub = await system.start_hub()
    await hub.mesh.directory.refresh()
    return hub


STEPS = [
    "think/turn-1/model: scripted is asked",
    'think/turn-1/call-1: counter/count is called with {"number":7}',
    "think/turn-1/call-1: counter/count answered in ",
    "think/turn-2/model: scripted is asked",
]


ALL = (STEPS[0], FIRST, *STEPS[1:], LAST)


def check_order(lines: list[str], wanted: tuple[str, ...] = ALL) -> None:
    """Each of these is in a line, one behind the other."""
    places = [next((n for n, line in enumerate(lines) if part in line), -1) for part in wanted]
    assert places == sorted(places), lines
    assert -1 not in places, lines


async def test_an_mcp_client_gets_text_and_calls_as_progress(
    hub: Hub, counter: Counter, system: System
) -> None:
    messages: list[str] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message or "")
        counter.see(message or "")

    arguments = {"skill": "researcher", "arguments": QUESTION, "agent": "researcher"}
    async with asyncio.timeout(WAIT_S), connect(f"{hub.url}/mcp", authorization=system.token) as client:
        result = await client.call_tool("call_skill", arguments, progress_callback=note)
    assert texts(result) == [LAST]
    check_order(messages)


async def test_a_program_gets_text_and_calls_while_its_call_runs(hub: Hub, counter: Counter) -> None:
    updates = []
    async with asyncio.timeout(WAIT_S), retinue.connect() as mesh:
        async for update in mesh.stream("researcher", QUESTION):
            counter.see(update.text)
            updates.append(update)
    check_order([update.text for update in updates])
    pieces = [update.piece for update in updates if update.piece is not None]
    assert {(piece.step, piece.agent) for piece in pieces} == {
        ("think/turn-1/model", "scripted"),
        ("think/turn-2/model", "scripted"),
    }


async def test_a_program_that_follows_a_run_gets_text_between_its_events(hub: Hub, counter: Counter) -> None:
    updates = []
    async with asyncio.timeout(WAIT_S), retinue.connect() as mesh:
        run = await mesh.start(think(tools=["count"]), progress=True)
        async for update in run.events():
            counter.see(update.text)
            updates.append((update.step, update.kind))
    wanted = [
        ("research/turn-1/model", "text"),
        ("research/turn-1/model", "step_finished"),
        ("research/turn-1/call-1", "step_started"),
        ("research/turn-1/call-1", "step_finished"),
        ("research/turn-2/model", "text"),
    ]
    assert [update for update in updates if update in wanted] == wanted


async def test_the_command_run_shows_the_text_of_each_turn(
    hub: Hub, counter: Counter, system: System
) -> None:
    lines: list[str] = []

    def now(line: str) -> None:
        counter.see(line)

    async with asyncio.timeout(WAIT_S), open_client(system.settings, system.state) as client:
        follower = RunFollower(client, lines.append, now, shows_reports=True)
        assert await follower.run(think(tools=["count"]), {}) == LAST
    shown = [line.split() for line in lines]
    assert shown[0] == FIRST.split()
    assert shown[1][:3] == ["research/turn-1/model", "complete", "scripted"]
    assert shown[2][:3] == ["research/turn-1/call-1", "count", "counter"]
    assert shown[3] == LAST.split()


async def test_the_command_call_writes_text_and_calls_to_the_terminal(
    hub: Hub, counter: Counter, system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    counter.go_on.set()
    channel = TerminalChannel(asks=False, shows_text=True)
    async with asyncio.timeout(WAIT_S), open_client(system.settings, system.state) as client:
        outcome = await client.ask("researcher", QUESTION, channel=channel)
    assert channel.has_shown(outcome.get())
    check_order(capsys.readouterr().err.splitlines())


async def read_stream(url: str, request: Any, headers: Any, take: Callable[[Any], None]) -> None:
    async with (
        asyncio.timeout(WAIT_S),
        aiohttp.ClientSession() as session,
        session.post(url, json=request, headers={"accept": "text/event-stream", **headers}) as reply,
    ):
        async for line in reply.content:
            if line.startswith(b"data: "):
                take(orjson.loads(line[6:]))


async def test_an_a2a_client_gets_text_and_calls_as_status_updates(
    hub: Hub, counter: Counter, system: System, researcher_url: str
) -> None:
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"data": QUESTION}]}
    params = {"message": message | {"metadata": {"skill": "researcher"}}}
    request = {"jsonrpc": "2.0", "method": "SendStreamingMessage", "params": params, "id": 1}
    lines: list[str] = []

    def take(event: Any) -> None:
        status = event["result"].get("statusUpdate", {}).get("status", {})
        for part in status.get("message", {}).get("parts", ()):
            counter.see(part["text"])
            lines.append(part["text"])

    await read_stream(
        f"{researcher_url}/", request, {"a2a-version": "1.0", "authorization": system.token}, take
    )
    check_order(lines)


async def test_execute_streams_text_and_calls(hub: Hub, counter: Counter, system: System) -> None:
    request = {"jsonrpc": "2.0", "method": "researcher", "params": QUESTION, "id": 1}
    lines: list[str] = []

    def take(event: Any) -> None:
        lines.append(event.get("text") or event.get("message") or "")
        counter.see(lines[-1])

    await read_stream(f"{hub.url}/execute", request, {"authorization": system.token}, take)
    check_order(lines)


async def test_the_sender_of_a_message_asks_what_its_task_does(
    hub: Hub, counter: Counter, system: System, wire: Wire, researcher_url: str
) -> None:
    task = {"task_type": "researcher", "task_parameters": QUESTION}
    headers = {"authorization": system.token, "prefer": "respond-async"}
    await say(wire, researcher_url, "TASK_REQUEST", task, message_id="m-1", headers=headers)
    comments = ""
    async with asyncio.timeout(WAIT_S):
        while STEPS[1] not in comments:
            reply = await say(wire, researcher_url, "QUERY_REF", {"reference": "m-1"}, headers=headers)
            comments = reply.json["payload"]["comments"]
        counter.go_on.set()
        while reply.json["performative"] == "TASK_ACCEPT":
            reply = await say(wire, researcher_url, "QUERY_REF", {"reference": "m-1"}, headers=headers)
    assert reply.json["payload"]["result_details"] == {"result": LAST}
