"""The HTTP client for all outgoing requests: a pooled aiohttp session with restrictions.

Plain requests to addresses, most calls inside the mesh, go through `web.fast.plain_http_client` instead.

Only http and https, no redirects, a size limit on every response, a time limit on every request, no proxy
from the environment, no cookies, no credentials from a url. It never connects to link-local addresses and
metadata services, and with ``allow_private=False`` only to public addresses; the checks run after name
resolution, so a public name with a private address is rejected too.
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
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from retinue.core.errors import CallTimedOutError, InvalidSettingError
from retinue.mesh.time_limit import TimeLimit
from retinue.web.addresses import find_refusal, is_loopback
from retinue.web.fast.plain_http_client import PlainHttpClient
from retinue.web.transport import (
    CONNECT_TIMEOUT_S,
    KEEP_ALIVE_S,
    MAX_CONNECTIONS,
    MAX_RESPONSE_BYTES,
    HttpResponse,
    HttpStream,
    ResponseTooLargeError,
    TransportError,
    UrlRefusedError,
    describe_failure,
    describe_origin,
    first_line,
)

_WHOLE_BODY_BYTES: Final = 1024 * 1024
"""Larger bodies are sent in chunks: aiohttp warns that a single large write blocks the event loop."""

_UPLOADING = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=300.0)
_UNBOUNDED = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
_FAILURES = (aiohttp.ClientError, OSError, ValueError)


def check_written_url(url: str, *, allow_private: bool) -> None:
    """Raise UrlRefusedError for a url that is refused as it is written; names are resolved with a request."""
    target = _parse_url(url)
    _check_literal(target, allow_private=allow_private)
    if not allow_private and is_loopback(target.host or ""):
        raise UrlRefusedError(_origin(target), "the address is not public")


class AiohttpStream:
    """A response of aiohttp, read as it comes: `HttpStream`."""

    def __init__(self, response: aiohttp.ClientResponse, url: URL) -> None:
        self._response = response
        self._url = url
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def read_some(self) -> bytes:
        try:
            return await self._response.content.readany()
        except _FAILURES as error:
            raise _to_transport_error(error, self._url) from error

    async def read(self, limit_bytes: int = MAX_RESPONSE_BYTES) -> bytes:
        try:
            return await _read_capped(self._response, self._url, limit_bytes)
        except _FAILURES as error:
            raise _to_transport_error(error, self._url) from error

    async def drain(self, timeout_s: float) -> None:
        if not self._response.content.at_eof():
            with suppress(TimeoutError, TransportError):
                async with asyncio.timeout(timeout_s):
                    while await self.read_some():
                        pass


class CheckedResolver(AbstractResolver):
    """DNS resolver that drops every address to which no request may be sent."""

    def __init__(self, *, allow_private: bool) -> None:
        self._inner = aiohttp.ThreadedResolver()
        self._allow_private = allow_private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = await self._inner.resolve(host, port, family)
        refusals = [find_refusal(address["host"], allow_private=self._allow_private) for address in addresses]
        allowed = [address for address, refusal in zip(addresses, refusals, strict=True) if refusal is None]
        if not allowed:
            reason = refusals[0] if self._allow_private and refusals else "it has no public address"
            raise OSError(None, f"{host}: {reason}")
        return allowed

    async def close(self) -> None:
        await self._inner.close()


class HttpClient:
    """A connection pool, used as async context manager and shared by a whole process."""

    def __init__(self, *, allow_private: bool = True) -> None:
        self.allow_private = allow_private
        self._plain = PlainHttpClient(allow_private=allow_private)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> HttpClient:
        await self._plain.__aenter__()
        self._session = aiohttp.ClientSession(
            connector=_OpenConnector(
                limit=MAX_CONNECTIONS,
                keepalive_timeout=KEEP_ALIVE_S,
                resolver=CheckedResolver(allow_private=self.allow_private),
            ),
            # A compressed response could exceed the size limit while it is decompressed: request none.
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
        """Close all connections; later requests raise RuntimeError."""
        self._plain.close()
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
        """Send one request and read the whole response, whatever its status.

        ``timeout_s`` covers everything from connecting to the last byte; ``what``, ``layer`` and ``setting``
        appear in the CallTimedOutError. ``tls`` replaces the system's certificate authorities.
        Raises CallTimedOutError, TransportError, UrlRefusedError, ResponseTooLargeError.
        """
        if tls is None and self._may_be_plain(url, body):
            return await self._plain.request(
                method,
                url,
                timeout_s=timeout_s,
                headers=headers,
                body=body,
                max_response_bytes=max_response_bytes,
                what=what,
                layer=layer,
                setting=setting,
            )
        session, target = self._prepare(url)
        try:
            # not aiohttp's own limit, which cuts off an answer that came while this process stood still
            with TimeLimit(timeout_s):
                async with session.request(
                    method,
                    target,
                    headers=headers,
                    data=_payload(body),
                    allow_redirects=False,
                    ssl=tls if tls is not None else True,
                    timeout=_UNBOUNDED,
                ) as response:
                    content = await _read_capped(response, target, max_response_bytes)
                    return HttpResponse(response.status, response.headers, content)
        except TimeoutError as error:
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise _to_transport_error(error, target) from None
            raise CallTimedOutError(
                what or f"{method} {_origin(target)}", timeout_s, layer=layer, setting=setting
            ) from None
        except _FAILURES as error:
            raise _to_transport_error(error, target) from error

    async def upload(
        self, method: str, url: str, *, headers: Mapping[str, str], pieces: AsyncIterator[bytes]
    ) -> HttpResponse:
        """Send a body in pieces and return the response, whatever its status.

        The server may refuse the request before the body is sent. Only connecting and the wait for the
        response have time limits. Raises TransportError and UrlRefusedError.
        """
        session, target = self._prepare(url)
        try:
            async with session.request(
                method,
                target,
                headers=headers,
                data=pieces,
                expect100=True,
                allow_redirects=False,
                timeout=_UPLOADING,
            ) as response:
                content = await _read_capped(response, target, MAX_RESPONSE_BYTES)
                return HttpResponse(response.status, response.headers, content)
        except _FAILURES as error:
            raise _to_transport_error(error, target) from error

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> AbstractAsyncContextManager[HttpStream]:
        """Send one request and yield the response, whatever its status, as soon as its headers arrive.

        Only connecting has a time limit; the caller limits the rest. Leaving the block before the end of the
        body closes the connection, which tells the server. ``tls`` replaces the system's certificate
        authorities. Raises TransportError and UrlRefusedError.
        """
        if tls is None and self._may_be_plain(url, body):
            return self._plain.stream(method, url, headers=headers, body=body)
        return self._stream(method, url, headers, body, tls)

    @asynccontextmanager
    async def _stream(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        tls: ssl.SSLContext | None,
    ) -> AsyncIterator[HttpStream]:
        session, target = self._prepare(url)
        try:
            response = await session.request(
                method,
                target,
                headers=headers,
                data=_payload(body),
                allow_redirects=False,
                ssl=tls if tls is not None else True,
                timeout=_UNBOUNDED,
            )
        except _FAILURES as error:
            raise _to_transport_error(error, target) from error
        try:
            yield AiohttpStream(response, target)
        finally:
            response.release()

    def _may_be_plain(self, url: str, body: bytes | None) -> bool:
        return (body is None or len(body) <= _WHOLE_BODY_BYTES) and self._plain.can_request(url)

    async def check_url(self, url: str) -> None:
        """Check a url before anything is promised to it; every request checks it again.

        Raises UrlRefusedError, also where its name has no address.
        """
        _, target = self._prepare(url)
        try:
            ipaddress.ip_address(target.host or "")
        except ValueError:
            resolver = CheckedResolver(allow_private=self.allow_private)
            try:
                await resolver.resolve(target.host or "", target.port or 0)
            except (OSError, ValueError) as error:
                # ValueError: a name that IDNA does not know
                raise UrlRefusedError(_origin(target), first_line(error)) from None

    def _prepare(self, url: str) -> tuple[aiohttp.ClientSession, URL]:
        """Return the session and the checked url. Raises UrlRefusedError."""
        if self._session is None:
            raise RuntimeError("HttpClient is used outside its 'async with' block")
        target = _parse_url(url)
        _check_literal(target, allow_private=self.allow_private)
        return self._session, target


def trust_authorities(ca_file: Path) -> ssl.SSLContext:
    """Create a TLS context that trusts the authorities in a PEM file in addition to the system's.

    Raises InvalidSettingError when the file cannot be read or holds no certificates.
    """
    try:
        context = ssl.create_default_context()
        context.load_verify_locations(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidSettingError(
            "ca_file", f"{ca_file}: {first_line(error)}", remedy="give a file of PEM certificates"
        ) from error
    return context


def _to_transport_error(error: Exception, url: URL) -> TransportError:
    """Convert an exception of aiohttp or the socket to a TransportError."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return TransportError(_origin(url), f"no connection within {CONNECT_TIMEOUT_S:g} s", sent=False)
    if isinstance(error, aiohttp.ClientConnectorError):
        return TransportError(_origin(url), describe_failure(error.os_error), sent=False)
    if isinstance(error, aiohttp.InvalidURL):
        return UrlRefusedError(_origin(url), "it is not a valid url")
    return TransportError(_origin(url), describe_failure(error), sent=not _was_never_read(error, url))


def _payload(body: bytes | None) -> bytes | io.BytesIO | None:
    return body if body is None or len(body) <= _WHOLE_BODY_BYTES else io.BytesIO(body)


class _OpenConnector(aiohttp.TCPConnector):
    """Connector that never reuses a pooled connection which the server has already closed.

    A request written to such a connection would look as if the server had received and lost it.
    """

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            if not _is_closed_by_peer(connection.transport):
                return connection
            connection.close()
        return None


def _is_closed_by_peer(transport: asyncio.BaseTransport | None) -> bool:
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


def _was_never_read(error: Exception, url: URL) -> bool:
    """Whether the server certainly never read the request.

    A kernel resets a connection that is closed with unread data, and closes it normally after everything was
    read. This holds on loopback only: elsewhere a load balancer may have sent the reset.
    """
    if isinstance(error, aiohttp.ClientConnectionResetError):
        return True  # the connection closed before the whole request was written
    if not isinstance(error, OSError) or error.errno != errno.ECONNRESET:
        return False
    return is_loopback(url.host or "")


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
    """Parse and check a url; cached because the same urls are requested repeatedly."""
    try:
        # Keep the encoding of a url that is already ASCII: signed upload locations must not be re-quoted.
        url = URL(text, encoded=all("!" <= character <= "~" for character in text))
        host = url.host
    except ValueError as error:
        raise UrlRefusedError(text[:100], "it is not a url") from error
    if url.scheme not in {"http", "https"}:
        raise UrlRefusedError(text[:100], "only http and https urls are supported")
    if not host:
        raise UrlRefusedError(text[:100], "it has no host")
    if url.user is not None or url.password is not None:
        # aiohttp would send them as Basic credentials; who has credentials sends a header
        raise UrlRefusedError(_origin(url), "it holds user information (user@host)")
    return url


@lru_cache(maxsize=4096)
def _check_literal(url: URL, *, allow_private: bool) -> None:
    """Reject an address in the url; host names are checked when they are resolved."""
    try:
        refusal = find_refusal(url.host or "", allow_private=allow_private)
    except ValueError:
        return  # a name
    if refusal is not None:
        raise UrlRefusedError(_origin(url), refusal)


def _origin(url: URL) -> str:
    return describe_origin(url.scheme, url.host, url.explicit_port)
