"""A hub with fifty imported servers, ten of them broken, each in another way."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import orjson
import pytest
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from retinue.settings import ImportsTable, ImportTable, Settings
from retinue.storage.state import State
from tests.mcp.clients import connect
from tests.serving import serve_app
from tests.system import WAIT_S, System, open_system

GOOD = 40
PYTHON = sys.executable

_HANDSHAKE = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    info = {"serverInfo": {"name": "x"}, "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
    odd = {"name": "odd", "inputSchema": {"type": 7}}
    fine = {"name": "fine", "inputSchema": {"type": "object"}}
    tools = {"tools": [odd, fine]}
    result = info if asked["method"] == "initialize" else tools
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def broken(folder: Path, dead_port: int, failing: str) -> dict[str, ImportTable]:
    """Ten servers that do not work, by what is wrong with them."""

    def python(text: str, **more: Any) -> ImportTable:
        return ImportTable(command=PYTHON, args=("-c", text), folder=folder, **more)

    many = "import sys\nfor _ in range(100_000): "
    flood = f"{many}sys.stderr.write('warning ' * 100 + chr(10))\nsys.stdin.read()"
    junk = f"{many}print('Server listening!')\nsys.stdin.read()"
    needy = "import os, sys\nif 'TOKEN' not in os.environ: sys.exit('TOKEN is not set')"
    return {
        "dead-port": ImportTable(url=f"http://127.0.0.1:{dead_port}/mcp"),
        "hangs": python("import sys; sys.stdin.read()", start_s=2),
        "junk": python(junk, start_s=2),
        "flood": python(flood, start_s=2),
        "missing": ImportTable(command=str(folder / "no-such-program")),
        "exits": python("raise SystemExit(3)"),
        "odd-schema": python(_HANDSHAKE),
        "slow": python(f"import time\ntime.sleep(20)\n{_HANDSHAKE}"),
        "needs-variable": python(needy),
        "http-500": ImportTable(url=failing),
    }


REASONS = {
    "dead-port": "nothing listens there",
    "hangs": "did not start within 2 s",
    "junk": "did not start within 2 s",
    "flood": "did not start within 2 s",
    "missing": "No such file",
    "exits": "code 3",
    "needs-variable": "TOKEN is not set",
    "http-500": "status 500",
}


def echo_app() -> Any:
    """A server with one tool."""
    context = ServerRequestContext[Any, Any]

    async def list_tools(_: context, params: Any) -> types.ListToolsResult:
        schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=schema)])

    async def call_tool(_: context, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=str((params.arguments or {})["text"]))])

    return Server("echo", on_list_tools=list_tools, on_call_tool=call_tool).streamable_http_app()


@asynccontextmanager
async def fifty(folder: Path) -> AsyncIterator[System]:
    """A system whose settings name forty servers that work, and ten that do not."""

    async def fail(request: Any) -> PlainTextResponse:
        return PlainTextResponse("out of order", 500)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead_port = taken.getsockname()[1]
        async with open_system(State(folder / "home")) as system:
            enter = system.stack.enter_async_context
            failing = await enter(serve_app(Starlette(routes=[Route("/mcp", fail, methods=["POST"])])))
            urls = [await enter(serve_app(echo_app())) for _ in range(4)]
            good = {f"good-{n}": ImportTable(url=f"{urls[n % 4]}/mcp") for n in range(GOOD)}
            tables = {**broken(folder, dead_port, f"{failing}/mcp"), **good}
            system.settings = Settings(imports=ImportsTable.model_validate(tables), hub={"listing": "all"})
            yield system


@pytest.mark.timeout(120)
async def test_ten_broken_servers_of_fifty_hide_and_slow_down_none(tmp_path: Path) -> None:
    async with fifty(tmp_path) as system:
        hub = await system.start_hub()
        async with connect(f"{hub.url}/mcp") as client:
            began = time.monotonic()
            listed = await client.list_tools()
            assert time.monotonic() - began < 1
            assert "list_agents" in {tool.name for tool in listed.tools}
            async with asyncio.timeout(WAIT_S):
                while _count(await client.list_tools(), "__echo") < GOOD:
                    await asyncio.sleep(0.05)
            began = time.monotonic()
            listed = await client.list_tools()
            assert time.monotonic() - began < 1
            assert _count(listed, "odd-schema__fine") == 1
            results = await asyncio.gather(
                *(client.call_tool(f"good-{n}__echo", {"text": f"t{n}"}) for n in range(GOOD))
            )
            assert [one.content[0].text for one in results] == [f"t{n}" for n in range(GOOD)]  # type: ignore[union-attr]
            slowest = 0.0
            for n in range(GOOD):
                began = time.monotonic()
                await client.call_tool(f"good-{n}__echo", {"text": "x"})
                slowest = max(slowest, time.monotonic() - began)
            assert slowest < 1
            await _until_all_reasons(client)


async def _until_all_reasons(client: Any) -> None:
    """Wait until the list of agents says what is wrong with each broken server."""
    missing = dict(REASONS)
    async with asyncio.timeout(WAIT_S):
        while missing:
            found = await client.call_tool("list_agents", {"detailed": True}, meta={"retinue/whole": True})
            rows = {row["name"]: row for row in orjson.loads(found.content[0].text)["agents"]}
            missing = {
                name: reason
                for name, reason in REASONS.items()
                if name not in rows or reason not in str(rows[name].get("reason"))
            }
            await asyncio.sleep(0.1)


def _count(listed: types.ListToolsResult, ending: str) -> int:
    return sum(tool.name.endswith(ending) for tool in listed.tools)
