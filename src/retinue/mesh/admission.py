"""Admission of calls and other messages: rate limits, a cap on calls in flight, the trace guard.

The rate-limit libraries we evaluated block instead of rejecting; an endpoint must reject with a retry-after.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cachetools import LRUCache

from retinue.core.call import Call, Outcome
from retinue.core.errors import BusyError, CallCancelledError, RetinueError, StoppingError
from retinue.mesh.guard.trace_guard import AdmittedCall, TraceGuard
from retinue.mesh.health.failure_policy import status_of
from retinue.mesh.observing.events import CallEndedEvent, EventBus, now

Clock = Callable[[], float]

TakeRate = Callable[[str, float, int], float]
"""Takes one call of a caller at a rate per second and a burst; returns 0, or the seconds to wait."""

NoteInFlight = Callable[[int], int]
"""Notes how many calls are in flight here; returns those in flight in the other processes of a hub."""


class TokenBucket:
    """Allows ``rate_per_s`` calls on average and bursts of ``burst``."""

    __slots__ = ("_burst", "_clock", "_rate_per_s", "_seen_at", "_tokens")

    def __init__(self, rate_per_s: float, burst: int, clock: Clock = time.monotonic) -> None:
        self._rate_per_s = rate_per_s
        self._burst = float(burst)
        self._clock = clock
        self._tokens = float(burst)
        self._seen_at = clock()

    def take(self) -> float:
        """Take one token; returns 0, or the seconds until one is available."""
        at = self._clock()
        self._tokens = min(self._burst, self._tokens + (at - self._seen_at) * self._rate_per_s)
        self._seen_at = at
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate_per_s


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits of one process. ``rate_per_s`` is per caller; None = no rate limit (the default on loopback)."""

    max_in_flight: int = 1000
    rate_per_s: float | None = None
    burst: int = 100
    max_callers: int = 10_000


class ProcessLimits:
    """The limits of one process; each `admit` that succeeds is followed by one `release`.

    ``take_rate`` counts the rate of callers where several processes have it in common, and
    ``note_in_flight`` the calls in flight.
    """

    def __init__(
        self,
        settings: LimitSettings | None = None,
        clock: Clock = time.monotonic,
        take_rate: TakeRate | None = None,
        note_in_flight: NoteInFlight | None = None,
    ) -> None:
        self._note_in_flight = note_in_flight
        self._take_rate = take_rate or self._take_own
        self._settings = settings or LimitSettings()
        self.is_rated = self._settings.rate_per_s is not None
        """Whether `take` limits the rate of callers."""
        self._clock = clock
        self._in_flight = 0
        self.steps_in_flight = 0
        """How many of the calls in flight are steps of runs, which another process can continue."""
        self.is_stopping = False
        """Whether only calls of chains that are in flight here are still admitted."""
        self._buckets: LRUCache[str, TokenBucket] = LRUCache(self._settings.max_callers)

    def configure(self, settings: LimitSettings) -> None:
        """Apply other limits to the next calls; the count of each caller's rate restarts."""
        if settings != self._settings:
            self._settings = settings
            self.is_rated = settings.rate_per_s is not None
            self._buckets = LRUCache(settings.max_callers)

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def admit(self, caller: str) -> None:
        """Admit one call; raises BusyError with the time to retry."""
        settings = self._settings
        note = self._note_in_flight
        in_flight = self._in_flight if note is None else self._in_flight + note(self._in_flight)
        if in_flight >= settings.max_in_flight:
            raise BusyError(f"{settings.max_in_flight} calls in flight", 1.0)
        if self.is_rated:
            self.take(caller)
        self._in_flight += 1
        if note is not None:
            note(self._in_flight)

    def take(self, caller: str) -> None:
        """Count one call or read of a caller; raises BusyError with the time to retry."""
        rate_per_s = self._settings.rate_per_s
        if rate_per_s is None:
            return
        wait_s = self._take_rate(caller, rate_per_s, self._settings.burst)
        if wait_s:
            raise BusyError(f"{caller} passed {rate_per_s:g} calls per second", wait_s)

    def release(self) -> None:
        """End an admitted call."""
        self._in_flight -= 1
        if self._note_in_flight is not None:
            self._note_in_flight(self._in_flight)

    def _take_own(self, caller: str, rate_per_s: float, burst: int) -> float:
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = TokenBucket(rate_per_s, burst, self._clock)
        return bucket.take()


@dataclass(frozen=True, slots=True)
class Admission:
    """The first station of every call and message of a process: its limits, then its trace guard. Messages
    that run no skill are reads (`mesh.reading`), and MCP lists, subscriptions and notifications that a hub
    forwards. ``events`` receives the outcome of each.
    """

    guard: TraceGuard = field(default_factory=TraceGuard)
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    events: EventBus = field(default_factory=EventBus)

    def enter(self, call: Call, agent: str) -> AdmittedCall:
        """Admit one call to ``agent``; end it with `leave`.

        Raises BusyError, StoppingError and the errors of `TraceGuard.enter`.
        """
        limits = self.limits
        if limits.is_stopping and not self._continues(call):
            raise StoppingError
        limits.admit(call.principal.id)
        try:
            return self.guard.enter(call, agent)
        except BaseException:
            self.limits.release()
            raise

    def _continues(self, call: Call) -> bool:
        """Whether the call belongs to a chain in flight, or tells of one (cancelled, progress)."""
        is_news = call.skill.startswith("notifications/")
        return call.run_step is not None or is_news or self.guard.is_in_flight(call.trace.id)

    def leave(self, admitted: AdmittedCall) -> None:
        """End an admitted call."""
        self.limits.release()
        self.guard.leave(admitted)

    @contextmanager
    def message(self, call: Call, agent: str) -> Iterator[AdmittedCall]:
        """Admit a message that runs no skill, and record it when the block ends.

        ``call.skill`` is its method. Raises what `enter` raises. An error that the block raises is recorded
        as the message's.
        """
        started = time.perf_counter()
        error: RetinueError | None = None
        admitted: AdmittedCall | None = None
        try:
            admitted = self.enter(call, agent)
            call = replace(call, trace=admitted.trace)
            try:
                yield admitted
            finally:
                self.leave(admitted)
        except RetinueError as caught:
            error = caught
            raise
        except asyncio.CancelledError:
            error = CallCancelledError(call.skill)
            raise
        finally:
            if self.events.observed:
                policy = None if admitted is None else admitted.policy
                outcome = _outcome(call, agent, started, error)
                self.events.emit(CallEndedEvent(call, outcome, now(), is_message=True, policy=policy))


def _outcome(call: Call, agent: str, started: float, error: RetinueError | None) -> Outcome:
    return Outcome(
        call_id=call.id,
        skill=call.skill,
        status=status_of(error),
        agent=agent,
        duration_ms=(time.perf_counter() - started) * 1000,
        error=error,
    )
