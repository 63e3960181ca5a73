"""What is measured of an agent, what fades, and the health that follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from retinue.core.record import Stats
from retinue.mesh.pulse import FADE_S, SLOW_MIN_CALLS, Pulse, Pulses, note_health
from tests.mesh.scripted import FakeClock, ScriptedLookup, make_listing, unreachable
from tests.requirements import requirement

SKILL = "create_plan"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pulse(clock: FakeClock) -> Pulse:
    return Pulse(clock)


def answer(pulse: Pulse, latency_s: float = 0.1, *, times: int = 1) -> None:
    for _ in range(times):
        pulse.begun()
        pulse.answered(SKILL, latency_s)


def fail(pulse: Pulse, *, times: int = 1) -> None:
    for _ in range(times):
        pulse.begun()
        pulse.failed(SKILL, 0.1)


def health(pulse: Pulse) -> str:
    return pulse.health


def lose(pulse: Pulse, *, certain: bool = False) -> None:
    pulse.begun()
    pulse.lost(unreachable("a", sent=not certain), certain=certain)


@pytest.mark.parametrize(
    "end",
    [
        lambda pulse: pulse.answered(SKILL, 0.1),
        lambda pulse: pulse.failed(SKILL, 0.1),
        lambda pulse: pulse.refused(),
        lambda pulse: pulse.timed_out(SKILL, 9.0),
        lambda pulse: pulse.lost(unreachable("a"), certain=True),
        lambda pulse: pulse.abandoned(),
    ],
)
def test_however_a_call_ends_it_is_in_flight_no_more(pulse: Pulse, end: Callable[[Pulse], None]) -> None:
    pulse.begun()
    pulse.begun()
    end(pulse)
    assert pulse.in_flight == 1


def test_an_agent_that_was_never_asked_is_unknown_and_costs_nothing(pulse: Pulse) -> None:
    assert health(pulse) == "unknown"
    assert pulse.cost(SKILL) == 0
    assert pulse.stats() == Stats()


def test_calls_failures_and_the_mean_latency_are_counted(pulse: Pulse) -> None:
    answer(pulse, 0.1)
    answer(pulse, 0.3)
    fail(pulse)
    lose(pulse)
    stats = pulse.stats()
    assert (stats.calls, stats.failures) == (4, 2)
    assert stats.mean_latency_s == pytest.approx(0.5 / 3)


def test_a_refused_call_and_one_that_its_caller_gave_up_count_neither_way(pulse: Pulse) -> None:
    pulse.begun()
    pulse.refused()
    pulse.begun()
    pulse.abandoned()
    assert pulse.stats() == Stats()
    assert health(pulse) == "healthy"


# what a further call would cost


def test_cost_grows_with_latency_and_with_calls_in_flight(clock: FakeClock) -> None:
    fast, slow = Pulse(clock), Pulse(clock)
    answer(fast, 0.1)
    answer(slow, 0.3)
    assert fast.cost(SKILL) < slow.cost(SKILL)
    for _ in range(4):
        fast.begun()
    assert fast.cost(SKILL) > slow.cost(SKILL)


def test_each_skill_has_a_latency_of_its_own(pulse: Pulse) -> None:
    answer(pulse, 10.0)
    assert pulse.cost("other") == 0


def test_a_new_agent_is_tried_with_one_call_at_first(clock: FakeClock) -> None:
    new, known = Pulse(clock), Pulse(clock)
    answer(known, 2.0)
    assert new.cost(SKILL) < known.cost(SKILL)
    new.begun()
    assert new.cost(SKILL) > known.cost(SKILL)


def test_fast_failures_do_not_draw_calls(clock: FakeClock) -> None:
    failing, working = Pulse(clock), Pulse(clock)
    for _ in range(3):
        failing.begun()
        failing.failed(SKILL, 0.01)
    answer(working, 0.04)
    assert failing.cost(SKILL) > working.cost(SKILL)


def test_an_agent_that_was_slow_once_is_tried_again_in_time(clock: FakeClock) -> None:
    slow, fast = Pulse(clock), Pulse(clock)
    answer(slow, 1.0)
    for _ in range(10):
        clock.pass_time(FADE_S / 2)
        answer(fast, 0.01)
        if slow.cost(SKILL) < fast.cost(SKILL):
            return
    pytest.fail("never tried again")


def test_an_agent_that_nobody_reached_is_no_new_agent_until_that_has_faded(
    clock: FakeClock, pulse: Pulse
) -> None:
    for _ in range(3):
        lose(pulse)
    assert pulse.cost(SKILL) > 0
    clock.pass_time(FADE_S * 2)
    assert pulse.cost(SKILL) == 0


# the health that follows


@requirement("P-30")
def test_answers_with_errors_degrade_an_agent_and_fade(clock: FakeClock, pulse: Pulse) -> None:
    fail(pulse, times=3)
    assert health(pulse) == "healthy"
    fail(pulse)
    assert health(pulse) == "degraded"
    assert pulse.condition.reason == "most of its last calls failed"
    clock.pass_time(FADE_S * 2)
    assert health(pulse) == "healthy"
    assert pulse.condition.reason is None


def test_calls_that_succeed_make_a_failing_agent_healthy(pulse: Pulse) -> None:
    fail(pulse, times=10)
    answer(pulse, times=2)
    assert health(pulse) == "degraded"
    answer(pulse, times=10)
    assert health(pulse) == "healthy"


def test_failing_calls_never_make_an_agent_unreachable(pulse: Pulse) -> None:
    fail(pulse, times=100)
    assert health(pulse) == "degraded"


def test_time_outs_count_where_the_agent_had_enough_time(pulse: Pulse) -> None:
    answer(pulse, 0.5)
    for _ in range(10):
        pulse.begun()
        pulse.timed_out(SKILL, 0.01)
    assert health(pulse) == "healthy"
    for _ in range(4):
        pulse.begun()
        pulse.timed_out(SKILL, 5.0)
    assert health(pulse) == "degraded"


def test_an_agent_that_has_never_answered_in_time_is_degraded_too(pulse: Pulse) -> None:
    for _ in range(4):
        pulse.begun()
        pulse.timed_out(SKILL, 5.0)
    assert health(pulse) == "degraded"


def test_an_agent_that_became_much_slower_is_degraded_until_it_is_not(pulse: Pulse) -> None:
    answer(pulse, 0.2, times=SLOW_MIN_CALLS * 5)
    answer(pulse, 10.0)
    answer(pulse, 10.0)
    assert health(pulse) == "degraded"
    assert "usually 0." in str(pulse.condition.reason)
    answer(pulse, 0.2, times=10)
    assert health(pulse) == "healthy"


def test_the_reason_does_not_change_with_every_call(pulse: Pulse) -> None:
    reasons = set()
    for _ in range(20):
        fail(pulse)
        if pulse.health == "degraded":
            reasons.add(pulse.condition.reason)
    assert len(reasons) == 1


def test_a_probe_that_is_answered_lets_calls_pass_at_once(pulse: Pulse) -> None:
    for _ in range(3):
        lose(pulse, certain=True)
    assert health(pulse) == "unreachable"
    assert pulse.breaker.is_open
    pulse.probe_answered()
    assert not pulse.breaker.is_open
    assert health(pulse) == "healthy"


def test_a_probe_that_is_not_answered_keeps_no_call_away(pulse: Pulse) -> None:
    for _ in range(5):
        pulse.probe_failed("no answer within 2 s", certain=False)
    assert health(pulse) == "unreachable"
    assert not pulse.breaker.is_open
    answer(pulse)
    assert health(pulse) == "healthy"


# where it is noted


def test_health_is_noted_when_it_changes_and_not_with_every_call(pulse: Pulse) -> None:
    board = ScriptedLookup([])
    unasked, seen = make_listing("a"), make_listing("a", reachable=True)
    note_health(pulse, unasked, board)
    answer(pulse)
    note_health(pulse, unasked, board)
    for _ in range(3):
        answer(pulse)
        note_health(pulse, seen, board)
    lose(pulse)
    note_health(pulse, seen, board)
    lose(pulse, certain=True)
    note_health(pulse, seen, board)
    answer(pulse)
    note_health(pulse, seen, board)
    assert board.told == ["reachable a", "degraded a", "unreachable a", "reachable a"]


def test_each_agent_has_its_own_pulse_a_moved_one_a_new_one_and_the_idlest_is_forgotten() -> None:
    pulses = Pulses(keep=2)
    one, two = make_listing("a"), make_listing("b")
    first, second = pulses.of(one), pulses.of(two)
    assert pulses.of(one) is first
    assert pulses.of(make_listing("a", version="9", digest="new")) is first
    pulses.of(make_listing("a", url="http://elsewhere:1"))
    assert pulses.of(one) is first
    assert pulses.of(two) is not second


def test_figures_of_an_agent_are_its_listings_where_nothing_was_seen() -> None:
    pulses = Pulses()
    assert pulses.stats_of(make_listing("a")) == Stats()
    answer(pulses.of(make_listing("a")))
    assert pulses.stats_of(make_listing("a")).calls == 1
