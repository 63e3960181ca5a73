"""The MCP server of a process, made at its first request.

The SDK and its models of both protocol generations take about 35 MB and half a second of processor time.
A process that answers no MCP request does not load them.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from starlette.routing import Route
from starlette.types import ASGIApp

from retinue.mcp.server.long_results import LongResults
from retinue.mcp.server.offer import McpOptions, Offer
from retinue.mesh.dispatch import Calls
from retinue.mesh.reading import Reader
from retinue.parts.lazy import Lazy, LazyApp

if TYPE_CHECKING:
    from retinue.mcp.server.endpoint import McpServer
    from retinue.mcp.server.shared_sessions import LedSessions, SharedSessions
    from retinue.mcp.session_records import SessionRecords

_SERVER_MODULE = "retinue.mcp.server.endpoint"


def lazy_server(
    offer: Offer,
    calls: Calls,
    reads: Reader,
    options: McpOptions | None = None,
    long_results: LongResults | None = None,
    *,
    shared: SharedSessions | None = None,
    led: LedSessions | None = None,
    records: SessionRecords | None = None,
) -> Lazy[McpServer]:
    """The MCP server of one offer; ``end`` ends its sessions and streams. Close it with ``aclose``.

    Parameters as of `McpServer`.
    """

    @asynccontextmanager
    async def serve() -> AsyncIterator[McpServer]:
        module = await asyncio.to_thread(import_module, _SERVER_MODULE)
        server: McpServer = module.McpServer(
            offer, calls, reads, options, long_results, shared=shared, led=led, records=records
        )
        # what the import made lives as long as the process; each full collection would take 0.2 s
        gc.freeze()
        async with server.running():
            yield server

    return Lazy(serve, lambda server: server.end())


def mcp_route(
    server: Lazy[McpServer], path: str = "/mcp", *, ensure_fresh: Callable[[], Awaitable[None]] | None = None
) -> Route:
    """The Streamable HTTP endpoint, for use behind SecurityMiddleware.

    ``ensure_fresh`` is awaited before each request, so that the offer is current.
    """

    async def make() -> ASGIApp:
        return (await server.open()).endpoint(ensure_fresh)

    # an endpoint that was made answers 503 by itself when its server has ended
    app = LazyApp(make)
    return Route(path, app, methods=["GET", "POST", "DELETE"])
