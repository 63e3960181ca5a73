"""Builds the MCP endpoint of an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.routing import Route

from retinue.authoring.agent import Agent
from retinue.authoring.local import local_reader
from retinue.mcp.server.lazy_server import lazy_server, mcp_route
from retinue.mcp.server.offer import HEARTBEAT_S, McpOptions, RecordOffer
from retinue.mesh.dispatch import Dispatcher
from retinue.parts.lazy import Lazy
from retinue.parts.process import Process
from retinue.runtime.joined_mesh import JoinedMesh, LimitedCalls
from retinue.settings_tables import LimitTable, McpTable

if TYPE_CHECKING:  # with the SDK, which the first request loads
    from retinue.mcp.server.endpoint import McpServer


@dataclass(frozen=True, slots=True)
class McpEndpoints:
    """The open endpoints of a process; made by `open_hub_mcp` and `open_agent_mcp`.

    ``end`` ends every session and stream now, so that a server that waits for them can stop.
    """

    own: Lazy[McpServer]
    routes: tuple[Route, ...]
    end: Callable[[], None]


@asynccontextmanager
async def open_agent_mcp(process: Process, servers: JoinedMesh | LimitedCalls) -> AsyncIterator[McpEndpoints]:
    """Open the endpoint of one agent; closed on leaving.

    Its resource and prompt functions call through ``servers``.
    """
    limit_bytes = process.tables.get(LimitTable).body_bytes
    own = agent_server(process.agent, process.dispatcher, servers, process.tables.get(McpTable), limit_bytes)
    try:
        yield McpEndpoints(own, (mcp_route(own),), own.end)
    finally:
        await own.aclose()


def agent_server(
    agent: Agent,
    dispatcher: Dispatcher,
    servers: JoinedMesh | LimitedCalls | None,
    table: McpTable,
    max_body_bytes: int,
    *,
    heartbeat_s: float = HEARTBEAT_S,
) -> Lazy[McpServer]:
    """The MCP server of one agent, made at its first use."""
    offer = RecordOffer(
        lambda: agent.record(with_facts=True),
        agent.changes.subscribe,
        dispatcher.access,
        names=table.names,
        logs=agent.logs,
    )
    options = McpOptions(
        guard_as_tool_error=table.guard_as_tool_error,
        result_chars=table.result_chars,
        max_body_bytes=max_body_bytes,
        heartbeat_s=heartbeat_s,
    )
    return lazy_server(offer, dispatcher, local_reader(agent, dispatcher, servers, servers), options)
