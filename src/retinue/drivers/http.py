"""Outgoing HTTP: one guarded session for all that Retinue asks of others.

Guards: http(s) only, no redirects, a cap on what is read, a time limit on each request, no proxy from
the environment, no cookies, and on wish (``allow_private=False``) no address that is not public. The
addresses are checked after resolution, so a public name that points inwards is refused as well.
"""

from __future__ import annotations

import asyncio
import errno
import io
import ipaddress
import select
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from multidict import CIMultiDictProxy
from yarl import URL

from retinue.core.errors import CallTimedOutError, InvalidSettingError

MAX_RESPONSE_BYTES: Final = 32 * 1024 * 1024
CONNECT_TIMEOUT_S: Final = 5.0
KEEP_ALIVE_S: Final = 4.0
"""Below uvicorn's five seconds: a pooled connection is never used while its server is closing it."""

MAX_CONNECTIONS: Final = 1000
_WHOLE_BODY_BYTES: Final = 1024 * 1024
"""A larger body goes out in pieces: in one, it would hold the loop up, and aiohttp warns of it."""


class TransportError(Exception):
    """No usable answer; ``sent`` tells whether the other side may have acted on the request.

    Local to the drivers: whoever asked turns it into the error of its own layer. ``origin`` is
    scheme, host and port without credentials, ``cause`` one line.
    """

    def __init__(self, origin: str, cause: str, *, sent: bool) -> None:
        super().__init__(f"{origin}: {cause}")
        self.origin = origin
        self.cause = cause
        self.sent = sent


class UrlRefusedError(TransportError):
    """The guard refused the url; nothing was sent."""

    def __init__(self, origin: str, cause: str) -> None:
        super().__init__(origin, cause, sent=False)


class ResponseTooLargeError(TransportError):
    """The answer was over the cap and was not read to its end."""

    def __init__(self, origin: str, limit_bytes: int) -> None:
        super().__init__(origin, f"its answer is over {limit_bytes:,} bytes", sent=True)
        self.limit_bytes = limit_bytes


@dataclass(slots=True)
class HttpResponse:
    """An answer of any status; header names compare without case."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class HttpStream:
    """An answer that is read as it comes, and no faster than it is taken: nothing piles up here."""

    def __init__(self, response: aiohttp.ClientResponse, url: URL) -> None:
        self._response = response
        self._url = url
        self.status = response.status
        self.headers = response.headers

    async def read_some(self) -> bytes:
        """The next piece of the body as it arrives, b"" at its end; raises TransportError when it is cut."""
        try:
            return await self._response.content.readany()
        except _FAILURES as error:
            raise _tell(error, self._url) from error

    async def read(self, limit_bytes: int = MAX_RESPONSE_BYTES) -> bytes:
        """The whole body; raises ResponseTooLargeError and TransportError."""
        try:
            return await _read_capped(self._response, self._url, limit_bytes)
        except _FAILURES as error:
            raise _tell(error, self._url) from error

    async def drain(self, timeout_s: float) -> None:
        """Read what is left, so that the connection can serve again; one that goes on is closed."""
        if not self._response.content.at_eof():
            with suppress(TimeoutError, TransportError):
                async with asyncio.timeout(timeout_s):
                    while await self.read_some():
                        pass


class HttpClient:
    """A pool of connections; an async context manager, to be shared by a whole process."""

    def __init__(self, *, allow_private: bool = True) -> None:
        self._allow_private = allow_private
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> HttpClient:
        self._session = aiohttp.ClientSession(
            connector=_LiveConnector(
                limit=MAX_CONNECTIONS,
                keepalive_timeout=KEEP_ALIVE_S,
                resolver=None if self._allow_private else PublicResolver(),
            ),
            # A compressed answer could grow past its cap while it is unpacked: none is asked for.
            headers={"User-Agent": "retinue", "Accept-Encoding": "identity"},
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; requests are no longer possible."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

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
        tls: ssl.SSLContext | None = None,
    ) -> HttpResponse:
        """Ask once and read the whole answer, whatever its status.

        ``timeout_s`` covers everything from connecting to the last byte; ``what``, ``layer`` and
        ``setting`` stand in the CallTimedOutError. ``tls`` replaces this machine's list of authorities.
        Raises CallTimedOutError, TransportError, UrlRefusedError, ResponseTooLargeError.
        """
        session, target = self._prepare(url)
        try:
            async with session.request(
                method,
                target,
                headers=headers,
                data=_payload(body),
                allow_redirects=False,
                ssl=tls if tls is not None else True,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
            ) as response:
                content = await _read_capped(response, target, max_response_bytes)
                return HttpResponse(response.status, response.headers, content)
        except TimeoutError as error:
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise _tell(error, target) from None
            raise CallTimedOutError(
                what or f"{method} {_origin(target)}", timeout_s, layer=layer, setting=setting
            ) from None
        except _FAILURES as error:
            raise _tell(error, target) from error

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[HttpStream]:
        """Ask once and give the answer, whatever its status, as soon as it begins.

        Only the connecting has a time limit: the rest is the asker's to bound. Leaving before the end
        of the body closes the connection, which is how the other side learns of it.
        Raises TransportError and UrlRefusedError.
        """
        session, target = self._prepare(url)
        try:
            response = await session.request(
                method,
                target,
                headers=headers,
                data=_payload(body),
                allow_redirects=False,
                timeout=_UNBOUNDED,
            )
        except _FAILURES as error:
            raise _tell(error, target) from error
        try:
            yield HttpStream(response, target)
        finally:
            response.release()

    def _prepare(self, url: str) -> tuple[aiohttp.ClientSession, URL]:
        """The session, and the url after the guard's look at it."""
        if self._session is None:
            raise RuntimeError("HttpClient is used outside its async with block")
        target = _parse_url(url)
        if not self._allow_private:
            _check_public_literal(target)
        return self._session, target


_UNBOUNDED = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
_FAILURES = (aiohttp.ClientError, OSError, ValueError)


def _tell(error: Exception, url: URL) -> TransportError:
    """What a failed request means to whoever asked."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return TransportError(_origin(url), f"no connection within {CONNECT_TIMEOUT_S:g} s", sent=False)
    if isinstance(error, aiohttp.ClientConnectorError):
        return TransportError(_origin(url), _one_line(error.os_error), sent=False)
    if isinstance(error, aiohttp.InvalidURL):
        return UrlRefusedError(_origin(url), "it is no usable url")
    return TransportError(_origin(url), _one_line(error), sent=not _was_left_unread(error, url))


def _payload(body: bytes | None) -> bytes | io.BytesIO | None:
    return body if body is None or len(body) <= _WHOLE_BODY_BYTES else io.BytesIO(body)


class _LiveConnector(aiohttp.TCPConnector):
    """Hands out no pooled connection that the other side has ended meanwhile.

    Where this loop is busy, the end of a connection is already in the kernel and not yet known here;
    a request written to it would look like one that the other side took and lost.
    """

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            if not _has_news(connection):
                return connection
            connection.close()
        return None


def _has_news(connection: Connection) -> bool:
    """Whether there is something to read on an idle connection, which can only be its end."""
    transport = connection.transport
    if transport is None:
        return True
    if transport.get_extra_info("sslcontext") is not None:
        return False  # TLS has news of its own
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _was_left_unread(error: Exception, url: URL) -> bool:
    """Whether the other side certainly never read the request.

    A kernel resets a connection that ends with something unread, and ends one in order where all was
    read. On this machine no third party stands between that could have sent the reset, as a balancer
    does that has waited too long.
    """
    if isinstance(error, aiohttp.ClientConnectionResetError):
        return True  # the connection was gone before the whole request was written to it
    if not isinstance(error, OSError) or error.errno != errno.ECONNRESET:
        return False
    host = url.host or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def trust_authorities(ca_file: Path) -> ssl.SSLContext:
    """A TLS context that trusts the authorities in a PEM file beside those of this machine.

    Raises InvalidSettingError when the file cannot be read as such.
    """
    try:
        context = ssl.create_default_context()
        context.load_verify_locations(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidSettingError(
            "ca_file", f"{ca_file}: {_one_line(error)}", remedy="name a file of certificates in PEM form"
        ) from error
    return context


async def _read_capped(response: aiohttp.ClientResponse, url: URL, limit_bytes: int) -> bytes:
    length = response.content_length
    if length is not None:
        if length > limit_bytes and response.method != "HEAD":
            response.close()
            raise ResponseTooLargeError(_origin(url), limit_bytes)
        return await response.read()
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > limit_bytes:
            response.close()
            raise ResponseTooLargeError(_origin(url), limit_bytes)
    return bytes(content)


@lru_cache(maxsize=4096)
def _parse_url(text: str) -> URL:
    """The url as it is to be asked, cached because agents are asked again and again."""
    try:
        # Characters that are already fit for the wire are kept as they are: signed upload
        # locations must not be re-quoted.
        url = URL(text, encoded=all("!" <= character <= "~" for character in text))
        host = url.host
    except ValueError as error:
        raise UrlRefusedError(text[:100], "it is no url") from error
    if url.scheme not in {"http", "https"}:
        raise UrlRefusedError(text[:100], "only http and https are spoken")
    if not host:
        raise UrlRefusedError(text[:100], "it names no host")
    return url


def _check_public_literal(url: URL) -> None:
    """Refuse an address written into the url; names are checked when they are resolved."""
    try:
        address = ipaddress.ip_address(url.host or "")
    except ValueError:
        return
    if not _is_public(address):
        raise UrlRefusedError(_origin(url), "the address is not public")


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_global and not address.is_multicast


class PublicResolver(AbstractResolver):
    """Resolves as usual and drops every address that is not public."""

    def __init__(self) -> None:
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        public = [r for r in found if _is_public(ipaddress.ip_address(r["host"].partition("%")[0]))]
        if not public:
            raise OSError(None, f"{host} has no public address")
        return public

    async def close(self) -> None:
        await self._inner.close()


def _origin(url: URL) -> str:
    port = f":{url.explicit_port}" if url.explicit_port else ""
    host = f"[{url.host}]" if url.host and ":" in url.host else url.host
    return f"{url.scheme}://{host}{port}"


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
