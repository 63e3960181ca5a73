"""``retinue mcp`` as clients start it: a real process, a hub that it starts, and what passes between them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import orjson
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from retinue.storage.state import State
from tests.processes.running import WAIT_S, is_running, program, wait_until, write_agent
from tests.requirements import requirement

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])


class Bridges:
    """The state folder in which bridges run, and the hub that they share."""

    def __init__(self, home: Path) -> None:
        self.state = State(home)
        self.environment = {**os.environ, "RETINUE_HOME": str(home), "RETINUE_HUB__BARE": "true"}

    def parameters(self, *arguments: str) -> StdioServerParameters:
        return StdioServerParameters(
            command=sys.executable, args=["-m", "retinue", "mcp", *arguments], env=self.environment
        )

    def stop_hub(self) -> None:
        hub = self.state.read_hub()
        if hub is not None:
            os.kill(hub.pid, signal.SIGTERM)
            wait_until(lambda: not is_running(hub.pid), "the hub stops")


@pytest.fixture
def bridges(retinue_home: Path) -> Iterator[Bridges]:
    bridges = Bridges(retinue_home)
    try:
        yield bridges
    finally:
        bridges.stop_hub()


def _text(result: Any) -> str:
    return str(result.content[0].text)


@both_eras
@requirement("S-16")
async def test_a_client_that_starts_programs_reaches_the_mesh(
    bridges: Bridges, tmp_path: Path, mode: str
) -> None:
    """The bridge starts the hub; an agent that joins is heard of; the token of the state shows its skills."""
    heard = asyncio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            heard.set()

    file = write_agent(tmp_path, "late-agent", "1.0.0", "say_late", "here I am")
    async with (
        asyncio.timeout(WAIT_S),
        Client(bridges.parameters(), mode=mode, message_handler=hear) as client,
    ):
        assert client.server_info is not None
        assert client.server_info.name == "retinue"
        assert "find_skills" in [tool.name for tool in (await client.list_tools()).tools]
        with program("serve", str(file), "--port-may-move", cwd=tmp_path) as served:
            await asyncio.to_thread(served.wait_for, "published")
            if mode == "legacy":
                await heard.wait()
            called = await client.call_tool("late-agent__say_late")
            assert _text(called) == "here I am"
    assert bridges.state.read_hub() is not None, "the hub stays when its starter ends"


async def test_bridges_that_start_at_once_share_one_hub(bridges: Bridges) -> None:
    """One of them starts it, under a lock."""

    async def one() -> str:
        async with Client(bridges.parameters(), mode="legacy") as client:
            assert (await client.list_tools()).tools
            hub = bridges.state.read_hub()
            assert hub is not None
            return hub.url

    async with asyncio.timeout(WAIT_S):
        assert len(set(await asyncio.gather(*(one() for _ in range(3))))) == 1
    log = (bridges.state.root / "hub.log").read_text()
    assert log.count("hub at http") == 1


async def test_a_session_survives_a_hub_that_was_started_anew(bridges: Bridges) -> None:
    """The next message starts a hub, the bridge opens a session there, and the client never knows."""
    told: list[str] = []

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            told.append(message.method)

    async with asyncio.timeout(WAIT_S):
        async with Client(bridges.parameters(), mode="legacy", message_handler=hear) as client:
            before = [tool.name for tool in (await client.list_tools()).tools]
            first = bridges.state.read_hub()
            await asyncio.to_thread(bridges.stop_hub)
            assert [tool.name for tool in (await client.list_tools()).tools] == before
            assert (await client.call_tool("list_agents")).is_error is False
            second = bridges.state.read_hub()
            assert first is not None
            assert second is not None
            assert first.pid != second.pid
            assert told == ["notifications/tools/list_changed"]


@pytest.mark.parametrize("command", ["mcp", "serve --stdio"])
def test_messages_that_are_piped_in_are_answered_in_their_order(
    bridges: Bridges, tmp_path: Path, command: str
) -> None:
    """As ``printf … | retinue mcp`` sends them: without waiting, and with the end of the input behind."""
    client = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    messages: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    file = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    done = subprocess.run(
        [sys.executable, "-m", "retinue", *command.split(), *([str(file)] if command != "mcp" else ())],
        env=bridges.environment,
        input=b"".join(orjson.dumps(one) + b"\n" for one in messages),
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    answers = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert [answer.get("id") for answer in answers if "id" in answer] == [1, 2]
    assert "serverInfo" in answers[0]["result"]
    names = [tool["name"] for tool in answers[-1]["result"]["tools"]]
    assert ("find_skills" in names) == (command == "mcp")


def test_nothing_but_the_protocol_stands_on_standard_output(bridges: Bridges) -> None:
    """One JSON-RPC message a line, for good input and bad; the end of the input ends the bridge."""
    messages: list[Any] = [
        b"this is no JSON",
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {
            "jsonrpc": "2.0",
            "id": "a",
            "method": "initialize",
            "params": {
                "protocolVersion": "2024-11-05",
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        },
    ]
    lines = [one if isinstance(one, bytes) else orjson.dumps(one) for one in messages]
    process = subprocess.Popen(
        [sys.executable, "-m", "retinue", "mcp"],
        env=bridges.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n".join(lines) + b"\n")
    process.stdin.flush()
    answers = [orjson.loads(process.stdout.readline()) for _ in lines]
    rest, _ = process.communicate(timeout=WAIT_S)
    assert rest == b""
    assert process.returncode == 0
    by_id = {answer["id"]: answer for answer in answers}
    assert by_id[None]["error"]["code"] == -32700
    assert "error" in by_id[1]
    assert by_id["a"]["result"]["protocolVersion"] == "2024-11-05"
    assert by_id["a"]["result"]["serverInfo"]["name"] == "retinue"
