"""Starts the processes of a hub by fork, from one process that has imported the program.

A process starts without the imports, which take most of a start, and shares their memory with the others. The
fork server (`retinue.processes.forks`) has no event loop, no threads and no sockets of the hub. It is forked
before the parent has them. Without the server, the parent starts processes as usual.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import NoReturn

import structlog

from retinue.processes.forks import read_number, request_fork, serve_forks

_MCP_SERVER = "retinue.mcp.server.endpoint"
"""Imported once for all processes; each would take 35 MB for it, and half a second at its first use."""

_UNKNOWN_CODE = 1
"""The exit code of a process that ended after the fork server, which would have told it."""

_log = structlog.get_logger("retinue.processes")


class ForkedProcess:
    """A process that the fork server has started; used as `asyncio.subprocess.Process`.

    Its wait status comes through ``pipe``; ``on_lost`` is called if the fork server ends before it.
    """

    def __init__(self, pid: int, pipe: int, on_lost: Callable[[], None]) -> None:
        self.pid = pid
        self._pipe = pipe
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(pipe, self._on_status)

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._code.result() if self._code.done() else None

    async def wait(self) -> int:
        """Wait until it ends; returns the exit code."""
        return await asyncio.shield(self._code)

    def send_signal(self, number: int) -> None:
        """Send a signal; raises ProcessLookupError if the process has ended."""
        if self._code.done():
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)

    def _on_status(self) -> None:
        self._loop.remove_reader(self._pipe)
        status = read_number(self._pipe)
        os.close(self._pipe)
        if status is not None:
            self._code.set_result(os.waitstatus_to_exitcode(status))
        else:
            self._on_lost()
            self._watch()

    def _watch(self) -> None:
        """Learn of its end without the fork server."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            self._code.set_result(_UNKNOWN_CODE)
            return

        def end() -> None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
            self._code.set_result(_UNKNOWN_CODE)

        self._loop.add_reader(descriptor, end)


class ForkServer:
    """The parent's side of the fork server; ``control`` is the socket to it."""

    def __init__(self, control: socket.socket) -> None:
        control.setblocking(False)
        self._control = control
        self.is_running = True

    async def start_if_running(
        self, arguments: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]
    ) -> ForkedProcess | None:
        """Start the program with ``arguments``; it has ``descriptors`` under the same numbers.

        None if the fork server has ended.
        """
        if not self.is_running:
            return None
        same = {number: number for number in descriptors}
        try:
            pipe = request_fork(self._control, arguments, environment, same)
        except OSError:
            self._note_lost()
            return None
        try:
            await _wait_readable(pipe)
            pid = read_number(pipe)
        except BaseException:
            os.close(pipe)
            raise
        if pid is None:
            os.close(pipe)
            self._note_lost()
            return None
        return ForkedProcess(pid, pipe, self._note_lost)

    def close(self) -> None:
        """Let the fork server end; what it has started runs on."""
        self.is_running = False
        self._control.close()

    def _note_lost(self) -> None:
        if self.is_running:
            _log.warning("the fork server of the hub has ended; processes start without it")
        self.is_running = False


async def _wait_readable(pipe: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(pipe, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(pipe)


@contextmanager
def forking(main: Callable[[Sequence[str]], NoReturn]) -> Iterator[ForkServer | None]:
    """A fork server while inside; ``main`` runs the program with its arguments, and exits.

    None where a fork is not safe: on macOS, whose frameworks do not bear it, and in a process with threads.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        yield None
        return
    import_module(_MCP_SERVER)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # a collection would write to all pages, which then are shared no more
    pid = os.fork()
    if pid == 0:
        ours.close()
        _run(theirs, main)
    theirs.close()
    server = ForkServer(ours)
    try:
        yield server
    finally:
        server.close()
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _run(control: socket.socket, main: Callable[[Sequence[str]], NoReturn]) -> NoReturn:
    """Be the fork server, and run ``main`` in each process that it forks; never return."""
    code: object = 1
    try:
        os.setsid()  # Ctrl-C reaches the parent only
        main(serve_forks(control))
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001 - the frames above are those of the parent
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)
