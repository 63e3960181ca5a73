"""Promised times are asserted as promised on a machine at rest, and loosely on a busy one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.time_bounds import Stopwatch

REST, BUSY, UNKNOWN = (5.0, 5.1), (5.0, 6.0), (None, None)
"""How long programs have waited for a processor, at the start and at the end of the three seconds."""


def measure(*waits: float | None) -> Stopwatch:
    """A stopwatch on which three seconds pass."""

    def each(*values: float | None) -> Callable[[], float | None]:
        left = iter(values)
        return lambda: next(left)

    return Stopwatch(clock=each(100.0, 103.0), waited=each(*waits))  # type: ignore[arg-type]


@pytest.mark.parametrize("waits", [REST, BUSY, UNKNOWN])
def test_what_ends_in_the_promised_time_passes(waits: tuple[float | None, ...]) -> None:
    measure(*waits).check(3.5)


def test_what_takes_longer_than_promised_fails_on_a_machine_at_rest() -> None:
    with pytest.raises(AssertionError, match=r"3\.00 s, at most 2\.0 s on a machine at rest"):
        measure(*REST).check(2.0)


@pytest.mark.parametrize("waits", [BUSY, UNKNOWN])
def test_a_busy_machine_may_take_ten_times_as_long_and_no_longer(waits: tuple[float | None, ...]) -> None:
    measure(*waits).check(2.0)
    with pytest.raises(AssertionError, match=r"at most 2\.5 s on a busy machine"):
        measure(*waits).check(0.25)
