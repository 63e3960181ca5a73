"""Forwarders and proxies between a client and an agent, each as an app of its own process.

python -m benchmarks.mcp_hub_servers KIND UPSTREAM      prints its url and serves until it is told to stop
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import mcp_types as types
from mcp import Client
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.runtime.serving import Stop, bind, run_loop, serving, url_of
from retinue.web.disconnect import read_body

_NOT_FORWARDED = frozenset({b"host", b"content-length", b"connection", b"transfer-encoding"})


@asynccontextmanager
async def forwarder(upstream: str) -> AsyncIterator[ASGIApp]:
    """The least that a hub can be: a body in, the same body out of an aiohttp session, and back."""
    async with aiohttp.ClientSession(auto_decompress=False) as http:

        async def forward(scope: Scope, receive: Receive, send: Send) -> None:
            body = await read_body(receive)
            headers = {
                name.decode(): value.decode("latin-1")
                for name, value in scope["headers"]
                if name not in _NOT_FORWARDED
            }
            async with http.post(upstream + scope["path"], data=body, headers=headers) as reply:
                found = await reply.read()
            sent = [
                (name.lower(), value)
                for name, value in reply.raw_headers
                if name.lower() not in _NOT_FORWARDED
            ]
            sent.append((b"content-length", b"%d" % len(found)))
            await send({"type": "http.response.start", "status": reply.status, "headers": sent})
            await send({"type": "http.response.body", "body": found})

        yield forward


@asynccontextmanager
async def sdk_forwarder(upstream: str) -> AsyncIterator[ASGIApp]:
    """The SDK's low-level server in front of the SDK's client, which stays connected."""
    async with Client(f"{upstream}/mcp") as client:
        listed = await client.list_tools()

        async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
            return listed

        async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
            return await client.call_tool(params.name, params.arguments)

        schemas = {tool.name: tool.input_schema for tool in listed.tools}
        server: Server[Any] = Server(
            "forwarder",
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            get_tool_input_schema=schemas.get,
        )
        manager = StreamableHTTPSessionManager(server)
        async with manager.run():
            yield Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp(manager))])


@asynccontextmanager
async def connected_proxy(upstream: str) -> AsyncIterator[ASGIApp]:
    """fastmcp's proxy over a client that stays connected."""
    from fastmcp import Client as FastClient
    from fastmcp.server import create_proxy

    async with FastClient(f"{upstream}/mcp") as client:
        app = create_proxy(client).http_app(path="/mcp")
        async with app.lifespan(app):
            yield app


@asynccontextmanager
async def default_proxy(upstream: str) -> AsyncIterator[ASGIApp]:
    """fastmcp's proxy as its documentation has it: with a new client for each call."""
    from fastmcp.server import create_proxy

    app = create_proxy(f"{upstream}/mcp").http_app(path="/mcp")
    async with app.lifespan(app):
        yield app


def open_app(kind: str, upstream: str) -> AbstractAsyncContextManager[ASGIApp]:
    kinds = {
        "forwarder": forwarder,
        "sdk": sdk_forwarder,
        "fastmcp": connected_proxy,
        "fastmcp-default": default_proxy,
    }
    return kinds[kind](upstream)


async def main(kind: str, upstream: str) -> int:
    listener = bind("127.0.0.1", 0)
    stop = Stop()
    stop.on_signals()
    async with open_app(kind, upstream) as app, serving(app, listener, stop):
        print(url_of(listener), flush=True)
        await stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(run_loop(lambda: main(sys.argv[1], sys.argv[2])))
