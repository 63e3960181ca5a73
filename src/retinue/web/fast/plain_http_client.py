"""The HTTP/1.1 client for plain http to addresses: calls inside the mesh, and from commands to a hub.

It has the limits and errors of `web.http_client`, which hands it every request that it can send, for a
third of the CPU time. No TLS, no redirects and no names but ``localhost``: only http urls with an address.
Commands use it alone, because importing aiohttp takes a third of their time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import httptools
from multidict import CIMultiDictProxy

from retinue.core.errors import CallTimedOutError
from retinue.mesh.time_limit import TimeLimit
from retinue.web.addresses import find_refusal, is_address, is_loopback
from retinue.web.fast.plain_connection import (
    BodyTooLargeError,
    PlainConnection,
    StreamedResponse,
    WholeResponse,
)
from retinue.web.transport import (
    CONNECT_TIMEOUT_S,
    KEEP_ALIVE_S,
    MAX_CONNECTIONS,
    MAX_RESPONSE_BYTES,
    HttpResponse,
    ResponseTooLargeError,
    TransportError,
    UrlRefusedError,
    describe_failure,
    describe_origin,
)

_FAILURES = (OSError, httptools.HttpParserError)
_REMEMBERED_URLS: Final = 4096
_REMEMBERED_NAMES: Final = 256

_DEFAULT_HEADERS: Final = (
    ("user-agent", "User-Agent: retinue"),
    ("accept", "Accept: */*"),
    ("accept-encoding", "Accept-Encoding: identity"),
)


class PlainHttpClient:
    """A pool of connections, used as async context manager; idle ones are kept for ``keep_alive_s``."""

    def __init__(self, *, allow_private: bool = True, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._allow_private = allow_private
        self._keep_alive_s = keep_alive_s
        self._idle: defaultdict[tuple[str, int], deque[PlainConnection]] = defaultdict(deque)
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self.stream_room = asyncio.Semaphore(MAX_CONNECTIONS)
        """Apart from requests, because a stream may stay open for hours."""
        self._sweep: asyncio.TimerHandle | None = None
        self._is_open = False

    async def __aenter__(self) -> PlainHttpClient:
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def idle_connections(self) -> int:
        """How many connections wait for another request."""
        return sum(map(len, self._idle.values()))

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
        target = self._find_open_target(url)
        message = _render_request(method, target, headers or {}, body)
        response = WholeResponse(max_response_bytes, is_head=method == "HEAD")
        try:
            with TimeLimit(timeout_s):
                async with self._room:
                    connection = await self.connect(target)
                    try:
                        connection.start(message, response)
                        reply = await response.done
                    except BaseException:
                        connection.close()  # its response must not be left to the next request
                        raise
                    finally:
                        connection.finish()
        except TimeoutError:
            raise CallTimedOutError(
                what or f"{method} {target.origin}", timeout_s, layer=layer, setting=setting
            ) from None
        except BodyTooLargeError as error:
            raise ResponseTooLargeError(target.origin, max_response_bytes) from error
        except _FAILURES as error:
            raise target.to_transport_error(error) from error
        self.give_back(target, connection, is_usable=True)
        return reply

    def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AbstractAsyncContextManager[PlainStream]:
        """As `HttpClient.stream`, for a url that `can_request` accepts."""
        target = self._find_open_target(url)
        return PlainStream(
            self, target, _render_request(method, target, headers, body), is_head=method == "HEAD"
        )

    async def connect(self, target: CheckedUrl) -> PlainConnection:
        """An idle connection, or a new one. Raises TransportError."""
        return self._take_idle(target) or await _connect(target)

    def give_back(self, target: CheckedUrl, connection: PlainConnection, *, is_usable: bool) -> None:
        """Keep a connection for another request, or close it; ``is_usable``: nothing is under way in it."""
        if is_usable and connection.is_reusable and self._is_open:
            self._keep(target, connection)
        else:
            connection.close()

    def _find_open_target(self, url: str) -> CheckedUrl:
        if not self._is_open:
            raise RuntimeError("the HTTP client is used outside its 'async with' block")
        target = _find_target(url, self._allow_private)
        if target is None:
            scheme, _, rest = url.partition("://")
            origin = f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}"
            raise UrlRefusedError(origin[:100], "only http urls with an address are supported here")
        return target

    def _take_idle(self, target: CheckedUrl) -> PlainConnection | None:
        idle = self._idle[target.address]
        while idle:
            connection = idle.pop()
            if connection.is_fresh(self._keep_alive_s):
                return connection
            connection.close()
        return None

    def _keep(self, target: CheckedUrl, connection: PlainConnection) -> None:
        self._idle[target.address].append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._keep_alive_s, self._close_stale)

    def _close_stale(self) -> None:
        """Close the connections that were idle for too long, and look again while there are others."""
        self._sweep = None
        for address, idle in list(self._idle.items()):
            while idle and not idle[0].is_fresh(self._keep_alive_s):
                idle.popleft().close()
            if not idle:
                del self._idle[address]
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(self._keep_alive_s, self._close_stale)


async def _connect(target: CheckedUrl) -> PlainConnection:
    host, port = target.address
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, opened = await asyncio.get_running_loop().create_connection(PlainConnection, host, port)
    except TimeoutError as error:
        cause = f"no connection within {CONNECT_TIMEOUT_S:g} s"
        raise TransportError(target.origin, cause, sent=False) from error
    except OSError as error:
        raise TransportError(target.origin, describe_failure(error), sent=False) from error
    return opened


@dataclass(frozen=True, slots=True)
class CheckedUrl:
    """A checked url: where to connect, and what to write into the request."""

    address: tuple[str, int]
    path: str
    origin: str
    is_local: bool

    def to_transport_error(self, error: Exception) -> TransportError:
        """The error of a request whose response never began.

        The kernel of this machine resets a connection that is closed with unread data; the reset of another
        one may come from a load balancer.
        """
        unread = isinstance(error, ConnectionResetError) and self.is_local
        return TransportError(self.origin, describe_failure(error), sent=not unread)


class PlainStream:
    """A response that is read as it comes, as a context manager: `HttpStream`.

    Leaving the block before the end of the body closes the connection, which tells the server.
    """

    def __init__(self, client: PlainHttpClient, target: CheckedUrl, message: bytes, *, is_head: bool) -> None:
        self._client = client
        self._target = target
        self._message = message
        self._is_head = is_head
        self._connection: PlainConnection | None = None
        self._response: StreamedResponse | None = None
        self.status = 0
        self.headers: Mapping[str, str] = {}

    async def __aenter__(self) -> PlainStream:
        """Send the request and wait for the head of the response. Raises TransportError."""
        room = self._client.stream_room
        await room.acquire()
        try:
            connection = self._connection = await self._client.connect(self._target)
        except BaseException:
            room.release()
            raise
        response = self._response = StreamedResponse(connection.hold, is_head=self._is_head)
        try:
            connection.start(self._message, response)
            await response.wait_for_head()
        except _FAILURES as error:
            self._leave()
            raise self._target.to_transport_error(error) from error
        except BaseException:
            self._leave()
            raise
        self.status, self.headers = response.status, CIMultiDictProxy(response.headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    @property
    def is_held(self) -> bool:
        """Whether reading from the socket is stopped, because enough of the body is unread."""
        return self._response is not None and self._response.is_held

    def _leave(self) -> None:
        assert self._connection is not None
        assert self._response is not None
        self._client.stream_room.release()
        self._connection.finish()
        self._client.give_back(self._target, self._connection, is_usable=self._response.is_read)

    async def read_some(self) -> bytes:
        assert self._response is not None, "entered before"
        try:
            return await self._response.read_some()
        except _FAILURES as error:
            raise TransportError(self._target.origin, describe_failure(error), sent=True) from error

    async def read(self, limit_bytes: int = MAX_RESPONSE_BYTES) -> bytes:
        chunk = await self.read_some()
        length = len(chunk)
        rest: list[bytes] = []
        while length <= limit_bytes and (part := await self.read_some()):
            rest.append(part)
            length += len(part)
        if length > limit_bytes:
            raise ResponseTooLargeError(self._target.origin, limit_bytes)
        return b"".join((chunk, *rest)) if rest else chunk

    async def drain(self, timeout_s: float) -> None:
        if self._response is None or self._response.is_read:
            return
        with suppress(TimeoutError, TransportError):
            async with asyncio.timeout(timeout_s):
                while await self.read_some():
                    pass


@lru_cache(maxsize=_REMEMBERED_URLS)
def _find_target(url: str, allow_private: bool) -> CheckedUrl | None:
    """The target of a plain http url with an allowed address, None for any other url."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme != "http" or "@" in parts.netloc or not all("!" <= char <= "~" for char in path):
        return None
    is_allowed = is_address(host) and find_refusal(host, allow_private=allow_private) is None
    if not is_allowed and not (host == "localhost" and allow_private):
        return None
    return CheckedUrl((host, port or 80), path, describe_origin("http", host, port), is_loopback(host))


def _render_request(method: str, target: CheckedUrl, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Raises TransportError when a header would break the request."""
    # a list, not a generator: every call of an agent elsewhere gets here
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.origin[len('http://') :]}"]
    lines += _list_defaults(tuple(headers))
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {len(body or b'')}")
    text = "\r\n".join((*lines, "", ""))
    if not text.count("\r") == text.count("\n") == len(lines) + 1:
        raise TransportError(target.origin, "a header holds a line break", sent=False)
    return text.encode() + (body or b"")


@lru_cache(maxsize=_REMEMBERED_NAMES)
def _list_defaults(names: tuple[str, ...]) -> Sequence[str]:
    """The lines that a request has unless it has headers of these names."""
    lower_names = {name.lower() for name in names}
    return [line for name, line in _DEFAULT_HEADERS if name not in lower_names]
