"""The circuit breaker of one agent, and its condition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.core.errors import CircuitOpenError
from retinue.mesh.health.breaker import FAILURES_TO_UNREACHABLE, CircuitBreaker, Condition, health_tier
from tests.mesh.scripted import FakeClock, make_listing, unreachable
from tests.requirements import requirement


def opened(clock: FakeClock) -> CircuitBreaker:
    breaker = CircuitBreaker(threshold=3, open_s=5, clock=clock)
    for _ in range(3):
        breaker.enter("a")
        breaker.failed(unreachable("a"))
    return breaker


def test_it_opens_after_three_failures_in_a_row() -> None:
    breaker = CircuitBreaker(threshold=3, clock=FakeClock())
    for _ in range(2):
        breaker.failed(unreachable("a"))
    breaker.succeeded()
    for _ in range(2):
        breaker.failed(unreachable("a"))
    breaker.enter("a")
    assert not breaker.is_open
    breaker.failed(unreachable("a"))
    assert breaker.is_open


def test_an_open_circuit_says_for_how_long_and_why() -> None:
    clock = FakeClock()
    breaker = opened(clock)
    clock.pass_time(2)
    with pytest.raises(CircuitOpenError) as caught:
        breaker.enter("plan-agent")
    assert caught.value.retry_after_s == 3
    assert "plan-agent" in caught.value.message
    assert "connection refused" in caught.value.message


def test_after_its_time_one_call_tries_and_the_others_wait_for_its_verdict() -> None:
    clock = FakeClock()
    breaker = opened(clock)
    clock.pass_time(5)
    assert not breaker.is_open
    breaker.enter("a")
    assert breaker.is_open
    with pytest.raises(CircuitOpenError):
        breaker.enter("a")
    breaker.succeeded()
    breaker.enter("a")
    breaker.enter("a")


def test_a_failed_try_keeps_the_circuit_open_for_as_long_again() -> None:
    clock = FakeClock()
    breaker = opened(clock)
    clock.pass_time(5)
    breaker.enter("a")
    breaker.failed(unreachable("a"))
    clock.pass_time(4.9)
    with pytest.raises(CircuitOpenError):
        breaker.enter("a")
    clock.pass_time(0.1)
    breaker.enter("a")


def test_a_try_that_was_given_up_leaves_the_next_caller_the_try() -> None:
    clock = FakeClock()
    breaker = opened(clock)
    clock.pass_time(5)
    breaker.enter("a")
    breaker.abandoned()
    breaker.enter("a")
    with pytest.raises(CircuitOpenError):
        breaker.enter("a")


# the condition of an agent


def told(condition: Condition) -> tuple[str, str | None]:
    return condition.state, condition.reason


def test_nobody_asked_means_nobody_knows() -> None:
    condition = Condition()
    assert told(condition) == ("unknown", None)


@requirement("P-30")
@requirement("S-17")
def test_it_goes_from_healthy_over_degraded_to_unreachable_and_back() -> None:
    condition = Condition()
    condition.answered()
    states = [told(condition)[0]]
    for _ in range(FAILURES_TO_UNREACHABLE):
        condition.failed("no answer within 2 s", certain=False)
        states.append(told(condition)[0])
    assert states == ["healthy", "degraded", "degraded", "unreachable"]
    assert condition.reason == "no answer within 2 s"
    condition.answered()
    assert told(condition) == ("healthy", None)


def test_an_answer_between_two_failures_begins_the_count_anew() -> None:
    condition = Condition()
    for _ in range(5):
        condition.failed("status 502", certain=False)
        condition.failed("status 502", certain=False)
        assert told(condition)[0] == "degraded"
        condition.answered()


def test_where_nobody_is_there_it_is_unreachable_at_once() -> None:
    condition = Condition()
    condition.failed("connection refused", certain=True)
    assert told(condition)[0] == "unreachable"
    condition.failed("no answer within 2 s", certain=False)
    assert told(condition)[0] == "degraded"


def test_a_complaint_degrades_one_that_answers_and_hides_no_worse_state() -> None:
    condition = Condition()
    condition.set_complaint("most of its last calls failed")
    condition.answered()
    assert told(condition) == ("degraded", "most of its last calls failed")
    condition.failed("connection refused", certain=True)
    assert told(condition) == ("unreachable", "connection refused")
    condition.answered()
    condition.set_complaint(None)
    assert told(condition)[0] == "healthy"


def test_the_degraded_come_after_the_healthy_and_before_the_unreachable() -> None:
    unreachable = make_listing("a", reachable=False)
    degraded = replace(make_listing("b", reachable=True), last_error="slow")
    assert [health_tier(one) for one in (make_listing("c"), make_listing("d", reachable=True))] == [0, 0]
    assert [health_tier(degraded), health_tier(unreachable)] == [1, 2]
