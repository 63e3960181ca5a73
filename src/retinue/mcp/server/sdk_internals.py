"""Reaches private parts of the SDK (2.3.0): connections, requests of a session, the clock of an idle one.

This file alone names private attributes of the SDK, and a test holds the SDK to them.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mcp.server.auth.middleware.bearer_auth import authorization_context
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.dispatcher import coerce_request_id
from starlette.types import Receive, Scope, Send

from retinue.core.call import Principal
from retinue.mesh.channel import ASKABLE
from retinue.mesh.permissions import principal_key

if TYPE_CHECKING:
    from retinue.mcp.server.change_notifier import ChangeNotifier, Connections, RunningCall


def connection_of(context: ServerRequestContext) -> Connection:
    """The connection that the message of this context came over."""
    return context.session._connection


def find_open_session(
    manager: StreamableHTTPSessionManager, session_id: str
) -> StreamableHTTPServerTransport | None:
    """The session of this id; None if it is unknown, has ended or is ending."""
    session = manager._server_instances.get(session_id)
    if session is None or session.is_terminated or session.idle_scope is None:
        return None
    return None if session.idle_scope.cancel_called else session


def has_request(session: StreamableHTTPServerTransport, request_id: str | int) -> bool:
    """Whether the SDK has yet to answer a request of this id in the session."""
    return str(request_id) in session._request_streams


async def open_under_id(
    manager: StreamableHTTPSessionManager, session_id: str, scope: Scope, receive: Receive, send: Send
) -> bool:
    """Open a session of a given id by an ``initialize`` request; False if there is no room for it.

    The SDK itself makes the id of each session. ``scope`` has the user that owns the session.
    """
    is_full = manager.max_sessions is not None and len(manager._server_instances) >= manager.max_sessions
    if is_full:
        return False
    session = StreamableHTTPServerTransport(
        mcp_session_id=session_id,
        is_json_response_enabled=manager.json_response,
        event_store=manager.event_store,
        security_settings=manager.security_settings,
        retry_interval=manager.retry_interval,
        idle_timeout=manager.session_idle_timeout,
    )
    manager._session_owners[session_id] = authorization_context(scope["user"])
    manager._server_instances[session_id] = session
    await manager._serve_opening_request(session, scope, receive, send)
    return session_id in manager._server_instances


async def send_to_session(
    manager: StreamableHTTPSessionManager, session_id: str, scope: Scope, receive: Receive, send: Send
) -> None:
    """Let an open session handle a request."""
    if (session := manager._server_instances.get(session_id)) is not None:
        await session.handle_request(scope, receive, send)


class Hold:
    """Stops the idle clock of an open session inside its block; it restarts with the last request.

    ``idle_s`` is the manager's ``session_idle_timeout``. Not a generator, because every call enters one.
    """

    __slots__ = ("_idle_s", "_scope", "_session")

    def __init__(self, session: StreamableHTTPServerTransport, idle_s: float) -> None:
        assert session.idle_scope is not None, "find_open_session gives no other"
        self._session = session
        self._scope = session.idle_scope
        self._idle_s = idle_s

    def __enter__(self) -> None:
        self._session._requests_in_flight += 1
        self._scope.deadline = math.inf

    def __exit__(self, *_: object) -> None:
        self._session._requests_in_flight -= 1
        if not self._session._requests_in_flight:
            # the clock of anyio on this loop; its current_time() asks first which loop runs
            self._scope.deadline = asyncio.get_running_loop().time() + self._idle_s


class OpenSession(NamedTuple):
    """A session in which a call may run, with its running ``calls`` by request id.

    ``is_askable``: its client answers questions. ``hold`` keeps it from becoming idle.
    """

    calls: dict[str | int, RunningCall]
    is_askable: bool
    hold: AbstractContextManager[None]


class Sessions(Protocol):
    """The sessions in which a process answers calls: those of the SDK, or those of a hub's leader."""

    def find(self, session_id: str, request_id: str | int, principal: Principal) -> OpenSession | None:
        """The session, if it is this caller's, has begun, and no request of this id runs in it."""

    def has_request(self, session_id: str, request_id: str | int, principal: Principal) -> bool:
        """Whether a request of this id is not answered yet in a session of this caller."""

    def attend(self, principal: Principal) -> None:
        """Note what this caller sees, so that a later change of it is told."""


class SdkSessions:
    """The sessions of the SDK's ``manager``; ``idle_s`` is its ``session_idle_timeout``."""

    def __init__(
        self,
        manager: StreamableHTTPSessionManager,
        connections: Connections,
        notifier: ChangeNotifier,
        idle_s: float,
    ) -> None:
        self._manager = manager
        self._connections = connections
        self._idle_s = idle_s
        self.attend = notifier.attend

    def find(self, session_id: str, request_id: str | int, principal: Principal) -> OpenSession | None:
        live = self._connections.find(session_id)
        if live is None or live.owner != principal_key(principal):
            return None
        # the capabilities of a client are known once its initialize was accepted
        able = live.connection.client_capabilities
        if able is None or not live.connection.initialize_accepted:
            return None
        session = find_open_session(self._manager, session_id)
        if session is None or coerce_request_id(request_id) in live.calls:
            return None
        if has_request(session, request_id):
            return None
        is_askable = any(getattr(able, kind) is not None for kind in ASKABLE)
        return OpenSession(live.calls, is_askable, Hold(session, self._idle_s))

    def has_request(self, session_id: str, request_id: str | int, principal: Principal) -> bool:
        live = self._connections.find(session_id)
        session = find_open_session(self._manager, session_id)
        if live is None or session is None or live.owner != principal_key(principal):
            return False
        return coerce_request_id(request_id) in live.calls or has_request(session, request_id)
