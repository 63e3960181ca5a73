"""Promised times, asserted so that a test holds on a busy machine, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

BUSY_FACTOR = 10
"""How many times as long as promised something may take while programs wait for a processor."""

WAITING_SHARE = 0.1
"""The share of the time in which some program waits for a processor on a busy machine."""

_PRESSURE = Path("/proc/pressure/cpu")


def read_waited_s() -> float | None:
    """How long some program has waited for a processor; None where the kernel does not count it."""
    try:
        first_line = _PRESSURE.read_text().splitlines()[0]
    except OSError:
        return None
    return int(first_line.rpartition("total=")[2]) / 1e6


class Stopwatch:
    """Measures the time from its creation."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[], float | None] = read_waited_s,
    ) -> None:
        self._clock = clock
        self._waited = waited
        self._waited_s = waited()
        self._began = clock()

    def check(self, promise_s: float) -> None:
        """Fail if more time has passed than promised, or ten times that where programs waited to run."""
        took_s = self._clock() - self._began
        is_busy = self._is_busy(took_s)
        bound_s = promise_s * BUSY_FACTOR if is_busy else promise_s
        machine = "a busy machine" if is_busy else "a machine at rest"
        assert took_s < bound_s, f"{took_s:.2f} s, at most {bound_s} s on {machine}"

    def _is_busy(self, took_s: float) -> bool:
        waited_s = self._waited()
        if self._waited_s is None or waited_s is None:
            return True
        return waited_s - self._waited_s > WAITING_SHARE * took_s
