"""What a benchmark gives back, and the few ways to measure."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figure:
    """One measured figure; ``target`` is the bound of DESIGN 6, None where there is none."""

    name: str
    value: float
    unit: str
    target: float | None = None
    against: str = ""

    @property
    def is_met(self) -> bool:
        return self.target is None or self.value <= self.target


def cpu_s_of(pid: int) -> float:
    """Processor seconds that a process has used, its own and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


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
