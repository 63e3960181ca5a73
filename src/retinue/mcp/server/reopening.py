"""Opens sessions again that a killed leader of a hub had, from their records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope

from retinue.mcp.server.sdk_internals import find_open_session, open_under_id, send_to_session
from retinue.mcp.session_records import SessionRecords
from retinue.web.security import Headers

_SESSION = b"mcp-session-id"


class Reopening:
    """Opens a session again at its first request; ``records`` are those of all leaders of the hub."""

    def __init__(self, manager: StreamableHTTPSessionManager, records: SessionRecords) -> None:
        self._manager = manager
        self._records = records
        self._opening: dict[str, asyncio.Lock] = {}

    async def prepare(self, scope: Scope, headers: Headers, owner: str) -> None:
        """Open the session that a request names, if it is recorded for this owner and is not open.

        ``scope`` is that of the request, with the user whom the SDK compares with the opener.
        """
        session_id = headers.get(_SESSION, b"").decode("latin-1").strip()
        if not session_id:
            return
        if session_id not in self._opening:
            if find_open_session(self._manager, session_id) is not None:
                return
            record = self._records.find(session_id)
            if record is None or record.owner != owner:
                return
            self._opening[session_id] = asyncio.Lock()
        lock = self._opening[session_id]
        async with lock:
            if find_open_session(self._manager, session_id) is not None:
                return
            record = self._records.find(session_id)
            try:
                if record is not None:
                    await self._open(session_id, record.messages, scope)
            finally:
                self._opening.pop(session_id, None)

    async def _open(self, session_id: str, messages: Sequence[Mapping[str, Any]], scope: Scope) -> None:
        for number, message in enumerate(messages):
            is_request = not message["method"].startswith("notifications/")
            body = orjson.dumps({**message, "id": f"again-{number}"} if is_request else message)
            again = {**scope, "method": "POST", "headers": _headers(scope, len(body))}
            if number == 0:
                if not await open_under_id(self._manager, session_id, again, _once(body), _hear_nothing):
                    return
            else:
                await send_to_session(self._manager, session_id, again, _once(body), _hear_nothing)


def _headers(scope: Scope, size: int) -> list[tuple[bytes, bytes]]:
    """The headers of a request of the session, for a body of JSON."""
    kept = {b"host", b"origin", _SESSION, b"mcp-protocol-version"}
    return [
        *(header for header in scope["headers"] if header[0] in kept),
        (b"accept", b"application/json, text/event-stream"),
        (b"content-type", b"application/json"),
        (b"content-length", str(size).encode()),
    ]


def _once(body: bytes) -> Receive:
    """Receives one body from a client that stays."""
    never, bodies = asyncio.Event(), [body]

    async def receive() -> Message:
        if not bodies:
            await never.wait()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    return receive


async def _hear_nothing(message: Message) -> None:
    """The client had these answers before."""
