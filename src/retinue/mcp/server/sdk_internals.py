"""Reaches private parts of the SDK (2.3.0): connections, requests of a session, the clock of an idle one.

This file alone names private attributes of the SDK, and a test holds the SDK to them.
"""

from __future__ import annotations

import asyncio
import math

from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager


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
