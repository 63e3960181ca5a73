"""ASGI middleware for a process behind a reverse proxy: a path prefix, and the headers of trusted proxies.

A proxy may leave the prefix of the advertised URL in the path or strip it; both are understood. The headers
``X-Forwarded-Host``, ``X-Forwarded-Proto`` and ``X-Forwarded-Prefix`` count only from the named proxies,
because any other client could choose them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.web.addresses import PREFIX_KEY

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAX_PREFIX = 200
_PLACES = frozenset({b"location", b"content-location"})


class PublicAddress:
    """Forwards requests to ``app`` as if they had come to it directly.

    ``prefix`` is the path of the advertised URL, "" for none. Paths in responses (``Location``, ``Link``)
    get the prefix, so that clients of the proxy find them.
    """

    def __init__(self, app: ASGIApp, prefix: str, proxies: Iterable[Network] = ()) -> None:
        self._app = app
        self._prefix = prefix.rstrip("/")
        self._proxies = tuple(proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        prefix = self._prefix
        if self._proxies and self._is_proxy(scope.get("client")):
            scope, facts = _as_told(scope)
            prefix = prefix or facts
        if prefix:
            scope = {**_without_prefix(scope, prefix), PREFIX_KEY: prefix}
            send = _add_prefix(send, quote(prefix))
        await self._app(scope, receive, send)

    def _is_proxy(self, client: Any) -> bool:
        try:
            address = ipaddress.ip_address(client[0])
        except (TypeError, ValueError):
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network for network in self._proxies)


def _as_told(scope: Scope) -> tuple[Scope, str]:
    """The request as a trusted proxy received it, and the prefix that it stripped."""
    facts: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name.startswith(b"x-forwarded-"):
            # the nearest proxy appends; it is the one that is trusted
            facts[name] = value.rpartition(b",")[2].strip()
    scope = dict(scope)
    if (protocol := facts.get(b"x-forwarded-proto", b"").lower()) in (b"http", b"https"):
        scope["scheme"] = protocol.decode()
    if host := facts.get(b"x-forwarded-host"):
        scope["headers"] = [*((n, v) for n, v in scope["headers"] if n != b"host"), (b"host", host)]
    prefix = facts.get(b"x-forwarded-prefix", b"").decode("latin-1").rstrip("/")
    is_path = prefix.startswith("/") and not prefix.startswith("//") and len(prefix) <= _MAX_PREFIX
    return scope, prefix if is_path else ""


def _without_prefix(scope: Scope, prefix: str) -> Scope:
    path: str = scope["path"]
    if path != prefix and not path.startswith(f"{prefix}/"):
        return scope
    raw = scope.get("raw_path") or b""
    quoted = quote(prefix).encode()
    return {
        **scope,
        "path": path[len(prefix) :] or "/",
        "raw_path": raw[len(quoted) :] or b"/" if raw.startswith(quoted) else raw,
    }


def _add_prefix(send: Send, prefix: str) -> Send:
    start = prefix.encode() + b"/"

    def moved(path: bytes) -> bytes:
        is_own = path.startswith(b"/") and not path.startswith((b"//", start))
        return start + path[1:] if is_own else path

    def moved_header(name: bytes, value: bytes) -> bytes:
        if name in _PLACES:
            return moved(value)
        if name == b"link" and value.startswith(b"</"):
            return b"<" + moved(value[1:])
        return value

    async def send_moved(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name, moved_header(name.lower(), value)) for name, value in message["headers"]]
            message = {**message, "headers": headers}
        await send(message)

    return send_moved
