"""Host names and addresses of a Host header: parsing, comparison, loopback checks."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

_REMEMBERED = 256
_PORT_DIGITS = 5


def fold(host: str) -> str:
    """Normalise a configured host: lower case, without port and brackets."""
    return host_name(host.encode("latin-1", "replace")) or host


def host_name(host: bytes | None) -> str:
    """The name or address in a Host header, lower case, without port and brackets; "" when it is invalid."""
    text = (host or b"").decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    if text.count(":") > 1:
        return text if is_address(text) else ""
    return text.partition(":")[0]


def names_socket(host: bytes | None, server: Sequence[Any] | None, names: frozenset[str]) -> bool:
    """Whether a Host header names ``server``, the address and port at which the request arrived.

    A host in ``names`` matches with any port, because a proxy in front listens on another one. Nothing else
    in the header is trusted: the client chooses it.
    """
    address, port = server or (None, None)
    return _names_socket(host, address, port, names)


@lru_cache(maxsize=_REMEMBERED)
def _names_socket(host: bytes | None, address: str | None, port: int | None, names: frozenset[str]) -> bool:
    name = host_name(host)
    if name in names:
        return True
    if address is None or not name or _port(host) != port:
        return False
    return _address(name) == _address(address) or (is_loopback(name) and is_loopback(address))


def _port(host: bytes | None) -> int | None:
    _, _, port = (host or b"").decode("latin-1").strip().rpartition("]")[2].rpartition(":")
    return int(port) if port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS else 80


def _address(name: str) -> str:
    """Normalise an address; a dual-stack socket reports IPv4 addresses mapped to IPv6."""
    if not is_address(name):
        return name
    address = ipaddress.ip_address(name)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_address(name: str) -> bool:
    """Whether the name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """Whether the host is ``localhost`` or a loopback address."""
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)


def is_loopback_url(url: str) -> bool:
    """Whether the host of the url is ``localhost`` or a loopback address."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
