"""The results of benchmarks, and functions for measuring."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_CLOCK_BITS, _CPU_CLOCK = 3, 2
"""How Linux numbers the clocks of processes; 2 counts what its scheduler gave them."""


@dataclass(frozen=True)
class Figure:
    """One measured figure; ``target`` is its bound, None where there is none."""

    name: str
    value: float
    unit: str
    target: float | None = None
    against: str = ""

    @property
    def is_met(self) -> bool:
        return self.target is None or self.value <= self.target


def cpu_s_of(pid: int) -> float:
    """Processor seconds that a process has used, its own and the kernel's for it, to the nanosecond.

    The kernel has a clock for each process (`clock_getcpuclockid`), which Python gives no name.
    """
    return time.clock_gettime(~pid << _CLOCK_BITS | _CPU_CLOCK)


def median_s(work: Callable[[], object], runs: int) -> float:
    """The median wall time of some runs, after one that is not counted."""
    work()
    spent = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent)


def rss_bytes_of(pid: int) -> int:
    """The memory that a process holds now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
