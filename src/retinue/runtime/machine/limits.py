"""Fits a server to what its process may take of the machine: open files, memory and processors."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from retinue.web.connection_gate import HttpLimits

_MAX_OPEN_FILES = 65536
"""Enough for every connection; tables of this size cost the kernel nothing to speak of."""

_SHARE_OF_MEMORY = 4
"""A body is held in pieces, whole and parsed at the same time, and the calls need memory as well."""

_CGROUPS = Path("/sys/fs/cgroup")


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one, at most 65,536; returns the limit in force.

    The usual soft limit is 1,024, on macOS 256. With no descriptor left, the kernel closes new connections
    without a word.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS may refuse what it reports as the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return _MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def fit_to_open_files(limits: HttpLimits, free: int) -> HttpLimits:
    """At most half of the free descriptors are for clients, others for files, children and own calls."""
    return replace(limits, connections=min(limits.connections, max(1, free // 2)))


def count_open_files() -> int:
    """How many descriptors this process has open; 0 where the system does not tell."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return sum(1 for _ in os.scandir(folder))
    return 0


def fit_to_memory(limits: HttpLimits, free_bytes: int | None, processes: int = 1) -> HttpLimits:
    """At most a quarter of the free memory holds bodies; None = memory is not limited.

    ``processes`` is the number of those that share it.
    """
    if free_bytes is None:
        return limits
    held_bytes = max(0, free_bytes // (_SHARE_OF_MEMORY * processes))
    return replace(limits, held_bytes=min(limits.held_bytes, held_bytes))


def count_processors(cgroups: Path = _CGROUPS, own: str | None = None) -> int:
    """How many processors this process may use, without a part of one; at least 1.

    The quota of a container counts, as a container has one more often than processors of its own. The
    arguments are those of `count_free_memory`; groups of version 1 are looked at as well.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([usable, *map(int, _list_quotas(cgroups, _own_groups(own)))]))


def count_free_memory(cgroups: Path = _CGROUPS, own: str | None = None) -> int | None:
    """The bytes that this process may still take before a limit of its address space or of its groups.

    None where there is neither. ``cgroups`` is where the control groups (version 2) are mounted; ``own`` is
    the text of ``/proc/self/cgroup``.
    """
    limits = list(_list_group_limits(cgroups, _own_groups(own)))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        pages = _read(Path("/proc/self/statm")).split()
        limits.append(soft - (int(pages[0]) * resource.getpagesize() if pages else 0))
    return min(limits, default=None)


def _list_group_limits(cgroups: Path, own: str) -> Iterator[int]:
    """The memory that is left to each group that this process is in."""
    for group in _list_groups(cgroups, own, ""):
        maximum, current = (_read(group / name).strip() for name in ("memory.max", "memory.current"))
        if maximum.isdigit():
            yield int(maximum) - (int(current) if current.isdigit() else 0)


def _list_quotas(cgroups: Path, own: str) -> Iterator[float]:
    """The processors that each group may use that this process is in."""
    for group in _list_groups(cgroups, own, ""):
        yield from _divide(*_read(group / "cpu.max").split()[:2])
    for group in _list_groups(cgroups, own, "cpu"):
        yield from _divide(_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us"))


def _divide(*times: str) -> Iterator[float]:
    """The processors of a quota and its period; none without a quota."""
    numbers = [int(text) for text in times if text.strip().isdigit()]
    if len(numbers) == 2 and numbers[1]:
        yield numbers[0] / numbers[1]


def _list_groups(cgroups: Path, own: str, controller: str) -> Iterator[Path]:
    """The folder of each group that this process is in; of version 2 with "", else of a controller.

    A group that is not visible in a container is left out: the folder above it is the container's own.
    """
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)  # "4:cpu,cpuacct:/path", and "0::/path" of version 2
        if controller in controllers.split(","):
            root = cgroups / controllers
            group = root / path.strip("/")
            while group.is_relative_to(root):
                yield group
                group = group.parent


def _own_groups(own: str | None) -> str:
    return _read(Path("/proc/self/cgroup")) if own is None else own


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
