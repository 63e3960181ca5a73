"""``/mcp``: the SDK's Streamable HTTP, each session bound to whoever opened it."""

from __future__ import annotations

from collections.abc import Callable

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from retinue.surfaces.mcp.callers import asking
from retinue.surfaces.mcp.hangups import watch
from retinue.surfaces.mcp.ready_bytes import fill_in
from retinue.surfaces.mcp_visitors import narrow, owner_of
from retinue.surfaces.security import visitor_of


class McpEndpoint:
    """The door as an ASGI app, behind a Doorkeeper."""

    def __init__(self, manager: StreamableHTTPSessionManager, is_running: Callable[[], bool]) -> None:
        self._manager = manager
        self._is_running = is_running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_running():
            await Response("this server is stopping", 503)(scope, receive, send)
            return
        principal = narrow(visitor_of(scope).principal)
        scope["headers"] = [_trimmed(name, value) for name, value in scope["headers"]]
        # the SDK compares this with the session's opener and answers a stranger as it would a lost session
        scope["user"] = AuthenticatedUser(
            AccessToken(token="", client_id=owner_of(principal), scopes=sorted(principal.scopes))
        )
        marked = asking.set(principal)
        try:
            await self._manager.handle_request(scope, watch(scope, receive), fill_in(scope, send))
        finally:
            asking.reset(marked)


def _trimmed(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """White space around a value is no part of it (RFC 9110, 5.5); the server leaves what trails it."""
    return (name, value.strip(b" \t")) if name.startswith(b"mcp-") else (name, value)
