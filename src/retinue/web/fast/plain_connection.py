"""One connection of the plain HTTP/1.1 client: writes a request, and parses the response with httptools.

A response is collected whole (`WholeResponse`) or read as it comes (`StreamedResponse`).
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable
from typing import Final, cast

import httptools
from multidict import CIMultiDict, CIMultiDictProxy

from retinue.web.transport import HttpResponse

MAX_HEAD_BYTES: Final = 128 * 1024
"""Limit of the heads of one response, with interim ones, and of the trailers behind its body."""

_READ_AHEAD_BYTES: Final = 128 * 1024
"""With this much of a stream unread, no more is taken from the socket."""


class BodyTooLargeError(Exception):
    """The body passed the limit of its request."""


class HeadTooLargeError(ConnectionError):
    """The heads passed `MAX_HEAD_BYTES`."""

    def __init__(self) -> None:
        super().__init__(f"the head of the response is larger than {MAX_HEAD_BYTES:,} bytes")


class PendingResponse:
    """A response as far as it has arrived; the connection calls the methods."""

    def __init__(self, *, is_head: bool) -> None:
        self.is_head = is_head
        """Whether it answers a HEAD request, and so has no body."""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.has_begun = False
        self.is_over = False
        self.ends_with_connection = False

    def begin(self, status: int) -> None:
        """The head is complete."""

    def add(self, body: bytes) -> None:
        """A part of the body has arrived."""

    def end(self, status: int) -> None:
        """The response is complete."""

    def fail(self, error: BaseException) -> None:
        """The rest will not come."""


class WholeResponse(PendingResponse):
    """A response that is collected, up to ``limit_bytes``; ``done`` is its future."""

    def __init__(self, limit_bytes: int, *, is_head: bool) -> None:
        super().__init__(is_head=is_head)
        self.done: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._limit_bytes = limit_bytes
        self._body = b""
        self._more: bytearray | None = None

    def begin(self, status: int) -> None:
        if int(self.headers.get("content-length", "0")) > self._limit_bytes and not self.is_head:
            raise BodyTooLargeError

    def add(self, body: bytes) -> None:
        if not self._body:
            self._body = body
            length = len(body)
        else:
            if self._more is None:
                self._more = bytearray(self._body)
            self._more += body
            length = len(self._more)
        if length > self._limit_bytes:
            raise BodyTooLargeError

    def end(self, status: int) -> None:
        if not self.done.done():
            body = self._body if self._more is None else bytes(self._more)
            self.done.set_result(HttpResponse(status, CIMultiDictProxy(self.headers), body))

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class StreamedResponse(PendingResponse):
    """A response that is read as it comes; ``hold`` stops and continues reading from the socket."""

    def __init__(self, hold: Callable[[bool], None], *, is_head: bool) -> None:
        super().__init__(is_head=is_head)
        self.status = 0
        self._hold = hold
        self._parts: deque[bytes] = deque()
        self._unread_bytes = 0
        self.is_held = False
        """Whether reading from the socket is stopped, because enough of the body is unread."""
        self._error: BaseException | None = None
        self._news: asyncio.Future[None] | None = None

    def begin(self, status: int) -> None:
        self.status = status
        self._tell()

    def add(self, body: bytes) -> None:
        self._parts.append(body)
        self._unread_bytes += len(body)
        if self._unread_bytes >= _READ_AHEAD_BYTES and not self.is_held:
            self.is_held = True
            self._hold(True)
        self._tell()

    def end(self, status: int) -> None:
        self._tell()

    def fail(self, error: BaseException) -> None:
        if not self.is_over and self._error is None:
            self._error = error
            self._tell()

    @property
    def is_read(self) -> bool:
        """Whether the whole body was read."""
        return self.is_over and not self._parts

    async def wait_for_head(self) -> None:
        """Return when status and headers have arrived. Raises the error given to `fail`."""
        while not self.has_begun:
            await self._wait()

    async def read_some(self) -> bytes:
        """All bytes that have arrived, b"" at the end; then raises the error given to `fail`."""
        while not self._parts:
            if self.is_over:
                return b""
            await self._wait()
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._unread_bytes = 0
        if self.is_held:
            self.is_held = False
            self._hold(False)
        return body

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None


class PlainConnection(asyncio.Protocol):
    """One connection, with at most one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._poll = select.poll()
        self._response: PendingResponse | None = None
        self._head_bytes = 0
        self._idle_since_s = 0.0
        self.is_reusable = False
        """Whether the response is complete and the server keeps the connection open."""

    def is_fresh(self, keep_alive_s: float) -> bool:
        """Whether the server certainly keeps the idle connection open, which it does for ``keep_alive_s``.

        An idle connection that is readable was closed by the server. While the event loop is busy, the kernel
        may know of it before asyncio does.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        return self._loop.time() - self._idle_since_s < keep_alive_s and not self._poll.poll(0)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def start(self, message: bytes, response: PendingResponse) -> None:
        """Send a request, whose response goes to ``response``; `finish` ends it."""
        self.is_reusable = False
        self._head_bytes = 0
        self._response = response
        assert self._transport is not None, "connection_made comes first"
        self._transport.write(message)

    def finish(self) -> None:
        """The response was taken, or is not waited for any more."""
        self._response = None
        self._idle_since_s = self._loop.time()

    def hold(self, is_held: bool) -> None:
        """Stop or continue reading from the socket."""
        if self._transport is None or self._transport.is_closing():
            return
        if is_held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # the transports of uvloop do not inherit from asyncio's
        self._transport = cast(asyncio.Transport, transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.is_reusable = False
        response = self._response
        if response is None or response.is_over:
            return
        if error is None and response.ends_with_connection:
            self._end(response)
        else:
            response.fail(
                error or ConnectionError("the server closed the connection before its response ended")
            )

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.close()  # nothing was asked
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # what a callback raised arrives wrapped in an error of the parser
            is_ours = isinstance(error.__context__, BodyTooLargeError)
            self._give_up(response, error.__context__ if is_ours and error.__context__ else error)
            return
        except httptools.HttpParserUpgrade:
            self._give_up(response, ConnectionError("the server switched to another protocol"))
            return
        if self._head_bytes > MAX_HEAD_BYTES and not response.is_over:
            self._give_up(response, HeadTooLargeError())

    def _give_up(self, response: PendingResponse, error: BaseException) -> None:
        response.fail(error)
        self.close()

    # callbacks of httptools

    def on_message_begin(self) -> None:
        if self._response is not None and self._response.is_over:
            self.close()  # more than one response to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        if response is not None and not response.has_begun:  # what follows a body are trailers
            response.headers.add(name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        response = self._response
        if response is None or response.is_over or self._is_interim():
            return
        response.has_begun = True
        headers = response.headers
        response.ends_with_connection = "content-length" not in headers and "transfer-encoding" not in headers
        response.begin(self._parser.get_status_code())
        if response.is_head:
            self._end(response)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0  # from here on it counts trailers, which httptools collects without a limit
        if self._response is not None and not self._response.is_over:
            self._response.add(body)

    def on_message_complete(self) -> None:
        response = self._response
        if response is None or response.is_over:
            return
        if self._is_interim():
            response.headers.clear()
        else:
            self.is_reusable = self._parser.should_keep_alive()
            self._end(response)

    def _is_interim(self) -> bool:
        return 100 <= self._parser.get_status_code() < 200

    def _end(self, response: PendingResponse) -> None:
        response.is_over = True
        response.end(self._parser.get_status_code())
