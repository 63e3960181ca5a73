"""Serves connections of a listening socket that several processes of a hub have in common.

The system wakes every process for a new connection. The process with the fewest connections accepts it at
once; another one gives that process a millisecond first, so that long connections are spread evenly without
a balancer. A process that has ended accepts nothing, so no new connection waits for it.

A process with many connections is back at its listening socket only after it has answered what waits at them.
So it accepts several connections at a time, because many that come at once would wait for as many turns.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp

from retinue.runtime.hub_processes.board import Board
from retinue.runtime.serving import HttpServer, Stop, end_task
from retinue.web.connection_gate import HttpLimits

YIELD_S = 0.001
"""How long a process with more connections than another one waits before it accepts."""

SHARE_LATE = 8
"""A process that has waited accepts at most one connection for each so many that it has, and at least one."""

MORE_AFTER = 8
"""After each so many waits in a row that ended with a connection, it accepts one more, because the process
with fewer connections may be frozen."""

MAX_AT_ONCE = 100
"""Connections that a process accepts before it serves those that it has."""

MAX_WAITING = 2048
"""Connections that may wait at the socket."""

LOOK_S = 0.02
"""Seconds between two looks whether a process that starts may accept."""

PAUSE_S = 0.2
"""How long a process that cannot accept leaves new connections to the others."""


@asynccontextmanager
async def serving_shared(
    app: ASGIApp,
    listener: socket.socket,
    stop: Stop,
    limits: HttpLimits,
    board: Board,
    processes: int,
    is_ready: Callable[[], bool],
) -> AsyncIterator[None]:
    """Serve while inside, as `retinue.runtime.serving.serving`, from a socket of several processes.

    A process that is not ready leaves new connections to the others, if one of them serves. What it loads
    until then stops its event loop for some tenths of a second, and a call that it has accepted would wait.
    """
    server = HttpServer(app, limits, processes)
    server.server_state.connections = CountedConnections(board.note_connections)
    async with server.running((), stop):
        acceptor = Acceptor(listener, server.make_protocol, server.server_state.connections, board, processes)
        server.stop_listening = acceptor.leave
        starting = asyncio.create_task(_start(acceptor, board, processes, is_ready))
        try:
            yield
        finally:
            await end_task(starting)
            acceptor.stop()


async def _start(acceptor: Acceptor, board: Board, processes: int, is_ready: Callable[[], bool]) -> None:
    while not is_ready() and board.has_other(processes):
        await asyncio.sleep(LOOK_S)
    acceptor.start()
    board.note_serving()


class CountedConnections(set[Any]):
    """The connections of a server; ``note`` is called with their number when it changes."""

    def __init__(self, note: Callable[[int], None]) -> None:
        super().__init__()
        self._note = note

    def add(self, connection: Any) -> None:
        super().add(connection)
        self._note(len(self))

    def discard(self, connection: Any) -> None:
        super().discard(connection)
        self._note(len(self))


class Acceptor:
    """Accepts connections one by one; ``open_connections`` are those that this process has."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        open_connections: set[Any],
        board: Board,
        processes: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make_protocol = make_protocol
        self._open = open_connections
        self._board = board
        self._processes = processes
        self._waiting: asyncio.TimerHandle | None = None
        self._late_turns = 0
        self._opening: set[asyncio.Task[Any]] = set()
        self._has_left = False

    def start(self) -> None:
        if not self._has_left:
            self._loop.add_reader(self._listener.fileno(), self._on_connection)

    def leave(self) -> None:
        """Accept what waits, and close the socket; nobody can connect any more when no process has it."""
        for _ in range(MAX_WAITING):
            if not self._accept():
                break
        self.stop()
        self._has_left = True
        self._listener.close()

    def stop(self) -> None:
        """Accept nothing more; connections that wait are left to the other processes."""
        if self._has_left:
            return
        self._loop.remove_reader(self._listener.fileno())
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _on_connection(self) -> None:
        for _ in range(MAX_AT_ONCE):
            if self._is_ahead():
                self._listen_again(YIELD_S)
                return
            if not self._accept():
                return

    def _accept_late(self) -> None:
        self._waiting = None
        self._late_turns += 1
        most = max(1, self._count() // SHARE_LATE, self._late_turns // MORE_AFTER)
        for _ in range(min(most, MAX_AT_ONCE)):
            if not self._accept():
                self._late_turns = 0
                break
        if self._waiting is None:
            self.start()

    def _is_ahead(self) -> bool:
        return self._board.is_ahead(self._count(), self._processes)

    def _count(self) -> int:
        return len(self._open) + len(self._opening)

    def _listen_again(self, after_s: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._waiting = self._loop.call_later(after_s, self._accept_late)

    def _accept(self) -> bool:
        """Accept one connection; False if none waits here."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # another process has it, or the client is gone
            return False
        except OSError:  # no descriptor is left
            self._listen_again(PAUSE_S)
            return False
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opening = self._loop.create_task(self._open_connection(connection))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        return True

    async def _open_connection(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:
            connection.close()
