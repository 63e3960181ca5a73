"""How much is let in, and what a caller is told who has to wait."""

from __future__ import annotations

import pytest

from retinue.core.errors import BusyError
from retinue.mesh.admission import LimitSettings, ProcessLimits, TokenBucket
from tests.mesh.scripted import FakeClock


def test_a_bucket_lets_a_burst_pass_and_then_its_rate() -> None:
    clock = FakeClock()
    bucket = TokenBucket(rate_per_s=2, burst=3, clock=clock)
    assert [bucket.take() for _ in range(4)] == [0, 0, 0, 0.5]
    clock.pass_time(0.5)
    assert bucket.take() == 0
    assert bucket.take() == pytest.approx(0.5)


def test_a_bucket_never_holds_more_than_a_burst() -> None:
    clock = FakeClock()
    bucket = TokenBucket(rate_per_s=10, burst=2, clock=clock)
    clock.pass_time(3600)
    assert [bucket.take() for _ in range(3)] == [0, 0, 0.1]


def test_a_bucket_survives_a_clock_that_stands_still() -> None:
    bucket = TokenBucket(rate_per_s=1, burst=1, clock=FakeClock())
    assert [bucket.take() for _ in range(3)] == [0, 1, 1]


def test_only_so_many_calls_are_in_flight_and_a_released_place_is_free() -> None:
    limits = ProcessLimits(LimitSettings(max_in_flight=2))
    limits.admit("a")
    limits.admit("b")
    with pytest.raises(BusyError) as caught:
        limits.admit("c")
    assert caught.value.kind.retryable
    assert caught.value.data == {"retry_after_s": 1.0}
    assert limits.in_flight == 2
    limits.release()
    limits.admit("c")
    assert limits.in_flight == 2


def test_each_caller_has_a_rate_of_its_own_and_is_told_when_to_come_back() -> None:
    limits = ProcessLimits(LimitSettings(rate_per_s=4, burst=1), FakeClock())
    limits.admit("greedy")
    with pytest.raises(BusyError) as caught:
        limits.admit("greedy")
    assert caught.value.retry_after_s == 0.25
    limits.admit("modest")
    assert limits.in_flight == 2


def test_without_a_rate_nobody_is_counted() -> None:
    limits = ProcessLimits()
    for _ in range(500):
        limits.admit("a")
        limits.release()
    assert limits.in_flight == 0


def test_the_callers_remembered_are_bounded_and_the_idlest_is_forgotten() -> None:
    limits = ProcessLimits(LimitSettings(rate_per_s=1, burst=1, max_callers=2), FakeClock())
    limits.admit("a")
    limits.admit("b")
    with pytest.raises(BusyError):
        limits.admit("a")
    limits.admit("c")
    limits.admit("b")
    with pytest.raises(BusyError):
        limits.admit("c")
