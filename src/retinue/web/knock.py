"""Asks the system whether something listens at the address of a URL, at a tenth of the cost of a request."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


async def is_refused(url: str, *, timeout_s: float) -> bool:
    """Whether the system at the URL's address refuses a connection, so that certainly nobody listens.

    False in every other case, also for a host that is a name.
    """
    scheme, mark, rest = url.partition("://")
    address = _find_address(f"{scheme}{mark}{rest.partition('/')[0]}")
    if address is None:
        return False
    family, host, port = address
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            code = connection.connect_ex((host, port))
            if code == errno.EINPROGRESS:
                # a port of this machine is decided by now; a time limit would cost more than all of this
                await asyncio.sleep(0)
                code = connection.connect_ex((host, port))
            if code == errno.EALREADY:
                await _wait_until_writable(connection, timeout_s)
                code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except OSError:
            return False
        return code == errno.ECONNREFUSED


@lru_cache(maxsize=1024)
def _find_address(origin: str) -> tuple[socket.AddressFamily, str, int] | None:
    """Family, address and port of an origin; None where its host is a name. Many agents may share it."""
    try:
        parts = urlsplit(origin)
        port = parts.port or _PORTS[parts.scheme]
        host = parts.hostname or ""
        return socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET, host, port
    except (ValueError, KeyError):
        return None


async def _wait_until_writable(connection: socket.socket, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(connection, writable.set)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(writable.wait(), timeout_s)
    finally:
        loop.remove_writer(connection)
