"""``retinue serve --stdio``: nothing but protocol on standard output, and an end that is clean."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage
from mcp_types import CreateMessageResult, JSONRPCNotification, JSONRPCResponse, TextContent

from retinue.mcp.stdio.server_wire import DRAIN_S, OpenRequests, read_messages
from tests.mcp.clients import MODES, connect_stdio, texts
from tests.mcp.test_calling import initialize
from tests.seeds.seed_004 import write_coder
from tests.system import WAIT_S

NOISY = '''
import os
import subprocess
import sys

from retinue import Agent, Context

print("printed while it is imported")
agent = Agent("noisy-agent", logging=True)


@agent.skill(expose=True)
async def shout(ctx: Context) -> str:
    """Writes wherever it can."""
    print("printed while it runs")
    os.write(1, b"written past Python\\n")
    subprocess.run([sys.executable, "-c", "print('printed by a child')"], check=True)
    await ctx.log("a line for the client")
    return f"read {sys.stdin.read()!r}"


@agent.skill
async def for_the_mesh() -> str:
    return "mesh"


@agent.skill(expose=True, runs_code=True)
async def run(code: str) -> str:
    return f"ran {code}"


@agent.skill(expose=True)
async def ask(ctx: Context) -> str:
    return await ctx.sample("say something")
'''


@pytest.fixture
def noisy(tmp_path: Path) -> Path:
    file = tmp_path / "noisy_agent.py"
    file.write_text(NOISY)
    return file


async def test_nothing_but_protocol_reaches_standard_output(noisy: Path) -> None:
    async with connect_stdio(noisy) as pipe:
        await pipe.ask(initialize())
        await pipe.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
        listed = await pipe.ask({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        assert [tool["name"] for tool in listed["result"]["tools"]] == ["shout", "run", "ask"]
        called = await pipe.ask(call("shout", id=3))
        assert called["result"]["content"][0]["text"] == "read ''"
        (line,) = pipe.notifications
        assert line["params"] == {"level": "info", "data": "a line for the client"}
        # whoever starts a process may have it run code
        ran = await pipe.ask(call("run", id=4, code="x"))
        assert ran["result"]["content"][0]["text"] == "ran x"


def call(name: str, id: int, **arguments: Any) -> dict[str, Any]:  # noqa: A002 - JSON-RPC's name for it
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_speaks_to_it(noisy: Path, mode: str) -> None:
    async def say(context: Any, params: Any) -> Any:
        return CreateMessageResult(role="assistant", content=TextContent(text="hm"), model="test")

    program = StdioServerParameters(
        command=sys.executable, args=["-m", "retinue", "serve", str(noisy), "--stdio"]
    )
    with (noisy.parent / "log").open("w") as log:
        async with Client(stdio_client(program, errlog=log), mode=mode, sampling_callback=say) as client:
            assert len((await client.list_tools()).tools) == 3
            assert texts(await client.call_tool("ask")) == ["hm"]


async def test_a_signal_ends_it_although_its_input_stays_open(noisy: Path) -> None:
    async with connect_stdio(noisy) as pipe:
        await pipe.ask(initialize())
        pipe.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_S):
            assert await pipe.process.wait() == 0


async def test_lists_are_read_anew_over_stdio_too(tmp_path: Path) -> None:
    file = write_coder(tmp_path, mcp={"expose_tools": ["git:*"]})
    async with connect_stdio(file) as pipe:
        await pipe.ask(initialize())
        await pipe.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await pipe.ask({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        write_coder(tmp_path, mcp={"expose_tools": ["fs:*"]})
        changed = await pipe.read()
        assert changed["method"] == "notifications/tools/list_changed"
        listed = await pipe.ask({"jsonrpc": "2.0", "id": 3, "method": "tools/list"})
        assert [tool["name"] for tool in listed["result"]["tools"]] == ["fs_read_file", "fs_write_file"]


@pytest.mark.parametrize("flags", [("--reload",), ("--port", "9")])
async def test_what_needs_a_port_does_not_go_with_stdio(noisy: Path, flags: tuple[str, ...]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "retinue", "serve", str(noisy), "--stdio", *flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert b"--stdio cannot be combined with --port or --reload" in err


ANSWER = JSONRPCResponse(jsonrpc="2.0", id=1, result={})
CANCELLED = JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params={"requestId": 1})


@pytest.mark.parametrize("ends", ["answered", "cancelled", "out of time"])
async def test_requests_before_the_end_of_the_input_are_answered_before_the_stream_ends(ends: str) -> None:
    descriptor, writing = os.pipe()
    os.write(writing, b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}\n')
    os.close(writing)
    incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    requests, loop = OpenRequests(), asyncio.get_running_loop()
    with os.fdopen(descriptor, "rb") as source:
        drain_s = 0.0 if ends == "out of time" else DRAIN_S
        reader = asyncio.create_task(
            asyncio.to_thread(read_messages, source, incoming, requests, loop, drain_s=drain_s)
        )
        await reading.receive()
        ending = asyncio.create_task(reading.receive())
        if ends != "out of time":
            assert await asyncio.wait({ending}, timeout=0.1) == (set(), {ending})
            if ends == "answered":
                requests.note_outgoing(ANSWER)
            else:
                requests.note_incoming(CANCELLED)
        with pytest.raises(anyio.EndOfStream):
            await ending
        await reader
    reading.close()
