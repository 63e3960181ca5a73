"""What the SDK (2.3.0) has no public way to: its connections, and the clock of an idle session.

This file alone names private attributes of the SDK, and a test holds the SDK to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from anyio import current_time
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
    """The session of this id; None for one that is unknown, has ended or is ending."""
    session = manager._server_instances.get(session_id)
    if session is None or session.is_terminated or session.idle_scope is None:
        return None
    return None if session.idle_scope.cancel_called else session


@contextmanager
def hold(session: StreamableHTTPServerTransport, idle_s: float) -> Iterator[None]:
    """Stop the idle clock of an open session meanwhile; it starts anew with its last request.

    ``idle_s`` is the manager's ``session_idle_timeout``.
    """
    scope = session.idle_scope
    assert scope is not None, "find_open_session gives no other"
    session._requests_in_flight += 1
    scope.deadline = math.inf
    try:
        yield
    finally:
        session._requests_in_flight -= 1
        if not session._requests_in_flight:
            scope.deadline = current_time() + idle_s
