"""Writes the response to an MCP client: one JSON body, or a stream after its first event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.types import Send

from retinue.core.errors import RetinueError
from retinue.core.quick_dataclass import quick_dataclass
from retinue.mcp.codec.messages import MessageId, render_error, render_tool_error, status_of
from retinue.mcp.codec.wire import EVENT_STREAM, JSON
from retinue.web.codec.sse import render_event
from retinue.web.error_table import facts_of, mcp_fault, row_of

_KEPT = ("mcp-session-id", "mcp-protocol-version", "retry-after", "allow")
_STREAM_HEADERS = (
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


@quick_dataclass(frozen=True, slots=True)
class Final:
    """The end of a response, as the agent sent it: a JSON body or an event.

    ``message`` is the JSON text within an event, b"" where the event has to stay one.
    """

    status: int
    headers: Mapping[str, str]
    raw: bytes
    is_event: bool
    message: bytes = b""


class ResponseWriter:
    """Writes one response; the agent's bytes pass unread, with the headers that the client needs."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.streaming = False
        self.done = False

    async def whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Respond with one JSON body, or with none."""
        sent = [(b"content-length", str(len(body)).encode()), *_kept(headers)]
        if body:
            sent.append((b"content-type", JSON.encode()))
        self.done = True
        await self._send({"type": "http.response.start", "status": status, "headers": sent})
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self, events: bytes, headers: Mapping[str, str], *, last: bool = False) -> None:
        """Send events; returns once the client has read enough for more to follow."""
        if not self.streaming:
            self.streaming = True
            sent = [*_STREAM_HEADERS, *_kept(headers)]
            await self._send({"type": "http.response.start", "status": 200, "headers": sent})
        self.done = last
        await self._send({"type": "http.response.body", "body": events, "more_body": not last})

    async def finish(self, final: Final, *, may_unwrap: bool) -> None:
        """End with the agent's last data; ``may_unwrap`` sends a single event as JSON, which costs less."""
        if final.message and may_unwrap and not self.streaming:
            await self.whole(final.status, final.message, final.headers)
        elif final.is_event:
            await self.stream(final.raw, final.headers, last=True)
        else:
            await self.whole(final.status, final.raw, final.headers)

    async def end(self) -> None:
        """End a stream that has no last event."""
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
        """Respond with an error of this hub; ``status`` replaces the one of its code."""
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
