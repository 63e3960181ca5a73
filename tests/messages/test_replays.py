"""Signed messages are taken once, while their timestamp is near."""

from __future__ import annotations

from datetime import UTC, datetime

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
