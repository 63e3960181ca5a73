"""The MCP servers that are measured: ours, the SDK's low-level one, fastmcp, and a bare endpoint.

python -m benchmarks.mcp_servers KIND TOOLS      prints its url and serves until it is told to stop

Each offers ``echo`` and as many further tools as TOOLS says, all with the same schemas.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import orjson
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from benchmarks.agent_apps import PLAIN, open_agent_app
from retinue.authoring.agent import Agent
from retinue.runtime.parts.mcp import AgentMcpPart
from retinue.runtime.serving import Stop, bind, run_loop, serving, url_of

DESCRIPTION = "Gives back the text that it was given, as often as it was told to, and nothing beyond that."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["text", "count"],
}


def bare_app(tools: int) -> ASGIApp:
    """What the web framework alone costs: read JSON, write JSON."""
    listed = [{"name": name, "description": DESCRIPTION, "inputSchema": SCHEMA} for name in names(tools)]

    async def answer(request: Request) -> Response:
        asked = orjson.loads(await request.body())
        result: dict[str, Any] = {"tools": listed}
        if asked["method"] == "tools/call":
            result = {"content": [{"type": "text", "text": asked["params"]["arguments"]["text"]}]}
        reply = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
        return Response(orjson.dumps(reply), media_type="application/json")

    return Starlette(routes=[Route("/mcp", answer, methods=["POST"])])


def sdk_manager(tools: int) -> StreamableHTTPSessionManager:
    """The SDK's low-level server as it comes, with its default answers in event streams."""
    listed = [types.Tool(name=name, description=DESCRIPTION, input_schema=SCHEMA) for name in names(tools)]

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=(params.arguments or {})["text"])])

    server: Server[Any] = Server(
        "bare-sdk",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda name: SCHEMA,
    )
    return StreamableHTTPSessionManager(server)


def fast_app(tools: int) -> Any:
    """fastmcp as its documentation has it."""
    from fastmcp import FastMCP

    server: Any = FastMCP("fast")

    def echo(text: str, count: int) -> str:
        return text

    for name in names(tools):
        server.tool(echo, name=name, description=DESCRIPTION)
    return server.http_app(path="/mcp")


def echo_agent(tools: int) -> Agent:
    agent = Agent("echo-agent", version="1.0.0")

    async def echo(text: str, count: int) -> str:
        return text

    for name in names(tools):
        agent.skill(name, description=DESCRIPTION, expose=True)(echo)
    return agent


def names(tools: int) -> list[str]:
    return ["echo", *(f"tool_{n}" for n in range(tools - 1))]


@asynccontextmanager
async def open_app(kind: str, tools: int, home: Path) -> AsyncIterator[ASGIApp]:
    """The app of one kind, with whatever it needs to be entered."""
    if kind == "bare":
        yield bare_app(tools)
    elif kind == "sdk":
        manager = sdk_manager(tools)
        async with manager.run():
            yield Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp(manager))])
    elif kind == "fastmcp":
        app = fast_app(tools)
        running: AbstractAsyncContextManager[Any] = app.lifespan(app)
        async with running:
            yield app
    else:
        async with open_agent_app(echo_agent(tools), home, [AgentMcpPart(), *PLAIN]) as served:
            yield served


async def main(kind: str, tools: int) -> int:
    listener = bind("127.0.0.1", 0)
    stop = Stop()
    stop.on_signals()
    with tempfile.TemporaryDirectory() as home:
        async with open_app(kind, tools, Path(home)) as app, serving(app, listener, stop):
            print(url_of(listener), flush=True)
            await stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(run_loop(lambda: main(sys.argv[1], int(sys.argv[2]))))
