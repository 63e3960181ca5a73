"""Bounds the number of tasks of a program, so that a fork bomb cannot fill the process table of the machine.

A task is a process or a thread. The kernel refuses further ones by the first of these that works:

=========  ===========================================================================================
``group``  a control group with ``pids.max``: of version 2 where its parent is delegated to this process,
           or of the controller ``pids`` of version 1
``user``   RLIMIT_NPROC, which counts all tasks of the user; the kernel does not apply it to root
``uid``    RLIMIT_NPROC under a user id of its own that keeps the rights of root over files
=========  ===========================================================================================

Whether RLIMIT_NPROC binds is tried with one fork, because it depends on user, capabilities and namespaces.
Standard library only: the keeper, which runs as a separate process, imports this file without the package.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource

BOUNDS = ("group", "user", "uid")
"""The names of the bounds, in the order in which they are tried."""

CGROUPS = "/sys/fs/cgroup"

_PREFIX = "retinue-"

_OTHER_TASKS = 256
"""Room for tasks that other programs of the same user start meanwhile."""

_LAST_UID = 524_287
"""The end of the user ids that systemd leaves unused."""

_PR_SET_KEEPCAPS = 8  # linux/prctl.h
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAPABILITIES_VERSION_3 = 0x20080522  # linux/capability.h
_DAC_OVERRIDE = 1
_FILE_CAPABILITIES = (0, _DAC_OVERRIDE, 2, 3, 4)
"""CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID."""


def make_group(keeper: int, tasks: int, *, root: str = CGROUPS, own: str | None = None) -> str | None:
    """Make a control group of at most ``tasks`` tasks; None where no group can be made.

    ``root`` is where the groups are mounted; ``own`` is the text of ``/proc/self/cgroup``.
    """
    for parent in list_parents(root, _read("/proc/self/cgroup") if own is None else own):
        _remove_left_over(parent)
        group = f"{parent}/{_name(keeper)}"
        try:
            os.mkdir(group)  # noqa: PTH102  (importing pathlib is slow for so short a process)
        except OSError:
            continue
        if _write(f"{group}/pids.max", str(tasks)):
            return group
        _remove(group)
    return None


def list_parents(root: str, own: str) -> list[str]:
    """The groups in which this process may make groups that limit tasks.

    A group of version 2 that has processes cannot have such groups unless it is the root, so the parent is
    taken if it was delegated. Any other parent would take the program out of the limits of its service.
    """
    parents = []
    for line in own.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and os.path.exists(f"{root}/cgroup.controllers"):  # noqa: PTH110
            group = f"{root}{path}".rstrip("/")
            if _limits_tasks(group):
                parents.append(group)
            elif path != "/" and _is_delegated(os.path.dirname(group)):  # noqa: PTH120
                parents.append(os.path.dirname(group))  # noqa: PTH120
        elif "pids" in controllers.split(","):
            parents.append(f"{root}/pids{path}".rstrip("/"))
    return parents


def _limits_tasks(group: str) -> bool:
    return "pids" in _read(f"{group}/cgroup.subtree_control").split()


def _is_delegated(group: str) -> bool:
    try:
        delegated = os.getxattr(group, "user.delegate") == b"1"  # set by systemd
    except OSError:
        return False
    return delegated and (_limits_tasks(group) or _write(f"{group}/cgroup.subtree_control", "+pids"))


def enter_group(group: str) -> bool:
    """Move this process into the group; False where that is refused."""
    return _write(f"{group}/cgroup.procs", "0")


def close_group(group: str) -> None:
    """Refuse any further task, so that no process outruns its end."""
    _write(f"{group}/pids.max", "0")


def close_groups(keeper: int) -> None:
    """As `close_group`, for the group of another process."""
    for parent in list_parents(CGROUPS, _read("/proc/self/cgroup")):
        close_group(f"{parent}/{_name(keeper)}")


def remove_groups(keeper: int) -> None:
    """Remove the group of a keeper whose processes have ended."""
    for parent in list_parents(CGROUPS, _read("/proc/self/cgroup")):
        _remove(f"{parent}/{_name(keeper)}")


def bind_user(tasks: int) -> bool:
    """Limit the tasks of this user to those that run now and ``tasks`` more; False where it does not bind."""
    running = count_tasks(os.getuid())
    return running is not None and _bind(running + tasks + _OTHER_TASKS)


def bind_uid(tasks: int, keeper: int) -> bool:
    """Take a user id of its own, with at most ``tasks`` tasks; False where that does not work or bind."""
    uid = choose_uid(_read("/proc/self/uid_map"), keeper)
    if os.geteuid() != 0 or uid is None:
        return False
    try:
        _change_user(uid)
    except OSError:
        return False
    others = max(0, (count_tasks(uid) or 0) - 1)  # of another keeper that came to the same id
    return _bind(others + tasks)


def choose_uid(uid_map: str, keeper: int) -> int | None:
    """A user id that is in use nowhere; None where ``uid_map`` (of /proc) has too few."""
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, uid_map.splitlines())]
    if not ranges:
        return None
    first, count = max(ranges, key=lambda span: span[1])
    # the last but one of 65,536 is nobody
    uid = min(first + count - 3, _LAST_UID) - keeper % 4096
    return uid if uid > first + 1000 else None


def count_tasks(uid: int) -> int | None:
    """The tasks of a user, from /proc; None where there is no /proc."""
    try:
        entries = [entry for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208
    except OSError:
        return None
    if not entries:
        return None
    tasks = 0
    for entry in entries:
        try:
            if os.stat(f"/proc/{entry}").st_uid == uid:  # noqa: PTH116
                with open(f"/proc/{entry}/stat", "rb") as stat:  # noqa: PTH123
                    tasks += int(stat.read().rpartition(b")")[2].split()[17])
        except (OSError, IndexError, ValueError):
            continue  # it has just ended
    return tasks


def _bind(tasks: int) -> bool:
    """Set RLIMIT_NPROC; False where the kernel does not apply it to this process."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (0, hard))
    try:
        child = os.fork()
    except BlockingIOError:
        limit = tasks if hard == resource.RLIM_INFINITY else min(tasks, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        return True
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
    return False


def _change_user(uid: int) -> None:
    """Become ``uid``, keep the rights over files through ``exec``, and gain no others. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), name)

    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
    # effective, permitted and inheritable capabilities, of which the first 32 come first
    sets = (ctypes.c_uint32 * 6)()
    call("capget", header, sets)
    kept = [number for number in _FILE_CAPABILITIES if sets[1] >> number & 1]
    if _DAC_OVERRIDE not in kept:
        raise PermissionError("the files of root could not be read")
    call("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresuid(uid, uid, uid)
    mask = sum(1 << number for number in kept)
    sets[:] = [mask, mask, mask, 0, 0, 0]
    call("capset", header, sets)
    for number in kept:
        call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0)
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _name(keeper: int) -> str:
    return f"{_PREFIX}{keeper}"


def _remove_left_over(parent: str) -> None:
    """Remove the groups of keepers that were killed; a group that has processes stays."""
    with contextlib.suppress(OSError):
        for name in os.listdir(parent):  # noqa: PTH208
            keeper = name.removeprefix(_PREFIX)
            if keeper != name and keeper.isdigit() and not os.path.exists(f"/proc/{keeper}"):  # noqa: PTH110
                _remove(f"{parent}/{name}")


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123
            return file.read()
    except (OSError, ValueError):
        return ""


def _write(path: str, text: str) -> bool:
    try:
        with open(path, "r+", encoding="ascii") as file:  # noqa: PTH123
            file.write(text)
    except OSError:
        return False
    return True


def _remove(group: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(group)  # noqa: PTH106
