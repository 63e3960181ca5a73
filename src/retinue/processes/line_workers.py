"""Child processes that answer lines with lines, under limits of processor time and memory.

For work that would block the event loop and cannot go to a thread because it keeps the GIL, or that could
take more time or memory than this process can spare. A child is kept for further requests, so that a
request costs no start of an interpreter, and it ends with the end of its input, so none outlives its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

_END_S = 5.0


class WorkerEndedError(Exception):
    """A child ended before it had answered. ``is_out_of_time`` = it used up its processor time."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the process ended with status {status}")
        self.is_out_of_time = status == -signal.SIGPROF


class LineWorkers:
    """Children that run ``python -m module``; ``keep`` of them stay for further requests."""

    def __init__(self, module: str, *, keep: int) -> None:
        self._module = module
        self._keep = keep
        self._idle: list[subprocess.Popen[bytes]] = []
        atexit.register(self.close)

    @property
    def idle(self) -> tuple[subprocess.Popen[bytes], ...]:
        """The children that wait for another request."""
        return tuple(self._idle)

    def ask(self, line: bytes) -> bytes:
        """The answer to one line; blocks, may be called from any thread. Raises WorkerEndedError."""
        worker = self._find_idle() or self._start()
        stdin, stdout = cast(IO[bytes], worker.stdin), cast(IO[bytes], worker.stdout)
        answer = b""
        try:
            with contextlib.suppress(BrokenPipeError):
                stdin.write(line + b"\n")
                stdin.flush()
                answer = stdout.readline()
        finally:
            if answer.endswith(b"\n") and len(self._idle) < self._keep:
                self._idle.append(worker)
            else:
                _end(worker)
        if not answer.endswith(b"\n"):
            raise WorkerEndedError(worker.returncode)
        return answer

    def close(self) -> None:
        """End the children that are idle."""
        while self._idle:
            _end(self._idle.pop())

    def _find_idle(self) -> subprocess.Popen[bytes] | None:
        with contextlib.suppress(IndexError):
            while True:
                worker = self._idle.pop()
                if worker.poll() is None:
                    return worker
                _end(worker)
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", self._module]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603


def _end(worker: subprocess.Popen[bytes]) -> None:
    # A write that failed left bytes behind, which closing would try to write again.
    with contextlib.suppress(BrokenPipeError):
        cast(IO[bytes], worker.stdin).close()
    try:
        worker.wait(_END_S)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
    cast(IO[bytes], worker.stdout).close()


def serve(answer: Callable[[bytes], bytes], *, cpu_s: float, memory_bytes: int) -> None:
    """In the child: answer each line of standard input, until it ends.

    An answer that takes more than ``cpu_s`` seconds of processor time ends the process; more than
    ``memory_bytes`` beyond what the process has now raise MemoryError in ``answer``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the terminal is the parent's
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(FileNotFoundError):  # not Linux: no limit of memory
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        limit = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        reply = answer(line)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(reply + b"\n")
        sys.stdout.buffer.flush()
