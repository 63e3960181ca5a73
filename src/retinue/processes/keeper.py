"""Supervises one confined program: ``python -I -S keeper.py LIMITS -- PROGRAM ARGUMENT…``.

It forks the program under resource limits and becomes the reaper of all its descendants
(PR_SET_CHILD_SUBREAPER), because RLIMIT_NPROC does not apply to uid 0 and a process can leave its group with
``setsid``. When the parent dies or terminates the keeper, or a limit is exceeded, it kills every descendant.

A descendant can stop the keeper with SIGSTOP. Nothing prevents that, so the keeper is continued from outside:
by its parent (SIGCONT, see ``limited.py``), and when that dies by the kernel. The keeper has a process group
of its own in the session of the parent, and the kernel sends SIGHUP and SIGCONT to a stopped group whose last
link to its session has died.

Standard library only: this file runs as a separate process.

LIMITS is a JSON object: ``parent`` (pid of the process that started the keeper), ``report`` (file descriptor
for the result), ``cpu_s``, ``memory_bytes``, ``processes``, ``open_files``, ``file_bytes``.
The result is one JSON object: ``status`` (as from ``os.waitpid``) and ``limit`` (name or null).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
WATCH_INTERVAL_S = 0.05
PAGE_BYTES = resource.getpagesize()


class Dismissed(Exception):  # noqa: N818  (a request to end, not an error)
    """The parent ended or asked the keeper to stop."""


def tie_to_parent(parent: int, signal_number: int) -> None:
    """Have the kernel send ``signal_number`` when the parent ends; exit at once if it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        os._exit(1)


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
    found: list[int] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found


def resident_bytes(pids: list[int]) -> int:
    """Sum of the resident memory of these processes."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as statm:  # noqa: PTH123
                total += int(statm.read().split()[1]) * PAGE_BYTES
        except (OSError, IndexError, ValueError):
            continue
    return total


def kill_descendants() -> None:
    """Kill and reap descendants until none is left, because a fork bomb may outrun one pass."""
    for _ in range(200):
        pids = list_descendants(os.getpid())
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        while True:
            try:
                reaped, _status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if reaped == 0:
                break
        time.sleep(0.005)


def exec_limited(arguments: list[str], limits: dict[str, int], keeper: int) -> None:
    """In the child: apply the limits and exec the program."""
    try:
        tie_to_parent(keeper, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        for kind, value, slack in (
            (resource.RLIMIT_CPU, limits["cpu_s"], 1),
            (resource.RLIMIT_AS, limits["memory_bytes"], 0),
            (resource.RLIMIT_NOFILE, limits["open_files"], 0),
            (resource.RLIMIT_FSIZE, limits["file_bytes"], 0),
            (resource.RLIMIT_CORE, 0, 0),
        ):
            hard = resource.getrlimit(kind)[1]
            soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(
                kind, (soft, soft + slack if hard == resource.RLIM_INFINITY else min(soft + slack, hard))
            )
        os.execvpe(arguments[0], arguments, os.environ)  # noqa: S606  (no shell, as wanted)
    except OSError as error:
        os.write(2, f"cannot start {arguments[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def watch(program: int, limits: dict[str, int]) -> tuple[int, str | None]:
    """Wait for the program while checking its descendants; returns (wait status, limit exceeded)."""
    while True:
        pause_until = time.monotonic() + WATCH_INTERVAL_S
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == program:
                return status, None
            if pid == 0:
                if time.monotonic() >= pause_until:
                    break
                time.sleep(0.004)
        pids = list_descendants(os.getpid())
        if len(pids) > limits["processes"]:
            return signal.SIGKILL, "processes"
        if resident_bytes(pids) > limits["memory_bytes"]:
            return signal.SIGKILL, "memory"


def main() -> None:
    os.setpgid(0, 0)  # here and not by the parent, whose uvloop cannot
    limits = json.loads(sys.argv[1])
    report = int(limits["report"])

    is_dismissed = False

    def dismiss(_number: int, _frame: object) -> None:
        nonlocal is_dismissed
        if not is_dismissed:  # SIGTERM and SIGHUP may come together
            is_dismissed = True
            raise Dismissed

    signal.signal(signal.SIGTERM, dismiss)
    signal.signal(signal.SIGHUP, dismiss)
    tie_to_parent(limits["parent"], signal.SIGTERM)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.set_inheritable(report, False)
    status, limit = int(signal.SIGKILL), None
    try:
        keeper = os.getpid()
        program = os.fork()
        if program == 0:
            exec_limited(sys.argv[3:], limits, keeper)
        status, limit = watch(program, limits)
    except Dismissed:
        limit = "dismissed"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    kill_descendants()
    os.write(report, json.dumps({"status": int(status), "limit": limit}).encode())


if __name__ == "__main__":
    main()
