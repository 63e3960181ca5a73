"""Ports for programs that must be told where to listen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine that no other program is given meanwhile.

    A socket is bound to it and never listens. A program can listen at the port all the same, because both
    sockets allow the reuse of their address.
    """
    with _bind() as bound:
        yield bound.getsockname()[1]


def reserve_port() -> int:
    """As `reserved_port`, until the process of these tests ends."""
    bound = _bind()
    port: int = bound.getsockname()[1]
    bound.detach()
    return port


def _bind() -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    return bound
