"""Starts the processes of a hub by fork, from one process that has imported the program.

A process starts without the imports, which take most of a start, and shares their memory with the others. The
fork server has no event loop, no threads and no sockets of the hub. It is forked before the parent has them.
The parent talks with it over a socket pair: a packet with descriptors starts a process, and packets of JSON
tell that one has started or ended. Without the server, the parent starts processes as usual.
"""

from __future__ import annotations

import asyncio
import fcntl
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
from typing import Any, NoReturn

import orjson
import structlog

_PACKET_BYTES = 4096
_MAX_DESCRIPTORS = 16

_MOVED_FROM = 512
"""Received descriptors are moved above this number before each gets its own number."""

_MCP_SERVER = "retinue.mcp.server.endpoint"
"""Imported once for all processes; each would take 35 MB for it, and half a second at its first use."""

_UNKNOWN_CODE = 1
"""The exit code of a process that ended after the fork server, which would have told it."""

_log = structlog.get_logger("retinue.processes")


class ForkedProcess:
    """A process that the fork server has started; used as `asyncio.subprocess.Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

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

    def note_end(self, code: int) -> None:
        """Take the exit code."""
        if not self._code.done():
            self._code.set_result(code)


class ForkServer:
    """The parent's side of the fork server; ``control`` is the socket to it."""

    def __init__(self, control: socket.socket) -> None:
        control.setblocking(False)
        self._control = control
        self._processes: dict[int, ForkedProcess] = {}
        self._reply: asyncio.Future[ForkedProcess] | None = None
        self._starting = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_running = True

    async def start_if_running(
        self, arguments: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]
    ) -> ForkedProcess | None:
        """Start the program with ``arguments``; it has ``descriptors`` under the same numbers.

        None if the fork server has ended.
        """
        async with self._starting:
            if not self.is_running:
                return None
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
                self._loop.add_reader(self._control.fileno(), self._on_news)
            self._reply = asyncio.get_running_loop().create_future()
            request = {
                "arguments": list(arguments),
                "environment": dict(environment),
                "descriptors": list(descriptors),
            }
            file = os.memfd_create("retinue-start")  # a packet has no room for an environment
            try:
                os.write(file, orjson.dumps(request))
                socket.send_fds(self._control, [b"start"], [file, *descriptors])
                return await self._reply
            except OSError:  # it has ended, which the next news tell
                return None
            finally:
                os.close(file)

    def close(self) -> None:
        """Let the fork server end; what it has started runs on."""
        if self._loop is not None and self.is_running:
            self._loop.remove_reader(self._control.fileno())
        self.is_running = False
        self._control.close()

    def _on_news(self) -> None:
        try:
            packet = self._control.recv(_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._go_on_alone()
            return
        news: Mapping[str, Any] = orjson.loads(packet)
        if (code := news.get("code")) is not None:
            if (process := self._processes.pop(news["pid"], None)) is not None:
                process.note_end(code)
            return
        process = self._processes[news["pid"]] = ForkedProcess(news["pid"])
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(process)

    def _go_on_alone(self) -> None:
        """Watch the processes without the fork server, which has ended."""
        assert self._loop is not None, "news come in its loop"
        _log.warning("the fork server of the hub has ended; processes start without it")
        self.is_running = False
        self._loop.remove_reader(self._control.fileno())
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(OSError("the fork server has ended"))
        for process in self._processes.values():
            self._watch(process)
        self._processes.clear()

    def _watch(self, process: ForkedProcess) -> None:
        assert self._loop is not None, "news come in its loop"
        loop = self._loop
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            process.note_end(_UNKNOWN_CODE)
            return

        def end() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            process.note_end(_UNKNOWN_CODE)

        loop.add_reader(descriptor, end)


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
        _serve(theirs, main)
    theirs.close()
    server = ForkServer(ours)
    try:
        yield server
    finally:
        server.close()
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _serve(control: socket.socket, main: Callable[[Sequence[str]], NoReturn]) -> NoReturn:
    """Start processes until the parent has ended."""
    try:
        os.setsid()  # Ctrl-C reaches the parent only
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        while True:
            readable, _, _ = select.select([control, woken], [], [])
            if woken in readable:
                woken.recv(_PACKET_BYTES)
                _tell_ends(control)
            if control in readable:
                packet, descriptors, _, _ = socket.recv_fds(control, _PACKET_BYTES, _MAX_DESCRIPTORS)
                if not packet:
                    break
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for pipe in (woken, waker, control):
                        pipe.close()
                    _run(descriptors, main)
                for descriptor in descriptors:
                    os.close(descriptor)
                control.send(orjson.dumps({"pid": pid}))
    except OSError:  # the parent has ended
        pass
    except Exception:  # noqa: BLE001 - the parent goes on alone
        traceback.print_exc()
    os._exit(0)


def _tell_ends(control: socket.socket) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            control.send(orjson.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}))


def _run(received: Sequence[int], main: Callable[[Sequence[str]], NoReturn]) -> NoReturn:
    """Be the started process: run ``main`` with what was sent, and exit."""
    code: object = 1
    try:
        os.setsid()
        file, *descriptors = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _MOVED_FROM) for number in received)
        for number in received:
            os.close(number)
        request = orjson.loads(os.pread(file, os.fstat(file).st_size, 0))
        os.close(file)
        for moved, number in zip(descriptors, request["descriptors"], strict=True):
            os.dup2(moved, number, inheritable=False)
            os.close(moved)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.environ.clear()
        os.environ.update(request["environment"])
        main(request["arguments"])
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001 - the frames above are those of the parent
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)
