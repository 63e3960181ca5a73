"""What stands between a client and an MCP server: nothing, a hub, or fastmcp's proxy."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp

from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.record import AgentRecord, Endpoint, Skill
from retinue.mesh.directory.listings import MemoryListings
from retinue.oci.registry import publish_card
from retinue.runtime.hub_process import hub_app
from retinue.runtime.mcp_endpoints import open_hub_mcp
from retinue.runtime.mesh import LazyRuns, open_mesh
from retinue.runtime.serving import url_of
from retinue.settings import load_settings
from retinue.storage.state import State

SCOPES = frozenset({"exposed", "mesh"})


@asynccontextmanager
async def bare() -> AsyncIterator[ASGIApp]:
    """An echo on the official SDK, as FACTS 4 has it."""

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[types.Tool(name="echo", description="Echoes", input_schema={"type": "object"})]
        )

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        text = str((params.arguments or {}).get("text"))
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    server: Server[Any] = Server(
        "bare",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda _: {"type": "object"},
    )
    manager = StreamableHTTPSessionManager(server)
    async with manager.run():
        yield Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp(manager))])


@asynccontextmanager
async def hub(folder: str, upstream: str, listener: socket.socket) -> AsyncIterator[ASGIApp]:
    """A hub whose one agent is the server at ``upstream``."""
    settings, state, url = load_settings(), State(Path(folder)), url_of(listener)
    state.prepare()
    skill = Skill("echo", "Echoes", visibility="exposed")
    endpoint = Endpoint("execute", upstream)
    record = AgentRecord("echo-agent", "1.0.0", endpoints=(endpoint,), skills=(skill,))
    runs = LazyRuns(settings, state)
    async with open_mesh(
        settings, state, MemoryListings(), open_runs=runs.open, hub_id="hub", url=url
    ) as mesh:
        card = encode_card(render_card(record, scopes=SCOPES))
        await publish_card(
            mesh.home,
            record.name,
            card,
            version="1.0.0",
            skills=["echo"],
            created=datetime.now(UTC),
            tag="v1",
        )
        await mesh.directory.refresh()
        async with open_hub_mcp(mesh, settings) as mcp:
            yield hub_app(mesh, settings, state, host="127.0.0.1", url=url, mcp=mcp)


@asynccontextmanager
async def proxy(upstream: str) -> AsyncIterator[ASGIApp]:
    """fastmcp's proxy over a client that stays connected to the server at ``upstream``."""
    from fastmcp import Client
    from fastmcp.server import create_proxy

    async with Client(f"{upstream}/mcp") as client:
        app = create_proxy(client).http_app(path="/mcp")
        async with app.lifespan(app):
            yield app
