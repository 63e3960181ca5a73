"""The reply of ``/execute`` as a stream of events: reports of the skill, then the reply itself.

A caller asks for it with ``Accept: text/event-stream``. The stream begins with the first report; a call
without reports is answered like any other, as it is by a server that knows no streams. The events, whose data
is JSON:

- ``progress``: ``{"fraction": 0.5, "message": "…"}``, the fraction null where it is unknown;
- ``text``: a piece of a text (`TextPiece.to_json`);
- ``reply``, the last: ``{"status": 200, "headers": {…}, "body": …}``, the response that would have come
  without the stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from multidict import CIMultiDict, CIMultiDictProxy
from starlette.types import Send

from retinue.core.call import TextPiece
from retinue.core.errors import CallTimedOutError, TooLargeError
from retinue.mesh.channel import Capability, Channel, NullChannel
from retinue.mesh.time_limit import TimeLimit
from retinue.web.codec.sse import EventParser, ServerSentEvent
from retinue.web.transport import (
    MAX_RESPONSE_BYTES,
    HttpResponse,
    HttpStream,
    HttpStreamer,
    ResponseTooLargeError,
    TransportError,
)

EVENT_STREAM = "text/event-stream"
ACCEPT = f"application/json, {EVENT_STREAM}"

MAX_WAITING_BYTES = 256 * 1024
"""Reports that a slow reader has not taken yet; further ones are dropped."""

DRAIN_S = 1.0
"""How long the end of a stream is waited for, so that its connection can be used again."""

_PROGRESS: frozenset[Capability] = frozenset({"progress"})
_HEADERS = [(b"content-type", EVENT_STREAM.encode()), (b"cache-control", b"no-store")]

Headers = Sequence[tuple[bytes, bytes]]


class ReplyStream(NullChannel):
    """The channel of a call whose caller takes a stream; `finish` or `close` ends it.

    Reports never wait for the caller. They are ignored after the end, because a call with an idempotency key
    may go on.
    """

    capabilities = _PROGRESS

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._is_started = False
        self._is_closed = False

    async def progress(self, fraction: float | None, message: str = "") -> None:
        self._report(b"progress", {"fraction": fraction, "message": message})

    async def stream_text(self, piece: TextPiece) -> None:
        self._report(b"text", piece.to_json())

    async def finish(self, status: int, headers: Headers, body: bytes | None) -> bool:
        """Send the reply as the last event; False, and nothing is sent, where no report began the stream."""
        self._is_closed = True
        if not self._is_started:
            return False
        named = {name.decode(): value.decode() for name, value in headers}
        head = orjson.dumps({"status": status, "headers": named})[:-1]
        self._put(_render(b"reply", head + b',"body":' + (body or b"null") + b"}"))
        while self._sending is not None and not self._sending.done():
            await self._sending
        await self._send({"type": "http.response.body", "body": b""})
        return True

    def close(self) -> None:
        """Send nothing more: the caller is gone, or the call was cut off."""
        self._is_closed = True
        if self._sending is not None:
            self._sending.cancel()

    def _report(self, name: bytes, value: Mapping[str, Any]) -> None:
        if not self._is_closed and self._waiting_bytes < MAX_WAITING_BYTES:
            self._put(_render(name, orjson.dumps(value)))

    def _put(self, event: bytes) -> None:
        self._is_started = True
        self._waiting.append(event)
        self._waiting_bytes += len(event)
        if self._sending is None or self._sending.done():
            was_begun = self._sending is not None
            self._sending = asyncio.create_task(self._send_waiting(begins=not was_begun))

    async def _send_waiting(self, *, begins: bool) -> None:
        if begins:
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        while self._waiting:
            body = b"".join(self._waiting)
            self._waiting.clear()
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self._waiting_bytes -= len(body)


def _render(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\r\ndata: " + data + b"\r\n\r\n"


async def request_stream(
    http: HttpStreamer,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes,
    timeout_s: float,
    what: str,
    layer: str,
    setting: str,
    channel: Channel,
) -> HttpResponse:
    """`HttpRequester.request` of a POST, whose reports go to ``channel`` while it runs.

    Raises as that does.
    """
    limit = TimeLimit(timeout_s)
    try:
        with limit:
            async with http.stream("POST", url, headers={**headers, "accept": ACCEPT}, body=body) as stream:
                media_type = stream.headers.get("content-type", "").partition(";")[0].strip().lower()
                if media_type != EVENT_STREAM:
                    content = await stream.read()
                    return HttpResponse(stream.status, _as_proxy(stream.headers), content)
                response = await _read_events(stream, url, channel)
                assert limit.when is not None
                left_s = limit.when - asyncio.get_running_loop().time()
                if left_s > 0:
                    # less than is left, so that the limit does not take the answer back
                    await stream.drain(min(DRAIN_S, left_s / 2))
                return response
    except TimeoutError:
        if not limit.expired:
            raise
        raise CallTimedOutError(what, timeout_s, layer=layer, setting=setting) from None


async def _read_events(stream: HttpStream, url: str, channel: Channel) -> HttpResponse:
    parser = EventParser()
    while chunk := await stream.read_some():
        try:
            events = parser.feed(chunk)
        except TooLargeError as error:
            raise ResponseTooLargeError(url, MAX_RESPONSE_BYTES) from error
        for event in events:
            if (response := await _take(event, url, channel)) is not None:
                return response
    raise TransportError(url, "the stream ended without its reply", sent=True)


async def _take(event: ServerSentEvent, url: str, channel: Channel) -> HttpResponse | None:
    """Pass a report on; returns the reply. Other events are ignored."""
    if event.name not in ("progress", "text", "reply"):
        return None
    try:
        value = orjson.loads(event.data)
    except orjson.JSONDecodeError as error:
        raise TransportError(url, f"an event of the stream is no JSON: {error}", sent=True) from error
    if event.name == "text":
        if (piece := TextPiece.from_json(value)) is not None:
            await channel.stream_text(piece)
        return None
    if not isinstance(value, dict):
        return None
    if event.name == "progress":
        fraction, message = value.get("fraction"), value.get("message")
        known = fraction if isinstance(fraction, int | float) else None
        await channel.progress(known, message if isinstance(message, str) else "")
        return None
    status, headers, body = value.get("status"), value.get("headers"), value.get("body")
    if type(status) is not int or not isinstance(headers, dict):
        raise TransportError(url, "the last event of the stream is no reply", sent=True)
    named = {name: text for name, text in headers.items() if isinstance(text, str)}
    try:
        content = b"" if body is None else orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        # it reads more levels than it writes
        raise TransportError(url, f"the reply in the stream is unusable: {error}", sent=True) from error
    return HttpResponse(status, _as_proxy(named), content)


def _as_proxy(headers: Mapping[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(headers))
