"""The answer to one request of an MCP client: one JSON body, or a stream from its first event on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.types import Send

from retinue.core.errors import RetinueError
from retinue.protocols.mcp.messages import (
    MessageId,
    render_error,
    render_tool_error,
    status_of,
)
from retinue.protocols.mcp.sse import render_event
from retinue.surfaces.faults import facts_of, mcp_fault, row_of

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

_KEPT = ("mcp-session-id", "mcp-protocol-version", "retry-after", "allow")
_STREAM_HEADERS = (
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class Answering:
    """Writes one answer; what an agent says passes unread, with the headers that mean something here."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.streaming = False
        self.done = False

    async def whole(
        self, status: int, body: bytes, headers: Mapping[str, str], media_type: str = JSON
    ) -> None:
        """Answer with one body."""
        sent = [(b"content-length", str(len(body)).encode()), *_kept(headers)]
        if body:
            sent.append((b"content-type", media_type.encode("latin-1")))
        self.done = True
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self, events: bytes, headers: Mapping[str, str], *, last: bool = False) -> None:
        """Send some events; returns when the client has taken so much of them that more can follow."""
        if not self.streaming:
            self.streaming = True
            sent = [*_STREAM_HEADERS, *_kept(headers)]
            await self._send({"type": "http.response.start", "status": 200, "headers": sent})
        self.done = last
        await self._send({"type": "http.response.body", "body": events, "more_body": not last})

    async def end(self) -> None:
        """End a stream that ends without a last event."""
        if self.streaming and not self.done:
            await self.stream(b"", {}, last=True)

    async def refuse(
        self,
        error: RetinueError,
        message_id: MessageId,
        *,
        tool_call: bool = False,
        modern: bool = False,
        status: int | None = None,
    ) -> None:
        """Answer with an error of this hub; ``status`` instead of the one of its code."""
        code, text, data = _fault(error, tool_call=tool_call)
        if code is None:
            status, body = 200, render_tool_error(message_id, text, modern=modern)
        else:
            status = status or status_of(code, modern=modern)
            body = render_error(message_id, code, text, data)
        if self.streaming:
            await self.stream(render_event(body), {}, last=True)
        else:
            await self.whole(status, body, {})


def _fault(error: RetinueError, *, tool_call: bool) -> tuple[int | None, str, object]:
    if tool_call:
        return mcp_fault(error)
    row = row_of(type(error))
    return row.standard_code, row.prefix + error.message, facts_of(error)


def _kept(headers: Mapping[str, str]) -> Iterable[tuple[bytes, bytes]]:
    return [(name.encode(), headers[name].encode("latin-1")) for name in _KEPT if name in headers]
