"""The MCP server of a process, built at its first request.

The SDK and its models of both protocol generations take about 35 MB and half a second of processor time.
A process that answers no MCP request does not load them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.mcp.server.long_results import LongResults
from retinue.mcp.server.offer import McpOptions, Offer
from retinue.mesh.dispatch import Calls
from retinue.mesh.reading import Reader

if TYPE_CHECKING:
    from retinue.mcp.server.endpoint import McpServer

_SERVER_MODULE = "retinue.mcp.server.endpoint"


class LazyMcpServer:
    """The MCP server of one offer. Enter ``running()`` once to serve; the first request builds the server."""

    def __init__(
        self,
        offer: Offer,
        calls: Calls,
        reads: Reader,
        options: McpOptions | None = None,
        long_results: LongResults | None = None,
    ) -> None:
        self._offer = offer
        self._calls = calls
        self._reads = reads
        self._options = options
        self._long_results = long_results
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._server: McpServer | None = None
        self._ended = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while inside; leaving ends every session."""
        try:
            yield
        finally:
            self.end()
            # an opening that began before the end is closed too
            async with self._opening:
                await self._stack.aclose()

    def end(self) -> None:
        """End every session and stream now, so that a process that waits for them can stop."""
        self._ended = True
        if self._server is not None:
            self._server.end()

    async def open(self) -> McpServer:
        """Build and start the server on the first call; later calls return the same one."""
        async with self._opening:
            if self._server is None:
                module = await asyncio.to_thread(import_module, _SERVER_MODULE)
                server: McpServer = module.McpServer(
                    self._offer, self._calls, self._reads, self._options, self._long_results
                )
                await self._stack.enter_async_context(server.running())
                if self._ended:
                    server.end()
                self._server = server
        return self._server

    def route(
        self, path: str = "/mcp", *, ensure_fresh: Callable[[], Awaitable[None]] | None = None
    ) -> Route:
        """The Streamable HTTP endpoint, for use behind SecurityMiddleware.

        ``ensure_fresh`` is awaited before each request, so that the offer is current.
        """

        app: ASGIApp | None = None

        async def open_and_answer(scope: Scope, receive: Receive, send: Send) -> None:
            if self._ended:
                await Response("this server is stopping", 503)(scope, receive, send)
                return
            nonlocal app
            if app is None:
                # later requests of this route reach the server without passing here
                app = route.app = (await self.open()).endpoint(ensure_fresh)
            await app(scope, receive, send)

        route = Route(path, _AsgiApp(open_and_answer), methods=["GET", "POST", "DELETE"])
        return route


class _AsgiApp:
    """An ASGI app that Starlette does not take for a request handler, as it does every function."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
