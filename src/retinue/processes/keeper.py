"""Supervises one confined program: ``python -I -S keeper.py LIMITS -- PROGRAM ARGUMENT…``.

It forks the program under resource limits and becomes the reaper of all its descendants
(PR_SET_CHILD_SUBREAPER), because a process can leave its group with ``setsid``. When the parent dies or
terminates the keeper, or a limit is exceeded, it stops every descendant, and then kills them. The number of
processes is counted every 50 ms; `bounds` keeps it small in between.

A descendant can stop the keeper with SIGSTOP. Nothing prevents that, so the keeper is continued from outside:
by its parent (SIGCONT, see ``limited.py``), and when that dies by the kernel. The keeper has a process group
of its own in the session of the parent, and the kernel sends SIGHUP and SIGCONT to a stopped group whose last
link to its session has died.

Standard library only: this file runs as a separate process.

LIMITS is a JSON object: ``parent`` (pid of the process that started the keeper), ``report`` (file descriptor
for the result), ``cpu_s``, ``memory_bytes``, ``processes``, ``tasks``, ``open_files``, ``file_bytes``,
``bounds`` (names of those to try), ``must_bind`` (as root, try another user as well) and ``may_refuse`` (do
not start such a program of root without a bound).
The result is one JSON object: ``status`` (as from ``os.waitpid``), ``limit`` (name or null) and ``bound``
(name, "" for none, "refused" if the program was not started for that reason).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120

from bounds import (  # type: ignore[import-not-found]
    bind_uid,
    bind_user,
    close_group,
    enter_group,
    make_group,
    remove_groups,
)
from descendants import (  # type: ignore[import-not-found]
    list_descendants,
    send_signal,
    stop_descendants,
)

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


def kill_descendants(group: str | None) -> None:
    """Kill and reap descendants until none is left; before that none can fork any more."""
    if group is not None:
        close_group(group)
    stop_descendants(os.getpid())
    for _ in range(200):
        for pid in list_descendants(os.getpid()):
            send_signal(pid, signal.SIGKILL)
        while True:
            try:
                reaped, _status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if reaped == 0:
                break
        time.sleep(0.005)


def bind_tasks(limits: dict[str, Any], group: str | None, keeper: int) -> str | None:
    """In the child: bound the number of its tasks; returns the name of the bound."""
    tasks = limits["tasks"]
    if group is not None and enter_group(group):
        return "group"
    if "user" in limits["bounds"] and bind_user(tasks):
        return "user"
    # the program of the user has no name under another id, so only the program of others gets one
    if "uid" in limits["bounds"] and limits["must_bind"] and bind_uid(tasks, keeper):
        return "uid"
    return None


def exec_limited(
    arguments: list[str], limits: dict[str, Any], keeper: int, group: str | None, answer: int
) -> None:
    """In the child: apply the limits, write the name of the bound to ``answer``, and exec the program."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        is_root = os.getuid() == 0
        bound = bind_tasks(limits, group, keeper)
        # after a change of the user, which unties it
        tie_to_parent(keeper, signal.SIGKILL)
        is_changed = is_root and os.getuid() != 0  # to a user id under which it did not bind
        if bound is None and (is_changed or (is_root and limits["must_bind"] and limits["may_refuse"])):
            os.write(answer, b"refused")
            os._exit(127)
        os.write(answer, (bound or "").encode())
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


def start(arguments: list[str], limits: dict[str, Any], group: str | None) -> tuple[int, str]:
    """Start the program; returns its pid and the name of its bound, "" for none, "refused" without."""
    keeper = os.getpid()
    answer, child_end = os.pipe()  # closed by exec
    program = os.fork()
    if program == 0:
        exec_limited(arguments, limits, keeper, group, child_end)
    os.close(child_end)
    try:
        return program, os.read(answer, 64).decode()
    finally:
        os.close(answer)


def watch(program: int, limits: dict[str, Any]) -> tuple[int, str | None]:
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
    status, limit, bound = int(signal.SIGKILL), None, ""
    group = None
    try:
        if "group" in limits["bounds"]:
            group = make_group(os.getpid(), limits["tasks"])
        program, bound = start(sys.argv[3:], limits, group)
        status, limit = watch(program, limits)
    except Dismissed:
        limit = "dismissed"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    kill_descendants(group)
    remove_groups(os.getpid())
    os.write(report, json.dumps({"status": int(status), "limit": limit, "bound": bound}).encode())


if __name__ == "__main__":
    main()
