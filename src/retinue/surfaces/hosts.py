"""Names and addresses as they stand in a Host header."""

from __future__ import annotations

import ipaddress


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


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)
