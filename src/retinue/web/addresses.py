"""Parses and compares host names and addresses of a Host header, and recognises loopback."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

_REMEMBERED = 256
_PORT_DIGITS = 5
_PORTS = {"http": 80, "https": 443}


PREFIX_KEY = "retinue.prefix"
"""The key of the ASGI scope that holds the path prefix."""


def prefix_of(scope: Mapping[str, Any]) -> str:
    """The path prefix under which the client of this request reaches the process, "" for none."""
    return str(scope.get(PREFIX_KEY, ""))


def base_of(scope: Mapping[str, Any], host: bytes) -> str:
    """The base URL under which the client of this request, with this Host header, reaches the process."""
    return f"{scope.get('scheme', 'http')}://{host.decode('latin-1')}{prefix_of(scope)}"


def fold(host: str) -> str:
    """Normalise a configured host: lower case, without port and brackets."""
    return host_name(host.encode("latin-1", "replace")) or host


def host_name(host: bytes | None) -> str:
    """The name or address in a Host header, lower case, without port and brackets; "" when it is invalid."""
    text = (host or b"").decode("latin-1").strip().lower()
    if text.startswith("["):
        name, closed, port = text[1:].partition("]")
        is_whole = (
            closed and is_address(name) and (not port or (port[0] == ":" and (port[1:] or "0").isdecimal()))
        )
        return name if is_whole else ""
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
    if address is None or not name or port_of(host) != port:
        return False
    return _address(name) == _address(address) or (is_loopback(name) and is_loopback(address))


def port_of(host: bytes | None, scheme: str = "http") -> int | None:
    """The port in a Host header or after ``scheme://``; that of the scheme where none is written."""
    _, _, port = (host or b"").decode("latin-1").strip().rpartition("]")[2].rpartition(":")
    return int(port) if port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS else _PORTS[scheme]


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


Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NEVER_ASKED = tuple(
    map(
        ipaddress.ip_network,
        (
            "169.254.0.0/16",  # link-local; 169.254.169.254 and .170.2 are metadata services
            "fe80::/10",  # link-local
            "fd00:ec2::/32",  # metadata, DNS and time of EC2
            "fd20:ce::254/128",  # metadata of Google Cloud
            "fd00:42::42/128",  # metadata of Scaleway
            "fd00:a9fe:a9fe::/48",  # metadata elsewhere
            "100.100.100.200/32",  # metadata of Alibaba Cloud
            "168.63.129.16/32",  # platform services of Azure
            "192.0.0.192/32",  # metadata of Oracle Cloud
        ),
    )
)
_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("::/96"))


def find_refusal(address: str, *, allow_private: bool) -> str | None:
    """Why no request is sent to an address; None when it may be asked.

    Link-local addresses and those at which clouds give credentials to their machines are always refused,
    also where they are written as IPv6.
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    for candidate in (parsed, *_embedded(parsed)):
        if any(candidate in network for network in _NEVER_ASKED):
            return "link-local addresses and metadata services are never asked"
        if not allow_private and (not candidate.is_global or candidate.is_multicast):
            return "the address is not public"
    return None


def _embedded(address: Address) -> list[Address]:
    """The IPv4 address inside an IPv6 address: mapped, translated (NAT64), 6to4 or Teredo."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    embedded = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _NAT64) and int(address) & 0xFFFFFFFF > 1:
        embedded.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [candidate for candidate in embedded if candidate is not None]


def is_loopback(name: str) -> bool:
    """Whether the host is ``localhost`` or a loopback address."""
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)


def check_public_url(text: str) -> str:
    """The URL under which others reach a process, without a slash at its end; raises ValueError."""
    try:
        parts = urlsplit(text)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ValueError("write a whole URL, such as https://mesh.example/agents")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("leave out user, query and fragment of the URL")
    if is_address(parts.hostname or "") and ipaddress.ip_address(parts.hostname or "").is_unspecified:
        raise ValueError(f"nobody reaches {parts.hostname}: write the address of this machine")
    return text.rstrip("/")


def is_loopback_url(url: str) -> bool:
    """Whether the host of the url is ``localhost`` or a loopback address."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
