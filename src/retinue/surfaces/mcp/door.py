"""One MCP server: the SDK's low-level server with our handlers, for HTTP in both eras and for stdio.

The SDK keeps sessions, versions and framing; what is offered and who may have it is asked of the offer
at each request, so one server serves every caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel
from starlette.routing import Route

from retinue.mesh.dispatch import Calls
from retinue.mesh.reading import Reads
from retinue.surfaces.mcp.audience import Audience
from retinue.surfaces.mcp.callers import STDIO, Context, asking, principal_of
from retinue.surfaces.mcp.calling import ToolHandlers
from retinue.surfaces.mcp.capabilities import UNDECLARED, capabilities_of
from retinue.surfaces.mcp.connections import Connections
from retinue.surfaces.mcp.eras import stamp
from retinue.surfaces.mcp.http import McpEndpoint
from retinue.surfaces.mcp.interacting import Interactions, Talk
from retinue.surfaces.mcp.long_results import LongResults
from retinue.surfaces.mcp.offer import Offer
from retinue.surfaces.mcp.reading import ReadHandlers
from retinue.surfaces.mcp.suspended import Suspensions

Handler = Callable[[Context, Any], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class McpOptions:
    """How a door answers; see ``[mcp]`` in the settings."""

    guard_as_tool_error: bool = False
    result_chars: int = 100_000
    max_sessions: int = 10_000
    session_idle_s: float = 1800.0
    max_body_bytes: int = 4 * 1024 * 1024


class McpDoor:
    """The MCP server over one offer; usable while ``running()`` is entered, once."""

    def __init__(self, offer: Offer, calls: Calls, reads: Reads, options: McpOptions | None = None) -> None:
        options = options or McpOptions()
        self._offer = offer
        self._connections = Connections(offer.sight_of)
        self._audience = Audience(offer, self._connections)
        self._suspensions: Suspensions[Talk] = Suspensions()
        self._listening = ListenHandler(self._audience)
        interactions = Interactions(self._connections, self._suspensions)
        long_results = LongResults(options.result_chars)
        self._tools = ToolHandlers(offer, calls, interactions, long_results, options.guard_as_tool_error)
        self._reading = ReadHandlers(offer, reads, self._connections, interactions, long_results)
        facts = offer.facts
        self._server: Server[Any] = Server(
            facts.name,
            version=facts.version,
            title=facts.title,
            instructions=facts.instructions,
            get_tool_input_schema=self._tools.find_input_schema,
        )
        self._register()
        # the two requests that are made most: their results are well-formed as they are, and the SDK
        # would check and copy each of them once more (a thousand tools: 50 ms)
        self._direct: dict[str, tuple[type[BaseModel], Handler]] = {
            "tools/list": (types.PaginatedRequestParams, self._tools.list_tools),
            "tools/call": (types.CallToolRequestParams, self._tools.call_tool),
        }
        # the SDK's own tracing costs a sixth of a call; ours observes the bus (DESIGN 2)
        self._server.middleware[:] = [self._answer]
        self._running = False
        self._ended = asyncio.Event()
        self._manager = StreamableHTTPSessionManager(
            self._server,
            max_sessions=options.max_sessions,
            session_idle_timeout=options.session_idle_s,
            max_request_body_size=options.max_body_bytes,
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
        self._audience.open()
        try:
            yield
        finally:
            self.end()
            await holder

    def end(self) -> None:
        """End every session and stream now, so that a server which waits for them can stop."""
        self._audience.close()
        self._listening.close()
        self._suspensions.end()
        self._ended.set()

    def route(self, path: str = "/mcp") -> Route:
        """The Streamable HTTP door, to stand behind a Doorkeeper."""
        return Route(path, McpEndpoint(self._manager, self._is_running), methods=["GET", "POST", "DELETE"])

    async def serve_streams(self, reading: Any, writing: Any) -> None:
        """Serve one client over a pair of the SDK's streams, such as stdio's, until it closes them."""
        told = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)
        asking.set(STDIO)
        await self._server.run(reading, writing, self._server.create_initialization_options(told))

    def _is_running(self) -> bool:
        return self._running and not self._ended.is_set()

    async def _hold(self, ready: asyncio.Event) -> None:
        async with self._manager.run():
            self._running = True
            ready.set()
            await self._ended.wait()

    def _register(self) -> None:
        add = self._server.add_request_handler
        tools, reading = self._tools, self._reading
        add("tools/list", types.PaginatedRequestParams, tools.list_tools)
        add("tools/call", types.CallToolRequestParams, tools.call_tool)
        add("resources/list", types.PaginatedRequestParams, reading.list_resources)
        add("resources/templates/list", types.PaginatedRequestParams, reading.list_templates)
        add("resources/read", types.ReadResourceRequestParams, reading.read_resource)
        add("resources/subscribe", types.SubscribeRequestParams, reading.subscribe)
        add("resources/unsubscribe", types.UnsubscribeRequestParams, reading.unsubscribe)
        add("prompts/list", types.PaginatedRequestParams, reading.list_prompts)
        add("prompts/get", types.GetPromptRequestParams, reading.get_prompt)
        add("completion/complete", types.CompleteRequestParams, reading.complete_argument)
        add("logging/setLevel", types.SetLevelRequestParams, reading.set_level)
        add("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listening)

    async def _answer(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Around every message: who asks decides what is declared, and only that is answered."""
        principal = principal_of(ctx)
        if self._connections.note(ctx) is not None:
            self._audience.attend(principal)
        wanted = UNDECLARED.get(ctx.method)
        if wanted is not None and wanted not in capabilities_of(self._offer, principal):
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
        direct = self._direct.get(ctx.method)
        if direct is not None and ctx.session.client_capabilities is not None:
            kind, handler = direct
            return stamp(ctx, await handler(ctx, kind.model_validate(ctx.params or {})), self._server)
        result = await call_next(ctx)
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            result["capabilities"] = capabilities_of(self._offer, principal)
        return result
