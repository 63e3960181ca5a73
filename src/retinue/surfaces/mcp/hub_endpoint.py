"""The hub's ``/mcp``: as every MCP door, and a session's list of tools keeps its form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.surfaces.mcp.mesh_offer import session

_SESSION = b"mcp-session-id"


class HubEndpoint:
    """``app``, with the session of each request told to the offer, and the list of agents as it is now."""

    def __init__(self, app: ASGIApp, ensure_fresh: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._ensure_fresh = ensure_fresh

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._ensure_fresh()
        given = dict(scope["headers"]).get(_SESSION)
        marked = session.set(None if given is None else given.decode("latin-1"))
        try:
            await self._app(scope, receive, send)
        finally:
            session.reset(marked)


def hub_route(route: Route, ensure_fresh: Callable[[], Awaitable[None]]) -> Route:
    """The route of an MCP door as a hub has it."""
    return Route(route.path, HubEndpoint(route.app, ensure_fresh), methods=["GET", "POST", "DELETE"])
