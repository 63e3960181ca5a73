"""Names and addresses as they stand in a Host header."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_REMEMBERED = 256
_PORT_DIGITS = 5


def fold(host: str) -> str:
    return host_name(host.encode("latin-1", "replace")) or host


def host_name(host: bytes | None) -> str:
    """The name or address of a Host header, lower case, without port and brackets; "" when unusable."""
    text = (host or b"").decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    if text.count(":") > 1:
        return text if is_address(text) else ""
    return text.partition(":")[0]


def names_socket(host: bytes | None, server: Sequence[Any] | None, names: frozenset[str]) -> bool:
    """Whether a Host header means ``server``, where the request came in (address and port).

    One of ``names`` means it with any port, because a proxy in front has another one. The header is the
    sender's word, so nothing else of it is believed.
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
    """One spelling for each address; a socket for both families shows IPv4 inside of IPv6."""
    if not is_address(name):
        return name
    address = ipaddress.ip_address(name)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)
