"""How much is let in: a token bucket per caller and a cap on calls in flight.

No library that was looked at refuses (they wait), and a door must refuse with the time to retry.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from retinue.core.errors import BusyError

Clock = Callable[[], float]


class TokenBucket:
    """Lets ``rate_per_s`` calls pass on average and ``burst`` at once."""

    __slots__ = ("_burst", "_clock", "_rate_per_s", "_seen_at", "_tokens")

    def __init__(self, rate_per_s: float, burst: int, clock: Clock = time.monotonic) -> None:
        self._rate_per_s = rate_per_s
        self._burst = float(burst)
        self._clock = clock
        self._tokens = float(burst)
        self._seen_at = clock()

    def take(self) -> float:
        """Take one token; returns 0, or the seconds until there will be one."""
        at = self._clock()
        self._tokens = min(self._burst, self._tokens + (at - self._seen_at) * self._rate_per_s)
        self._seen_at = at
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate_per_s


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Caps of one process; ``rate_per_s`` None = no rate limit (the default on loopback)."""

    max_in_flight: int = 1000
    rate_per_s: float | None = None
    burst: int = 100
    max_callers: int = 10_000


class Limits:
    """Admission of one process; ``admit`` and ``release`` come in pairs."""

    def __init__(self, settings: LimitSettings | None = None, clock: Clock = time.monotonic) -> None:
        self._settings = settings or LimitSettings()
        self._clock = clock
        self._in_flight = 0
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def admit(self, caller: str) -> None:
        """Let one call in; raises BusyError with the time to try again."""
        settings = self._settings
        if self._in_flight >= settings.max_in_flight:
            raise BusyError(f"{settings.max_in_flight} calls in flight", 1.0)
        if settings.rate_per_s is not None:
            wait_s = self._bucket(caller, settings.rate_per_s).take()
            if wait_s:
                raise BusyError(f"{caller} passed {settings.rate_per_s:g} calls per second", wait_s)
        self._in_flight += 1

    def release(self) -> None:
        """Say that an admitted call has ended."""
        self._in_flight -= 1

    def _bucket(self, caller: str, rate_per_s: float) -> TokenBucket:
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = TokenBucket(rate_per_s, self._settings.burst, self._clock)
            if len(self._buckets) > self._settings.max_callers:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(caller)
        return bucket
