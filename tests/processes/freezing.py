"""Processes that are frozen: all their threads are stopped, and none holds the lock of a SQLite file."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from tests.processes.running import wait_until

TRIES = 200
STOPPED = frozenset("TtZX")
"""The states in which a thread executes nothing, as the kernel names them."""


def list_databases(home: Path) -> list[Path]:
    """The SQLite files of a state folder."""
    return list(home.glob("*.db"))


def freeze(pid: int, files: Sequence[Path] = ()) -> None:
    """Stop a process while it holds the lock of none of the SQLite ``files``; a missing file is left out.

    The kernel keeps the locks of a stopped process, so nobody else could write before it goes on. SIGSTOP
    stops the threads one after the other and returns before. A thread that still runs can take the lock after
    a look at the file, so the look comes when all threads have stopped.
    """
    for _ in range(TRIES):
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(pid), f"all threads of {pid} stop")
        if all(_is_writable(file) for file in files if file.exists()):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.02)
    raise AssertionError(f"process {pid} always holds the lock")


def is_stopped(pid: int) -> bool:
    """Whether each thread of a process has stopped."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # this thread has ended
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return STOPPED.issuperset(states)


def _is_writable(file: Path) -> bool:
    name = f"file:{quote(str(file))}?mode=rw"
    with contextlib.closing(sqlite3.connect(name, uri=True, timeout=1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return False
    return True
