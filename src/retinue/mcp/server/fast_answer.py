"""The HTTP response to one request of the fast path, byte for byte as the SDK writes it.

2026-07-28: JSON, or an event stream for a call of over 15 s. With sessions: always an event stream. While the
call runs, a stream is kept open by comments, or by the progress reports that the client asked for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import ErrorData
from pydantic_core import to_json, to_jsonable_python
from starlette.types import Receive, Send

from retinue.mcp.server.channel import HEARTBEAT_S
from retinue.mcp.server.fast_requests import FastRequest
from retinue.web.disconnect import CancelOnDisconnect

_TICK = 1e-6
_MODERN_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
]

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class FastAnswer(CancelOnDisconnect):
    """Writes one response, within a ``with`` block that ends early when the client disconnects.

    A quick result leaves with the head of its event stream. After `WATCH_AFTER_S` the head of a session's
    stream is sent, and the alarm keeps the stream open from then on.
    """

    __slots__ = ("_beats", "_began", "_is_over", "_is_streaming", "_request", "_send", "_writing")

    def __init__(self, receive: Receive, send: Send, request: FastRequest) -> None:
        super().__init__(receive)
        self._send = send
        self._request = request
        self._began = self._loop.time()
        self._beats = 0
        self._is_streaming = False
        self._is_over = False
        self._writing: asyncio.Task[None] | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool:
        self._is_over = True
        if self._writing is not None:
            self._writing.cancel()
        return super().__exit__(kind, error, at)

    def ring(self) -> None:
        if self._watcher is None:
            super().ring()
            if self._request.is_modern:
                self._wait_for_beat()
                return
        self._writing = self._loop.create_task(self._keep_open())

    async def finish(self, result: dict[str, Any], *, filled: tuple[bytes, bytes] | None = None) -> None:
        """End with the result; ``filled`` replaces a placeholder in its JSON by ready bytes."""
        body = self._render({"jsonrpc": "2.0", "id": self._request.id, "result": result})
        await self._end(body if filled is None else body.replace(*filled), 200)

    async def fail(self, error: ErrorData) -> None:
        """End with a JSON-RPC error."""
        if self._request.is_modern:
            said = error.model_dump(mode="json", by_alias=True, exclude_none=True)
        else:
            said = error.model_dump(by_alias=True, exclude_unset=True)
        body = self._render({"jsonrpc": "2.0", "id": self._request.id, "error": said})
        await self._end(body, ERROR_CODE_HTTP_STATUS.get(error.code, 200))

    async def end_without_result(self) -> None:
        """End the stream of a session that is over; the client learns so with its next request."""
        await self._settle()
        if not self._is_streaming:
            await self._open()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _end(self, body: bytes, status: int) -> None:
        await self._settle()
        if self._request.is_modern and not self._is_streaming:
            headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
            return
        if not self._is_streaming:
            await self._open()
        await self._send({"type": "http.response.body", "body": _as_event(body), "more_body": False})

    async def _settle(self) -> None:
        """Stop the alarm, and wait for what it is writing."""
        self._is_over = True
        self.unset()
        if self._writing is not None:
            await self._writing

    async def _open(self) -> None:
        self._is_streaming = True
        headers = _MODERN_STREAM
        if self._request.session is not None:
            headers = [
                (b"cache-control", b"no-cache, no-transform"),
                (b"connection", b"keep-alive"),
                (b"content-type", b"text/event-stream"),
                (b"mcp-session-id", self._request.session.encode("latin-1")),
                (b"x-accel-buffering", b"no"),
            ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _keep_open(self) -> None:
        is_head = not self._is_streaming
        if is_head:
            await self._open()
        if self._request.is_modern or not is_head:
            self._beats += 1
            await self._send({"type": "http.response.body", "body": self._render_beat(), "more_body": True})
        self._wait_for_beat()

    def _wait_for_beat(self) -> None:
        if not self._is_over:
            self.set(max(self._began + (self._beats + 1) * HEARTBEAT_S, self._loop.time()))

    def _render_beat(self) -> bytes:
        token = self._request.progress_token
        if token is not None:
            params = {"progressToken": token, "progress": self._beats * _TICK, "message": "still running"}
            report = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            return _as_event(self._render(report))
        comment = "ping" if self._request.is_modern else f"ping - {datetime.now(UTC)}"
        return f": {comment}\r\n\r\n".encode()

    def _render(self, document: Mapping[str, Any]) -> bytes:
        """The JSON text as the SDK spells it: ASCII in 2026-07-28, else UTF-8."""
        if not self._request.is_modern:
            return to_json(document, inf_nan_mode="null")
        try:
            return _encode(document).encode()
        except (TypeError, ValueError):
            return _encode(to_jsonable_python(document, inf_nan_mode="null")).encode()


def _as_event(body: bytes) -> bytes:
    return b"event: message\r\ndata: " + body + b"\r\n\r\n"
