"""Shared types of the HTTP clients: a response, request errors, limits, and their common method."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from multidict import CIMultiDictProxy

MAX_RESPONSE_BYTES: Final = 32 * 1024 * 1024
MAX_CONNECTIONS: Final = 1000
CONNECT_TIMEOUT_S: Final = 5.0
KEEP_ALIVE_S: Final = 4.0
"""Below uvicorn's 5 s, so that a pooled connection is not used while its server closes it."""


class TransportError(Exception):
    """A request without usable response.

    Callers convert it to an error of their own layer. ``origin`` is scheme, host and port without
    credentials, ``cause`` is one line. ``sent`` is False when the server certainly did not process the
    request.
    """

    def __init__(self, origin: str, cause: str, *, sent: bool) -> None:
        super().__init__(f"{origin}: {cause}")
        self.origin = origin
        self.cause = cause
        self.sent = sent


class UrlRefusedError(TransportError):
    """The url is not allowed; no request was sent."""

    def __init__(self, origin: str, cause: str) -> None:
        super().__init__(origin, cause, sent=False)


class ResponseTooLargeError(TransportError):
    """The response exceeds the size limit; reading stopped there."""

    def __init__(self, origin: str, limit_bytes: int) -> None:
        super().__init__(origin, f"the response is larger than {limit_bytes:,} bytes", sent=True)
        self.limit_bytes = limit_bytes


@dataclass(slots=True)
class HttpResponse:
    """A response of any status; header names are case-insensitive."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


class HttpStream(Protocol):
    """A response that is read as it comes, no faster than the caller reads: of aiohttp, and the plain one."""

    status: int
    headers: Mapping[str, str]

    async def read_some(self) -> bytes:
        """Read the next available part of the body, b"" at its end.

        Raises TransportError when it is cut off.
        """
        ...

    async def read(self, limit_bytes: int = MAX_RESPONSE_BYTES) -> bytes:
        """Read the whole body. Raises ResponseTooLargeError and TransportError."""
        ...

    async def drain(self, timeout_s: float) -> None:
        """Read the rest of the body, so that the connection can be reused.

        After the time limit it is closed.
        """
        ...


class HttpStreamer(Protocol):
    """Sends one request and reads the response as it comes: `HttpClient`, and `PlainHttpClient`."""

    def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AbstractAsyncContextManager[HttpStream]:
        """Yield the response, whatever its status, as soon as its headers arrive.

        Only connecting has a time limit. Leaving the block before the end of the body closes the connection,
        which tells the server. Raises TransportError and UrlRefusedError.
        """
        ...


class HttpRequester(HttpStreamer, Protocol):
    """Sends one request and reads the whole response: `HttpClient`, and `PlainHttpClient` for addresses."""

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
        """Return the response, whatever its status.

        ``timeout_s`` covers everything from connecting to the last byte; ``what``, ``layer`` and ``setting``
        appear in the CallTimedOutError.
        Raises CallTimedOutError, TransportError, UrlRefusedError, ResponseTooLargeError.
        """
        ...


def describe_origin(scheme: str, host: str | None, port: int | None) -> str:
    """Scheme, host and port of a url, without credentials."""
    bracketed = f"[{host}]" if host and ":" in host else host
    return f"{scheme}://{bracketed}" + (f":{port}" if port else "")


def describe_failure(error: BaseException) -> str:
    """Why a connection failed, in words for people: the text of the system without its number."""
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there (connection refused)"
    if isinstance(error, socket.gaierror):
        return error.strerror or first_line(error)
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)
    return first_line(error)


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, else its class."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
