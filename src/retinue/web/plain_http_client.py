"""The HTTP/1.1 client for plain http to addresses: calls inside the mesh, and the command line's to its hub.

It has the limits and errors of `web.http_client`, which hands it every request that it can send, for a
third of the CPU time. No TLS, no streams, no redirects and no names but ``localhost``: only http urls with
an address. Commands use it alone, because importing aiohttp takes a third of their time.
"""

from __future__ import annotations

import asyncio
import select
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, cast
from urllib.parse import urlsplit

import httptools
from multidict import CIMultiDict, CIMultiDictProxy

from retinue.core.errors import CallTimedOutError
from retinue.web.addresses import find_refusal, is_address, is_loopback
from retinue.web.transport import (
    CONNECT_TIMEOUT_S,
    KEEP_ALIVE_S,
    MAX_CONNECTIONS,
    MAX_RESPONSE_BYTES,
    HttpResponse,
    ResponseTooLargeError,
    TransportError,
    UrlRefusedError,
    describe_origin,
    first_line,
)

_REMEMBERED_URLS: Final = 4096

_DEFAULT_HEADERS: Final = {
    "user-agent": "User-Agent: retinue",
    "accept": "Accept: */*",
    "accept-encoding": "Accept-Encoding: identity",
}


class PlainHttpClient:
    """A pool of connections, used as async context manager."""

    def __init__(self, *, allow_private: bool = True) -> None:
        self._allow_private = allow_private
        self._idle: defaultdict[tuple[str, int], deque[_Connection]] = defaultdict(deque)
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self._sweep: asyncio.TimerHandle | None = None
        self._is_open = False

    async def __aenter__(self) -> PlainHttpClient:
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all idle connections; later requests raise RuntimeError."""
        self._is_open = False
        if self._sweep is not None:
            self._sweep.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    def can_request(self, url: str) -> bool:
        """Whether the url is plain http to an address that may be asked."""
        return _find_target(url, self._allow_private) is not None

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
            raise RuntimeError("the HTTP client is used outside its 'async with' block")
        target = _find_target(url, self._allow_private)
        if target is None:
            scheme, _, rest = url.partition("://")
            origin = f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}"
            raise UrlRefusedError(origin[:100], "only http urls with an address are supported here")
        message = _render_request(method, target, headers or {}, body)
        try:
            async with asyncio.timeout(timeout_s), self._room:
                connection = self._take_idle(target) or await _connect(target)
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
            # The kernel of this machine resets a connection that is closed with unread data; the reset of
            # another one may come from a load balancer.
            unread = isinstance(error, ConnectionResetError) and target.is_local
            raise TransportError(target.origin, first_line(error), sent=not unread) from error
        if connection.is_reusable and self._is_open:
            self._keep(target, connection)
        else:
            connection.close()
        return response

    def _take_idle(self, target: _Target) -> _Connection | None:
        idle = self._idle[target.address]
        while idle:
            connection = idle.pop()
            if connection.is_fresh():
                return connection
            connection.close()
        return None

    def _keep(self, target: _Target, connection: _Connection) -> None:
        self._idle[target.address].append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._close_stale)

    def _close_stale(self) -> None:
        """Close the connections that were idle for too long, and look again while there are others."""
        self._sweep = None
        for address, idle in list(self._idle.items()):
            while idle and not idle[0].is_fresh():
                idle.popleft().close()
            if not idle:
                del self._idle[address]
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._close_stale)


async def _connect(target: _Target) -> _Connection:
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


def is_closed_by_peer(transport: asyncio.BaseTransport | None) -> bool:
    """Whether an idle connection is readable, which means that the peer closed it.

    While the event loop is busy, the kernel may know of the close before asyncio does.
    """
    if transport is None or transport.is_closing():
        return True
    if transport.get_extra_info("sslcontext") is not None:
        return False  # TLS sends data on idle connections, such as session tickets
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


@dataclass(frozen=True, slots=True)
class _Target:
    """A checked url: where to connect, and what to write into the request."""

    address: tuple[str, int]
    path: str
    origin: str
    is_local: bool


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
        if self._response is None:
            self.close()  # nothing was asked
            return
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

    def on_message_begin(self) -> None:
        if self._response is not None and self._response.done.done():
            self.close()  # more than one response to one request

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


@lru_cache(maxsize=_REMEMBERED_URLS)
def _find_target(url: str, allow_private: bool) -> _Target | None:
    """The target of a plain http url with an allowed address, None for any other url."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme != "http" or "@" in parts.netloc or not all("!" <= one <= "~" for one in path):
        return None
    is_allowed = is_address(host) and find_refusal(host, allow_private=allow_private) is None
    if not is_allowed and not (host == "localhost" and allow_private):
        return None
    return _Target((host, port or 80), path, describe_origin("http", host, port), is_loopback(host))


def _render_request(method: str, target: _Target, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Raises TransportError when a header would break the request."""
    given = {name.lower() for name in headers}
    lines = [
        f"{method} {target.path} HTTP/1.1",
        f"Host: {target.origin.removeprefix('http://')}",
        *(line for name, line in _DEFAULT_HEADERS.items() if name not in given),
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if body is not None or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {len(body or b'')}")
    if any("\r" in line or "\n" in line for line in lines):
        raise TransportError(target.origin, "a header holds a line break", sent=False)
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")
