"""A signed message counts once, and only near the time at which it was sent."""

from __future__ import annotations

import pytest

from retinue.web.mesh_tokens import ReplayWindow
from tests.mesh.scripted import FakeClock
from tests.requirements import requirement


@pytest.fixture
def clock() -> FakeClock:
    clock = FakeClock()
    clock.pass_time(10_000)
    return clock


def now_ms(clock: FakeClock) -> int:
    return int(clock() * 1000)


@requirement("S-17")
def test_a_message_counts_the_first_time_only(clock: FakeClock) -> None:
    window = ReplayWindow(clock=clock, monotonic=clock)
    assert window.verify("a", now_ms(clock)) is None
    assert window.verify("b", now_ms(clock)) is None
    assert window.verify("a", now_ms(clock)) == "it was sent before"


@pytest.mark.parametrize(
    ("age_s", "flaw"), [(59, None), (61, "too old"), (-59, None), (-61, "in the future")]
)
def test_a_message_counts_only_within_a_minute_of_its_time(
    clock: FakeClock, age_s: int, flaw: str | None
) -> None:
    found = ReplayWindow(clock=clock, monotonic=clock).verify("a", now_ms(clock) - age_s * 1000)
    assert found is None if flaw is None else flaw in str(found)


def test_a_message_from_the_future_cannot_be_repeated_when_its_time_has_come(clock: FakeClock) -> None:
    window = ReplayWindow(clock=clock, monotonic=clock)
    sent_at_ms = now_ms(clock) + 50_000
    assert window.verify("a", sent_at_ms) is None
    clock.pass_time(100)
    assert window.verify("a", sent_at_ms) == "it was sent before"
    clock.pass_time(20)
    assert window.verify("a", sent_at_ms) == "it is too old"


def test_memory_is_bounded_and_yet_nothing_passes_twice(clock: FakeClock) -> None:
    window = ReplayWindow(clock=clock, monotonic=clock, keep=100)
    sent = []
    for number in range(1_000):
        sent.append((f"m{number}", now_ms(clock)))
        assert window.verify(*sent[-1]) is None
        clock.pass_time(0.01)
        assert window.remembered_signatures <= 100
    assert all(window.verify(*message) is not None for message in sent)
    clock.pass_time(61)
    assert window.verify("new", now_ms(clock)) is None


@pytest.mark.parametrize("step_s", [-3600, -120, -40, 3600])
def test_when_the_clock_was_set_new_messages_count_at_once(clock: FakeClock, step_s: float) -> None:
    """Also where signatures were forgotten, which raises the limit on a message's age."""
    set_by = 0.0
    window = ReplayWindow(clock=lambda: clock() + set_by, monotonic=clock, keep=100)
    for number in range(101):
        assert window.verify(f"m{number}", now_ms(clock)) is None
        clock.pass_time(0.01)
    set_by = step_s
    sent_at_ms = now_ms(clock) + int(step_s * 1000)
    assert window.verify("new", sent_at_ms) is None
    assert window.verify("new", sent_at_ms) == "it was sent before"


def test_signatures_are_forgotten_when_they_are_too_old_to_count(clock: FakeClock) -> None:
    """At 100 messages a second for ten minutes: as many are remembered as come in two windows, at most."""
    window = ReplayWindow(clock=clock, monotonic=clock)
    most = 0
    for number in range(60_000):
        assert window.verify(f"m{number}", now_ms(clock)) is None
        clock.pass_time(0.01)
        most = max(most, window.remembered_signatures)
    assert most <= 2 * 60 * 100 + 1
    clock.pass_time(61)
    assert window.verify("m59999", now_ms(clock) - 61_000) == "it is too old"
