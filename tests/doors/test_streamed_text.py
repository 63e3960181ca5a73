"""Text that a skill writes reaches who waits, exactly and before the end: of calls, steps and branches."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import TextPiece
from tests.mcp.clients import MODES, connect, sessionless, texts
from tests.system import WAIT_S, Hub, System, Wire

FIRST, REST = "One,\n ", " \n\ntwo."
WHOLE = FIRST + REST


class Writers:
    """Agents with the role execute that write the same text, the second half once ``go_on`` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    def make(self, name: str, score: float = 0.5) -> Agent:
        agent = Agent(name, version="1.0.0", scores={"execution": score})

        @agent.skill("execute", roles=["execute"], expose=True)
        async def execute(prompt: str, ctx: Context) -> str:
            """Writes a text."""
            await ctx.progress(0.5, "looking")
            await ctx.stream_text(FIRST)
            await self.go_on.wait()
            await ctx.stream_text(REST)
            return WHOLE

        return agent


class Reader:
    """The progress of a call as the official client hears it; a text lets the writers go on."""

    def __init__(self, writers: Writers, wanted: str = FIRST) -> None:
        self.messages: list[str] = []
        self._writers = writers
        self._wanted = wanted

    async def note(self, progress: float, total: float | None, message: str | None) -> None:
        self.messages.append(message or "")
        if self._wanted in (message or ""):
            self._writers.go_on.set()


@pytest.fixture
def writers() -> Writers:
    return Writers()


@pytest.fixture
async def hub(system: System, writers: Writers) -> Hub:
    await system.start_agent(writers.make("writer", 0.9))
    hub = await system.start_hub()
    await see_all(hub)
    return hub


async def see_all(hub: Hub) -> None:
    """Let the hub see that the agents answer."""
    await hub.mesh.directory.refresh()
    for entry in hub.mesh.directory.list_entries():
        hub.mesh.directory.mark_reachable(entry)


DIRECT = {"prompt": "write", "preferences": {"workflow": "direct", "role": "execute", "cache": False}}


@pytest.mark.parametrize("mode", MODES)
async def test_text_of_a_call_reaches_an_mcp_client_exactly_and_before_the_end(
    hub: Hub, writers: Writers, mode: str
) -> None:
    reader = Reader(writers)
    async with asyncio.timeout(WAIT_S), connect(f"{hub.url}/mcp", mode) as client:
        result = await client.call_tool(
            "call_skill",
            {"skill": "execute", "arguments": {"prompt": "x"}, "agent": "writer"},
            progress_callback=reader.note,
        )
    assert texts(result) == [WHOLE]
    assert reader.messages == ["looking", FIRST, REST]


@pytest.mark.parametrize("mode", MODES)
async def test_text_of_a_step_reaches_the_mcp_client_of_orchestrate_before_the_end(
    hub: Hub, writers: Writers, mode: str
) -> None:
    reader = Reader(writers)
    async with asyncio.timeout(WAIT_S), connect(f"{hub.url}/mcp", mode) as client:
        result = await client.call_tool("orchestrate", DIRECT, progress_callback=reader.note)
    assert result.structured_content is not None
    assert result.structured_content["output"] == WHOLE
    assert f"answer: {FIRST}" in reader.messages
    assert f"answer: {REST}" in reader.messages
    assert "answer: 50% looking" in reader.messages
    assert "answer: writer is asked" in reader.messages
    assert reader.messages[-1].startswith("answer: writer answered in ")


async def test_a_notification_marks_the_text_with_its_place_agent_and_step(
    hub: Hub, writers: Writers, wire: Wire
) -> None:
    writers.go_on.set()
    message, headers = sessionless(
        "tools/call", {"name": "orchestrate", "arguments": DIRECT}, progressToken="p"
    )
    reply = await wire.post(f"{hub.url}/mcp", message, **headers)
    events = [orjson.loads(line[6:]) for line in reply.body.splitlines() if line.startswith(b"data: {")]
    told = [event["params"] for event in events if event.get("method") == "notifications/progress"]
    pieces = [one["_meta"]["retinue/text"] for one in told if "retinue/text" in one.get("_meta", {})]
    assert {(piece["agent"], piece["step"]) for piece in pieces} == {("writer", "answer")}
    assert "".join(piece["text"] for piece in pieces) == WHOLE
    assert pieces[0]["at"] == 0
    lines = [one["message"] for one in told if "retinue/text" not in one.get("_meta", {})]
    assert not any("One," in line for line in lines)


async def test_pieces_of_racing_agents_say_which_branch_they_belong_to(
    system: System, hub: Hub, writers: Writers
) -> None:
    await system.start_agent(writers.make("other", 0.8))
    await see_all(hub)
    reader = Reader(writers, "never")

    async def both() -> None:
        while not {"writer", "other"} <= {piece.partition(".")[2].partition("/")[0] for piece in steps()}:
            await asyncio.sleep(0.01)
        writers.go_on.set()

    def steps() -> list[str]:
        return [message.partition(": ")[0] for message in reader.messages if message.endswith(FIRST)]

    arguments = {"prompt": "write", "agents": ["writer", "other"], "mode": "all"}
    async with asyncio.timeout(WAIT_S), connect(f"{hub.url}/mcp") as client:
        waiting = asyncio.create_task(both())
        await client.call_tool("orchestrate_parallel", arguments, progress_callback=reader.note)
        await waiting
    for name in ("writer", "other"):
        (step,) = {step for step in steps() if f".{name}/" in step}
        pieces = [m.removeprefix(f"{step}: ") for m in reader.messages if m.startswith(f"{step}: ")]
        assert "".join(pieces).endswith(WHOLE)


async def test_a_run_is_followed_with_what_its_steps_write_and_none_of_it_is_stored(
    hub: Hub, writers: Writers, wire: Wire, system: System
) -> None:
    workflow = {"name": "w", "steps": [{"id": "draft", "role": "execute", "prompt": "write"}]}

    async def ask(skill: str, **arguments: Any) -> Any:
        return (await wire.call(hub.url, skill, arguments, authorization=system.token)).result

    started = await ask("start_run", workflow=workflow, progress=True)
    after, seen, done = 0, 0, False
    events: list[Any] = []
    reports: list[Any] = []
    async with asyncio.timeout(WAIT_S):
        while not done:
            reply = await ask("follow_run", run=started["run"], after=after, progress_after=seen)
            events += reply["events"]
            reports += reply["progress"]
            if any(report.get("text") == FIRST for report in reports):
                assert writers.go_on.is_set() or not reply["done"]
                writers.go_on.set()
            after, seen, done = reply["next"], reply["next_progress"], reply["done"]
    assert reply["output"] == WHOLE
    assert {"step": "draft", "fraction": 0.5, "message": "looking"} in reports
    pieces = [TextPiece.from_json(report) for report in reports if "text" in report]
    assert "".join(piece.text for piece in pieces if piece is not None) == WHOLE
    assert pieces[0] == TextPiece(FIRST, 0, "writer", "draft")
    assert b"looking" not in orjson.dumps(events)
    stored = await ask("follow_run", run=started["run"])
    # who watches sees the beginning of the arguments as well
    assert [event.pop("arguments", None) for event in events].count('{"prompt":"write"}') == 1
    assert stored["events"] == events
    assert "progress" not in stored


async def test_a_run_that_nobody_watches_asks_its_agents_for_no_stream(
    hub: Hub, writers: Writers, wire: Wire, system: System
) -> None:
    writers.go_on.set()
    reply = await wire.call(hub.url, "orchestrate", DIRECT, authorization=system.token)
    assert reply.result["output"] == WHOLE
    asked = [one for one in system.recording.exchanges if one.to == "writer" and one.path == "/execute"]
    assert asked
    assert not any("event-stream" in one.headers.get("accept", "") for one in asked)


async def test_execute_streams_to_a_caller_that_accepts_it(
    hub: Hub, writers: Writers, system: System
) -> None:
    request = {"jsonrpc": "2.0", "method": "orchestrate", "params": DIRECT, "id": 7}
    headers = {"accept": "text/event-stream", "authorization": system.token}
    events: list[tuple[str, Any]] = []
    async with (
        asyncio.timeout(WAIT_S),
        aiohttp.ClientSession() as session,
        session.post(f"{hub.url}/execute", json=request, headers=headers) as reply,
    ):
        assert reply.headers["content-type"] == "text/event-stream"
        name = ""
        async for line in reply.content:
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                events.append((name, orjson.loads(line[6:])))
                if events[-1][1].get("text") == FIRST:
                    writers.go_on.set()
    assert "".join(value["text"] for name, value in events if name == "text") == WHOLE
    name, last = events[-1]
    assert (name, last["status"]) == ("reply", 200)
    assert last["body"]["result"]["output"] == WHOLE
    assert last["body"]["id"] == 7


async def test_text_of_a_call_is_a_marked_status_update_of_an_a2a_stream(
    system: System, writers: Writers
) -> None:
    url = (await system.start_agent(writers.make("author"))).url
    params = {
        "message": {
            "messageId": "m1",
            "role": "ROLE_USER",
            "parts": [{"data": {"prompt": "x"}}],
            "metadata": {"skill": "execute"},
        }
    }
    request = {"jsonrpc": "2.0", "method": "SendStreamingMessage", "params": params, "id": 1}
    headers = {"accept": "text/event-stream", "a2a-version": "1.0"}
    pieces: list[Any] = []
    async with (
        asyncio.timeout(WAIT_S),
        aiohttp.ClientSession() as session,
        session.post(f"{url}/", json=request, headers=headers) as reply,
    ):
        async for line in reply.content:
            if not line.startswith(b"data: "):
                continue
            update = orjson.loads(line[6:]).get("result", {}).get("statusUpdate", {})
            piece = update.get("metadata", {}).get("text")
            if piece is not None:
                assert update["status"]["message"]["parts"] == [{"text": piece["text"]}]
                pieces.append(piece)
                writers.go_on.set()
    assert "".join(piece["text"] for piece in pieces) == WHOLE
    assert [piece["at"] for piece in pieces] == [0, len(FIRST)]
