"""Requests, responses and flows: the sans-IO building blocks of the registry protocol.

A flow is a generator that yields a Request, receives a Response and returns its result. It does no I/O, so
tests feed it responses directly, and another flow can wrap it (`auth`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar
from urllib.parse import urljoin, urlsplit

import orjson

from retinue.core.errors import RegistryBusyError, RegistryLoginError, RegistryRefusedError
from retinue.oci.codec.manifest import MAX_MANIFEST_BYTES
from retinue.oci.codec.wire import DEFAULT_RETRY_AFTER_S, parse_error, parse_next_link, parse_retry_after

T = TypeVar("T")

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_READING = frozenset({"GET", "HEAD"})
_DEFAULT_PORTS = {"http": 80, "https": 443}


class BlobSink(Protocol):
    """Takes content piece by piece; what it raises ends the transfer."""

    def begin(self) -> None:
        """Take the content from its first byte, also after an attempt that was broken off."""
        ...

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        ...


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """One HTTP request; ``url`` is a path below the registry's base, or absolute.

    ``what`` names the requested object in errors. A ``repeatable`` request may be sent again after its
    response was lost. ``sink`` takes the body of a response with status 200 as it comes; that of the response
    is then empty, and ``max_response_bytes`` is for the sink to check.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)
    max_response_bytes: int = MAX_MANIFEST_BYTES
    what: str = ""
    always_repeatable: bool = False
    sink: BlobSink | None = field(default=None, repr=False, compare=False)

    @property
    def repeatable(self) -> bool:
        return self.always_repeatable or self.method in _READING


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP response; header names are lower case, ``url`` is the absolute url of the request."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    @property
    def registry(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


Flow: TypeAlias = Generator[RegistryRequest, Response, T]


def expect(response: Response, *statuses: int) -> Response:
    """Return the response. Raises RegistryRefusedError, or a subclass, for a status not in ``statuses``."""
    if response.status in statuses:
        return response
    code, message = parse_error(response.body)
    detail = ": ".join(part for part in (code, message) if part) or "no reason given"
    if response.status == 401:
        raise RegistryLoginError(response.registry, detail)
    if response.status == 429:
        wait_s = parse_retry_after(response.headers)
        raise RegistryBusyError(
            response.registry, detail, DEFAULT_RETRY_AFTER_S if wait_s is None else wait_s
        )
    if response.status in REDIRECTS:
        there = origin_of(read_location(response))
        detail = f"it redirects to {there}; redirects are followed for content only"
    raise RegistryRefusedError(response.registry, response.status, detail)


def read_location(response: Response) -> str:
    """The Location header as absolute url; it may be relative to the request."""
    location = response.headers.get("location")
    if not location:
        raise RegistryRefusedError(response.registry, response.status, "its response has no Location header")
    return join(response, location)


def read_next_page(response: Response) -> str | None:
    """The url of the next page, always at the registry of the request, whatever host the link names."""
    link = parse_next_link(response.headers.get("link"))
    if link is None:
        return None
    there = urlsplit(join(response, link))
    return urlsplit(response.url)._replace(path=there.path, query=there.query).geturl()


def read_names(response: Response, key: str) -> list[str]:
    """The list of names under ``key``; ``null`` counts as empty. Raises RegistryRefusedError."""
    try:
        value = orjson.loads(expect(response, 200).body)
    except ValueError:
        value = None
    names = (value.get(key) or []) if isinstance(value, dict) else None
    if not isinstance(names, list):
        raise RegistryRefusedError(
            response.registry, response.status, f"its response contains no JSON list of {key}"
        )
    return [name for name in names if isinstance(name, str)]


def join(response: Response, target: str) -> str:
    """Resolve ``target`` relative to the request. Raises RegistryRefusedError when it is not a url."""
    try:
        joined = urljoin(response.url, target)
        origin_of(joined)
    except ValueError:
        raise RegistryRefusedError(
            response.registry, response.status, f"it refers to {target[:80]!r}, which is not a url"
        ) from None
    return joined


def origin_of(url: str) -> str:
    """Scheme, host and port of a url, normalised and without credentials.

    Raises ValueError for an invalid url.
    """
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    shown = "" if port is None or port == _DEFAULT_PORTS.get(parts.scheme) else f":{port}"
    return f"{parts.scheme}://{host or ''}{shown}"
