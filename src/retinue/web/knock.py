"""Asks the system whether something listens at the address of a URL, at a tenth of the cost of a request."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
_CONNECTS_AGAIN = sys.platform == "linux"


class Knocks:
    """Asks about one URL after another. Close it at the end, or use it as a context manager."""

    def __init__(self) -> None:
        self._refused: dict[socket.AddressFamily, socket.socket] = {}
        """Sockets that were refused, which Linux can connect again for half the cost of a new one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._refused.values():
            connection.close()
        self._refused.clear()

    async def is_refused(self, url: str, *, timeout_s: float) -> bool:
        """Whether the system at the URL's address refuses a connection, so that certainly nobody listens.

        False in every other case, also for a host that is a name.
        """
        scheme, mark, rest = url.partition("://")
        address = _find_address(f"{scheme}{mark}{rest.partition('/')[0]}")
        if address is None:
            return False
        family, host, port = address
        connection = self._refused.pop(family, None) or _open(family)
        is_kept = False
        try:
            code = connection.connect_ex((host, port))
            if code == errno.EINPROGRESS:
                # a port of this machine is decided by now; a time limit would cost more than all of this
                await asyncio.sleep(0)
                code = connection.connect_ex((host, port))
            if code == errno.EALREADY:
                await _wait_until_writable(connection, timeout_s)
                code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == errno.ECONNREFUSED:
                is_kept = _CONNECTS_AGAIN and family not in self._refused
                return True
        except OSError:
            return False
        finally:
            if is_kept:
                self._refused[family] = connection
            else:
                connection.close()
        return False


def _open(family: socket.AddressFamily) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.setblocking(False)
    return connection


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
