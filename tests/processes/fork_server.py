"""Starts ``retinue`` commands for tests by forking a process that has imported them, once for each worker.

A start of Python and the imports of a hub take a second of a core, more than most tests of a program use
otherwise. A forked command has its own process, session, environment and folder as one that was started by
its command line; only ``/proc/PID/cmdline`` differs, and modules are loaded that it did not ask for.
This file is the server (`retinue.processes.forks`), run as a script; ``ForkedProcess`` is the side of the
test.
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from typing import IO, NoReturn

from retinue.processes.forks import read_number, request_fork, serve_forks

IMPORTED = (
    "retinue.runtime.hub_process",
    "retinue.runtime.agent_process",
    "retinue.runtime.worker_process",
    "retinue.cli.session",
    "retinue.runtime.commands.publishing",
    "retinue.workflows.durable.runs",
)
"""The modules of the server, and with them all that they import."""
_IGNORES, _DEFAULT = "ignores hangups", "default"


class ForkedProcess:
    """A forked command, with the methods of ``subprocess.Popen`` that tests use.

    Its standard error is its standard output unless ``has_errors``.
    """

    def __init__(
        self, arguments: Sequence[str], *, cwd: str, environment: Mapping[str, str], has_errors: bool = False
    ) -> None:
        ignores_hangups = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        words = (cwd, _IGNORES if ignores_hangups else _DEFAULT, *arguments)
        output, output_end = os.pipe()
        errors, errors_end = os.pipe() if has_errors else (None, os.dup(output_end))
        _, control = _start_server()
        try:
            self._status = request_fork(control, words, environment, {1: output_end, 2: errors_end})
        finally:
            os.close(output_end)
            os.close(errors_end)
        self.stdout: IO[str] = os.fdopen(output, encoding="utf-8", errors="replace")
        self.stderr = None if errors is None else os.fdopen(errors, encoding="utf-8", errors="replace")
        pid = read_number(self._status)
        assert pid is not None, "the fork server has ended"
        self.pid = pid
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

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; gives what it wrote to both streams.

        Kills it after ``timeout`` and raises ``subprocess.TimeoutExpired``.
        """
        assert self.stderr is not None, "has_errors"
        with self.stdout, self.stderr, ThreadPoolExecutor(2) as pool:
            texts = [pool.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
                raise
            output, errors = (text.result() for text in texts)
        return output, errors

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
                status = read_number(self._status)
                assert status is not None, "the fork server has ended"
                self.returncode = os.waitstatus_to_exitcode(status)


@cache
def _start_server() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The server of this worker and its socket, with whose end the server ends."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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


def _end(server: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    server.wait()


def main() -> NoReturn:
    control = socket.socket(fileno=int(sys.argv[1]))
    for module in IMPORTED:
        import_module(module)
    gc.collect()
    gc.freeze()
    folder, hangups, *arguments = serve_forks(control)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if hangups == _IGNORES else signal.SIG_DFL)
    os.chdir(folder)
    time.tzset()
    sys.path[0] = folder
    sys.argv[1:] = arguments
    runpy.run_module("retinue", run_name="__main__", alter_sys=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
