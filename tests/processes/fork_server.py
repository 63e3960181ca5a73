"""Starts ``retinue`` commands for tests by forking a process that has imported them, once for each worker.

A start of Python and the imports of a hub take a second of a core, more than most tests of a program use
otherwise. A forked command has its own process, session, environment and folder as one that was started by
its command line; only ``/proc/PID/cmdline`` differs, and modules are loaded that it did not ask for.
This file is the server, run as a script; ``ForkedProcess`` is the side of the test.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import IO, NoReturn

IMPORTED = (
    "retinue.runtime.hub_process",
    "retinue.runtime.agent_process",
    "retinue.runtime.worker_process",
    "retinue.cli.session",
    "retinue.runtime.commands.publishing",
    "retinue.workflows.durable.runs",
)
"""The modules of the server, and with them all that they import."""
_NUMBER = struct.Struct("i")
_REQUEST_BYTES = 128 * 1024


class ForkedProcess:
    """A forked command, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, arguments: Sequence[str], *, cwd: str, environment: Mapping[str, str]) -> None:
        output, output_end = os.pipe()
        self._status, status_end = os.pipe()
        try:
            ignores_hangups = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            request = json.dumps([[*arguments], cwd, {**environment}, ignores_hangups]).encode()
            _, requests = _start_server()
            socket.send_fds(requests, [request], [output_end, status_end])
        finally:
            os.close(output_end)
            os.close(status_end)
        self.stdout: IO[str] = os.fdopen(output, encoding="utf-8", errors="replace")
        self.pid = _read_number(self._status)
        self.returncode: int | None = None
        self._reading = threading.Lock()

    def __del__(self) -> None:
        os.close(self._status)  # not before, because another thread may wait for it

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or nothing as long as the process runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._read_status()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["retinue"], timeout or 0)
            self._read_status()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_status(self) -> None:
        with self._reading:
            if self.returncode is None:
                self.returncode = os.waitstatus_to_exitcode(_read_number(self._status))


def _read_number(pipe: int) -> int:
    number: int = _NUMBER.unpack(os.read(pipe, _NUMBER.size))[0]
    return number


@cache
def _start_server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The server of this worker and its socket, with whose end the server ends."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
    with there:
        server = subprocess.Popen(
            [sys.executable, __file__, str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(_end, server, here)
    return server, here


def _end(server: subprocess.Popen[bytes], requests: socket.socket) -> None:
    requests.close()
    server.wait()


def _serve(requests: socket.socket) -> list[str]:
    """Fork for each request; returns the arguments of the command in each child, never in the server."""
    statuses: dict[int, int] = {}
    wakeup, wakeup_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup_end)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    while True:
        ready, _, _ = select.select([requests.fileno(), wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 1024)
            _reap(statuses)
        if requests.fileno() in ready:
            request, ends, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
            if not request:
                sys.exit(0)
            output, status = ends
            pid = os.fork()
            if pid == 0:
                os.dup2(output, 1)
                os.dup2(output, 2)
                return _become(request)
            os.close(output)
            statuses[pid] = status
            os.write(status, _NUMBER.pack(pid))


def _reap(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = statuses.pop(pid)
        os.write(pipe, _NUMBER.pack(status))
        os.close(pipe)


def _become(request: bytes) -> list[str]:
    """Make this child the process that the test asked for."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.closerange(3, 1024)
    os.setsid()
    arguments, cwd, environment, ignores_hangups = json.loads(request)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignores_hangups else signal.SIG_DFL)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.path[0] = cwd
    return list(arguments)


def main() -> NoReturn:
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in IMPORTED:
        import_module(module)
    gc.collect()
    gc.freeze()
    sys.argv[1:] = _serve(requests)
    requests.detach()
    runpy.run_module("retinue", run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
