"""Starts the processes of a hub by fork, from one process that has imported the program.

A process starts without the imports, which take most of a start, and shares their memory with the others. The
fork server (`retinue.processes.forks`) has no event loop, no threads and no sockets of the hub. It is forked
before the parent has them. Without the server, the parent starts processes as usual.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
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

ANSWERS_WITHIN_S = 20.0
"""The fork server is killed if it takes longer to fork, or to tell that a process has ended."""

_log = structlog.get_logger("retinue.processes")


class ForkedProcess:
    """A process that the ``server`` has started; used as `asyncio.subprocess.Process`.

    Its wait status comes through ``pipe``. It is unknown if the server ends before the process, or does not
    tell it.
    """

    def __init__(self, pid: int, pipe: int, server: ForkServer) -> None:
        self.pid = pid
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = self._loop.create_future()
        self._silence: asyncio.TimerHandle | None = None
        self._pipe: int | None = pipe
        self._loop.add_reader(pipe, self._on_status, pipe)
        self._descriptor: int | None = None
        with suppress(OSError):  # it has ended, and the server has told so
            self._descriptor = os.pidfd_open(pid)
            self._loop.add_reader(self._descriptor, self._on_end, self._descriptor)

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._code.result() if self._code.done() else None

    async def wait(self) -> int:
        """Wait until it ends; returns the exit code."""
        return await asyncio.shield(self._code)

    def send_signal(self, number: int) -> None:
        """Send a signal; raises ProcessLookupError if the process has ended."""
        if self._descriptor is None:
            raise ProcessLookupError(self.pid)
        signal.pidfd_send_signal(self._descriptor, number)

    def _on_status(self, pipe: int) -> None:
        status = read_number(pipe)
        self._loop.remove_reader(pipe)
        os.close(pipe)
        self._pipe = None
        if status is not None:
            self._end(os.waitstatus_to_exitcode(status))
            return
        self._server.note_lost()
        if self._descriptor is None:
            self._end(_UNKNOWN_CODE)

    def _on_end(self, descriptor: int) -> None:
        """The process has ended, which the server tells at once."""
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        self._descriptor = None
        if self._pipe is None:
            self._end(_UNKNOWN_CODE)
        else:
            self._silence = self._loop.call_later(ANSWERS_WITHIN_S, self._on_silence, self._pipe)

    def _on_silence(self, pipe: int) -> None:
        if not _is_readable(pipe):  # it is if this process was stopped meanwhile
            self._server.kill()

    def _end(self, code: int) -> None:
        if self._silence is not None:
            self._silence.cancel()
        if not self._code.done():
            self._code.set_result(code)


class ForkServer:
    """The parent's side of the fork server, the process ``pid``; ``control`` is the socket to it."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        control.setblocking(False)
        self._control = control
        self._pid = pid
        self.is_running = True

    async def start_if_running(
        self, arguments: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]
    ) -> ForkedProcess | None:
        """Start the program with ``arguments``; it has ``descriptors`` under the same numbers.

        None if the fork server has ended, or does not answer.
        """
        if not self.is_running:
            return None
        same = {number: number for number in descriptors}
        try:
            pipe = request_fork(self._control, arguments, environment, same)
        except OSError:
            self.note_lost()
            return None
        try:
            pid = await self._read_pid(pipe)
        except BaseException:
            os.close(pipe)
            raise
        if pid is None:
            os.close(pipe)
            self.note_lost()
            return None
        return ForkedProcess(pid, pipe, self)

    async def _read_pid(self, pipe: int) -> int | None:
        """The id of the new process; None if there is none."""
        if not await _becomes_readable(pipe):
            self.kill()
            if not await _becomes_readable(pipe):
                return None
        return read_number(pipe)

    def kill(self) -> None:
        """Kill the fork server, because it does not answer; what it has started runs on."""
        if self.is_running:
            _log.warning("the fork server of the hub does not answer; processes start without it")
        self.close()

    def close(self) -> None:
        """End the fork server; what it has started runs on."""
        self.is_running = False
        self._control.close()
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)  # a frozen one would not read that it may end

    def note_lost(self) -> None:
        """Record that the fork server has ended."""
        if self.is_running:
            _log.warning("the fork server of the hub has ended; processes start without it")
        self.is_running = False


async def _becomes_readable(pipe: int) -> bool:
    """Wait until a pipe has something to read, or its end; False if it has not within `ANSWERS_WITHIN_S`."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(pipe, readable.set)
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            await readable.wait()
    except TimeoutError:
        return _is_readable(pipe)  # it is if this process was stopped meanwhile
    finally:
        loop.remove_reader(pipe)
    return True


def _is_readable(pipe: int) -> bool:
    return bool(select.select([pipe], [], [], 0)[0])


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
    server = ForkServer(ours, pid)
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
