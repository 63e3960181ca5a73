"""The HTTP/1.1 client for plain http to this machine: the command line's way to the hub.

It has the limits and errors of `web.http_client` without aiohttp, whose import takes a third of the time of
a client command. No TLS, no streams, no redirects, only loopback addresses.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

import httptools
from multidict import CIMultiDict, CIMultiDictProxy

from retinue.core.errors import CallTimedOutError
from retinue.web.addresses import is_loopback
from retinue.web.transport import (
    CONNECT_TIMEOUT_S,
    KEEP_ALIVE_S,
    MAX_RESPONSE_BYTES,
    HttpResponse,
    ResponseTooLargeError,
    TransportError,
    UrlRefusedError,
    describe_origin,
    first_line,
    is_closed_by_peer,
)


class LocalHttpClient:
    """A pool of connections to servers of this machine, used as async context manager."""

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[str, int], list[_Connection]] = defaultdict(list)
        self._is_open = False

    async def __aenter__(self) -> LocalHttpClient:
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        what: str = "",
        layer: str = "http",
        setting: str = "the timeout",
    ) -> HttpResponse:
        """As `HttpRequester.request`."""
        if not self._is_open:
            raise RuntimeError("LocalHttpClient is used outside its 'async with' block")
        target = _parse_url(url)
        message = _render_request(method, target, headers or {}, body)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connect(target)
                try:
                    response = await connection.exchange(message, max_response_bytes, method == "HEAD")
                except BaseException:
                    connection.close()  # a cancelled request must not leave its response to the next one
                    raise
        except TimeoutError:
            raise CallTimedOutError(
                what or f"{method} {target.origin}", timeout_s, layer=layer, setting=setting
            ) from None
        except _TooLargeError as error:
            raise ResponseTooLargeError(target.origin, max_response_bytes) from error
        except (OSError, httptools.HttpParserError) as error:
            # A kernel resets a connection that is closed with unread data.
            unread = isinstance(error, ConnectionResetError)
            raise TransportError(target.origin, first_line(error), sent=not unread) from error
        if connection.is_reusable:
            self._idle[target.address].append(connection)
        else:
            connection.close()
        return response

    async def _connect(self, target: _Target) -> _Connection:
        idle = self._idle[target.address]
        while idle:
            connection = idle.pop()
            if connection.is_fresh():
                return connection
            connection.close()
        host, port = target.address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, opened = await asyncio.get_running_loop().create_connection(_Connection, host, port)
        except TimeoutError as error:
            cause = f"no connection within {CONNECT_TIMEOUT_S:g} s"
            raise TransportError(target.origin, cause, sent=False) from error
        except OSError as error:
            raise TransportError(target.origin, first_line(error), sent=False) from error
        return opened


@dataclass(frozen=True, slots=True)
class _Target:
    """A checked url: where to connect, and what to write into the request."""

    address: tuple[str, int]
    path: str
    origin: str


class _TooLargeError(Exception):
    """The body passed the limit."""


@dataclass(slots=True)
class _Response:
    """A response as far as it has arrived."""

    done: asyncio.Future[HttpResponse]
    limit_bytes: int
    is_head: bool
    headers: CIMultiDict[str] = field(default_factory=CIMultiDict)
    body: bytearray = field(default_factory=bytearray)
    ends_with_connection: bool = False


class _Connection(asyncio.Protocol):
    """One connection, with at most one request at a time; httptools parses the responses."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._response: _Response | None = None
        self._idle_since_s = 0.0
        self.is_reusable = False

    def is_fresh(self) -> bool:
        """Whether the server certainly keeps the idle connection open."""
        age_s = asyncio.get_running_loop().time() - self._idle_since_s
        return age_s < KEEP_ALIVE_S and not is_closed_by_peer(self._transport)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, message: bytes, limit_bytes: int, is_head: bool) -> HttpResponse:
        loop = asyncio.get_running_loop()
        self.is_reusable = False
        self._response = _Response(loop.create_future(), limit_bytes, is_head)
        assert self._transport is not None, "connection_made comes first"
        self._transport.write(message)
        try:
            return await self._response.done
        finally:
            self._response = None
            self._idle_since_s = loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # the transports of uvloop do not inherit from asyncio's
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        response = self._response
        if error is None and response is not None and response.ends_with_connection:
            self._finish(response)
        else:
            self._fail(error or ConnectionError("the server closed the connection before its response ended"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # what a callback raised arrives wrapped in an error of the parser
            self._fail(error.__context__ if isinstance(error.__context__, _TooLargeError) else error)
            self.close()

    def _fail(self, error: BaseException | None) -> None:
        if self._response is not None and error is not None and not self._response.done.done():
            self._response.done.set_exception(error)

    # callbacks of httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is not None:
            self._response.headers.add(name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        response = self._response
        if response is None or self._is_interim():
            return
        if int(response.headers.get("content-length", "0")) > response.limit_bytes and not response.is_head:
            raise _TooLargeError
        has_length = "content-length" in response.headers or "transfer-encoding" in response.headers
        response.ends_with_connection = not has_length
        if response.is_head:
            self._finish(response)

    def on_body(self, body: bytes) -> None:
        if self._response is not None:
            self._response.body += body
            if len(self._response.body) > self._response.limit_bytes:
                raise _TooLargeError

    def on_message_complete(self) -> None:
        response = self._response
        if response is None:
            return
        if self._is_interim():
            response.headers.clear()
        else:
            self.is_reusable = self._parser.should_keep_alive()
            self._finish(response)

    def _is_interim(self) -> bool:
        return 100 <= self._parser.get_status_code() < 200

    def _finish(self, response: _Response) -> None:
        if response.done.done():
            return
        headers = CIMultiDictProxy(response.headers)
        response.done.set_result(HttpResponse(self._parser.get_status_code(), headers, bytes(response.body)))


@lru_cache(maxsize=256)
def _parse_url(url: str) -> _Target:
    """Raises UrlRefusedError for what is not plain http to this machine."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UrlRefusedError(url[:100], "it is not a url") from error
    origin = describe_origin(parts.scheme, host, port)
    if parts.scheme != "http" or not is_loopback(host):
        raise UrlRefusedError(origin[:100], "only http urls of this machine are supported here")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not all("!" <= character <= "~" for character in path):
        raise UrlRefusedError(origin, "it holds a character that must be percent-encoded")
    return _Target((host, port or 80), path, origin)


def _render_request(method: str, target: _Target, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Raises TransportError when a header would break the request."""
    lines = [
        f"{method} {target.path} HTTP/1.1",
        f"Host: {target.origin.removeprefix('http://')}",
        "User-Agent: retinue",
        "Accept: */*",
        "Accept-Encoding: identity",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if body is not None or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {len(body or b'')}")
    if any("\r" in line or "\n" in line for line in lines):
        raise TransportError(target.origin, "a header holds a line break", sent=False)
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")
