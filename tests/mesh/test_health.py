"""The circuit breaker of one agent, and its condition."""

from __future__ import annotations

import pytest

from retinue.core.errors import CircuitOpenError
from retinue.mesh.health import CircuitBreaker
from tests.mesh.scripted import FakeClock, unreachable


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
