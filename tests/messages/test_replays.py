"""Signed messages are taken once, while their timestamp is near."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from retinue.messages.replays import SignedOnce

START = 1_700_000_000.0


class Clock:
    now = START

    def __call__(self) -> float:
        return self.now


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def test_a_message_is_taken_once() -> None:
    once = SignedOnce(60.0, clock=Clock())
    assert once.find_flaw(stamp(START), b"a") is None
    assert "received before" in str(once.find_flaw(stamp(START), b"a"))
    assert once.find_flaw(stamp(START), b"b") is None


def test_a_message_that_is_too_old_or_from_the_future_or_without_a_time_is_refused() -> None:
    once = SignedOnce(60.0, clock=Clock())
    assert "61 s old" in str(once.find_flaw(stamp(START - 61), b"a"))
    assert "61 s in the future" in str(once.find_flaw(stamp(START + 61), b"b"))
    for wrong in (None, 7, "soon", ""):
        assert "needs its timestamp" in str(once.find_flaw(wrong, b"c"))


def test_a_message_of_the_time_before_the_process_is_refused() -> None:
    once = SignedOnce(60.0, since=START - 10, clock=Clock())
    assert "before this process" in str(once.find_flaw(stamp(START - 11), b"a"))
    assert once.find_flaw(stamp(START - 9), b"b") is None


def test_what_was_forgotten_is_not_taken_again() -> None:
    clock = Clock()
    once = SignedOnce(60.0, keep=2, clock=clock)
    for number, digest in enumerate((b"a", b"b", b"c")):
        assert once.find_flaw(stamp(START + number), digest) is None
    assert once.find_flaw(stamp(START), b"a") is not None
    clock.now += 90.0
    assert once.find_flaw(stamp(clock.now), b"d") is None
    assert once.find_flaw(stamp(START + 2), b"c") is not None


@pytest.mark.parametrize("step_s", [-3600, -120, 3600])
def test_when_the_clock_was_set_new_messages_are_taken_at_once(step_s: float) -> None:
    """Also where signatures were forgotten, which raises the oldest time that is taken."""
    clock, ticks = Clock(), Clock()
    once = SignedOnce(60.0, since=START, keep=100, clock=clock, monotonic=ticks)
    for number in range(101):
        clock.now = ticks.now = START + number / 100
        assert once.find_flaw(stamp(clock.now), b"%d" % number) is None
    clock.now += step_s
    for late_s in (0.0, 1.5):
        clock.now += late_s
        ticks.now += late_s
        assert once.find_flaw(stamp(clock.now), b"new %d" % late_s) is None
        assert once.find_flaw(stamp(clock.now), b"new %d" % late_s) is not None


def test_a_message_is_not_taken_again_when_the_clock_was_set_forward_and_back() -> None:
    clock, ticks = Clock(), Clock()
    once = SignedOnce(60.0, since=START - 10, clock=clock, monotonic=ticks)
    assert once.find_flaw(stamp(START), b"a") is None
    clock.now += 3600
    assert once.find_flaw(stamp(clock.now), b"b") is None
    clock.now -= 3600
    assert "received before" in str(once.find_flaw(stamp(START), b"a"))
    assert once.find_flaw(stamp(clock.now), b"c") is None


def test_memory_is_freed_some_time_after_the_clock_was_set_forward() -> None:
    clock, ticks = Clock(), Clock()
    once = SignedOnce(60.0, clock=clock, monotonic=ticks)
    assert once.find_flaw(stamp(START), b"a") is None
    clock.now += 3600
    assert once.find_flaw(stamp(clock.now), b"b") is None
    assert once.count == 2
    clock.now += 130
    ticks.now += 130
    assert once.find_flaw(stamp(clock.now), b"c") is None
    assert once.count == 1
