"""The circuit breaker of one agent: after some transport failures it is spared, then tried again.

Only transport failures count (``Kind.counts_against_health``); any answer of the agent, an error
included, closes the circuit. The last error is kept, so that a refusal can say why.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from retinue.core.errors import CircuitOpenError, RetinueError

Clock = Callable[[], float]


class CircuitBreaker:
    """Closed → open after ``threshold`` failures in a row → one try after ``open_s``."""

    __slots__ = ("_clock", "_failures", "_last_error", "_open_s", "_opened_at", "_threshold", "_trying")

    def __init__(self, threshold: int = 3, open_s: float = 5.0, clock: Clock = time.monotonic) -> None:
        self._threshold = threshold
        self._open_s = open_s
        self._clock = clock
        self._failures = 0
        self._opened_at = 0.0
        self._trying = False
        self._last_error = ""

    @property
    def is_open(self) -> bool:
        """Whether a call should rather go elsewhere."""
        return self._failures >= self._threshold and (
            self._trying or self._clock() - self._opened_at < self._open_s
        )

    def enter(self, subject: str) -> None:
        """Ask to pass; raises CircuitOpenError with the last error and the time to retry."""
        if self._failures < self._threshold:
            return
        left_s = self._open_s - (self._clock() - self._opened_at)
        if self._trying or left_s > 0:
            raise CircuitOpenError(subject, max(left_s, 0.1), self._last_error)
        self._trying = True

    def succeeded(self) -> None:
        """Any answer closes the circuit."""
        self._failures = 0
        self._trying = False

    def failed(self, error: RetinueError) -> None:
        """Count a transport failure; opens the circuit when it was one too many."""
        self._trying = False
        self._failures += 1
        self._last_error = error.message
        if self._failures >= self._threshold:
            self._opened_at = self._clock()

    def abandoned(self) -> None:
        """The try ended without a verdict (cancelled): the next caller may try."""
        self._trying = False


class Breakers:
    """One breaker for each subject that is called; the least recently used are forgotten."""

    def __init__(self, *, keep: int = 10_000, clock: Clock = time.monotonic) -> None:
        self._keep = keep
        self._clock = clock
        self._breakers: OrderedDict[Hashable, CircuitBreaker] = OrderedDict()

    def of(self, subject: Hashable) -> CircuitBreaker:
        """The breaker of this subject. Use (listing id, url): a replaced agent starts anew."""
        breaker = self._breakers.get(subject)
        if breaker is None:
            breaker = self._breakers[subject] = CircuitBreaker(clock=self._clock)
            if len(self._breakers) > self._keep:
                self._breakers.popitem(last=False)
        else:
            self._breakers.move_to_end(subject)
        return breaker
