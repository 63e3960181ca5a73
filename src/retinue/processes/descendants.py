"""Finds, stops and kills all processes that a process has started, whatever group or session they are in.

Standard library only: the keeper, which runs as a separate process, imports this file without the package.
"""

from __future__ import annotations

import contextlib
import os
import signal

_PASSES = 200
"""Processes that fork may outrun a pass; each pass finds at least the processes that it has not stopped."""


def list_descendants(root: int) -> list[int]:
    """List all running descendants of ``root`` from /proc; empty without /proc."""
    children: dict[int, list[int]] = {}
    try:
        entries = os.listdir("/proc")  # noqa: PTH208  (importing pathlib is slow for so short a process)
    except OSError:
        return []
    for entry in entries:
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:  # noqa: PTH123
                # The process name, in parentheses, may contain spaces and parentheses.
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has just ended
        children.setdefault(parent, []).append(int(entry))
    descendants: list[int] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            descendants.append(child)
            waiting.append(child)
    return descendants


def stop_descendants(root: int) -> None:
    """Stop all descendants of ``root`` with SIGSTOP, so that none forks while the others are killed."""
    stopped: set[int] = set()
    for _ in range(_PASSES):
        running = [pid for pid in list_descendants(root) if pid not in stopped]
        if not running:
            return
        for pid in running:
            stopped.add(pid)
            send_signal(pid, signal.SIGSTOP)


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended, or may belong to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
