"""One MCP server: the SDK's low-level server with our handlers, for HTTP in both eras and for stdio.

The SDK keeps sessions, versions and framing; what is offered and who may have it is asked of the shelf
at each request, so one server serves every caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.routing import Route

from retinue.mesh.dispatch import Calls
from retinue.surfaces.mcp.callers import Context, principal_of
from retinue.surfaces.mcp.calling import ToolHandlers
from retinue.surfaces.mcp.http import McpEndpoint
from retinue.surfaces.mcp.shelf import Shelf


@dataclass(frozen=True, slots=True)
class McpOptions:
    """How a door answers; see ``[mcp]`` in the settings."""

    guard_as_tool_error: bool = False
    max_sessions: int = 10_000
    session_idle_s: float = 1800.0
    max_body_bytes: int = 4 * 1024 * 1024


class McpDoor:
    """The MCP server over one shelf; usable while ``running()`` is entered, once."""

    def __init__(self, shelf: Shelf, calls: Calls, options: McpOptions | None = None) -> None:
        self._shelf = shelf
        self._options = options or McpOptions()
        tools = ToolHandlers(shelf, calls, self._options.guard_as_tool_error)
        facts = shelf.facts
        self._server: Server[Any] = Server(
            facts.name,
            version=facts.version,
            title=facts.title,
            instructions=facts.instructions,
            get_tool_input_schema=tools.find_input_schema,
        )
        self._server.add_request_handler("tools/list", types.PaginatedRequestParams, tools.list_tools)
        self._server.add_request_handler("tools/call", types.CallToolRequestParams, tools.call_tool)
        # the SDK's own tracing costs a sixth of a call; ours observes the bus (DESIGN 2)
        self._server.middleware[:] = [self._answer]
        self._ended = asyncio.Event()
        self._manager = StreamableHTTPSessionManager(
            self._server,
            max_sessions=self._options.max_sessions,
            session_idle_timeout=self._options.session_idle_s,
            max_request_body_size=self._options.max_body_bytes,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while inside; leaving ends every session."""
        ready = asyncio.Event()
        # a task of its own: the SDK's task group must be left in the task that entered it
        holder = asyncio.create_task(self._hold(ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({holder, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        try:
            yield
        finally:
            self.end()
            await holder

    def end(self) -> None:
        """End every session and stream now, so that a server which waits for them can stop."""
        self._ended.set()

    async def _hold(self, ready: asyncio.Event) -> None:
        async with self._manager.run():
            ready.set()
            await self._ended.wait()

    def route(self, path: str = "/mcp") -> Route:
        """The Streamable HTTP door, to stand behind a Doorkeeper."""
        return Route(path, McpEndpoint(self._manager), methods=["GET", "POST", "DELETE"])

    async def _answer(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Around every message: who asks decides what is declared."""
        result = await call_next(ctx)
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            result["capabilities"] = self._capabilities(ctx)
        return result

    def _capabilities(self, context: Context) -> dict[str, Any]:
        """What this caller is told of; exactly the seed's for an agent of tools and resources (S-04)."""
        principal_of(context)
        return {"tools": {"listChanged": True}, "resources": {"listChanged": True}}
