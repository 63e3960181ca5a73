"""The circuit breaker of an agent, and the states from healthy to unreachable.

The breaker rejects calls to an agent that has just failed several times, and allows one trial call after a
while. The condition is shown in lists and decides the order in which agents are preferred.

Only transport failures count (``Kind.counts_against_health``). Any answer of the agent, including an error,
closes the circuit. The last error is kept for the text of rejections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from retinue.core.errors import CircuitOpenError, RetinueError
from retinue.core.record import Candidate, Health

Clock = Callable[[], float]

FAILURES_TO_UNREACHABLE = 3
"""Uncertain failures in a row that make an agent unreachable."""

UNREACHABLE_TIER = 2

_TIERS: Mapping[Health, int] = {"healthy": 0, "unknown": 0, "degraded": 1, "unreachable": 2}


class CircuitBreaker:
    """Closed → open after ``threshold`` failures in a row → one trial call after ``open_s``."""

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
        """Whether calls are rejected now."""
        return self._failures >= self._threshold and (
            self._trying or self._clock() - self._opened_at < self._open_s
        )

    def enter(self, subject: str) -> None:
        """Let a call to ``subject`` pass.

        Raises CircuitOpenError with the last error and the time to retry.
        """
        if self._failures < self._threshold:
            return
        left_s = self._open_s - (self._clock() - self._opened_at)
        if self._trying or left_s > 0:
            raise CircuitOpenError(subject, max(left_s, 0.1), self._last_error)
        self._trying = True

    def succeeded(self) -> None:
        """Close the circuit: the agent answered."""
        self._failures = 0
        self._trying = False

    def failed(self, error: RetinueError) -> None:
        """Count a transport failure; opens the circuit at the threshold."""
        self._trying = False
        self._failures += 1
        self._last_error = error.message
        if self._failures >= self._threshold:
            self._opened_at = self._clock()

    def open(self, reason: str) -> None:
        """Open the circuit, because it has opened in another process of the hub."""
        self._failures = max(self._failures, self._threshold)
        self._last_error = reason
        self._opened_at = self._clock()

    def abandoned(self) -> None:
        """End a cancelled call, which neither closes nor opens the circuit.

        The next call may be the trial.
        """
        self._trying = False


def health_tier(listing: Candidate) -> int:
    """0 = healthy or not called yet, 1 = degraded, 2 = unreachable."""
    return _TIERS[listing.health]


class Condition:
    """The health of one agent: healthy → degraded → unreachable, and back.

    A certain failure (a refused connection, another agent at the url) makes the agent unreachable at once.
    An uncertain one (a probe that timed out, a broken connection, a status of 500 or more) makes it
    degraded, and unreachable after ``FAILURES_TO_UNREACHABLE`` in a row. Any answer, to a probe or to a
    call, ends both. A complaint about its figures degrades an agent that answers, until it is withdrawn.
    """

    __slots__ = ("_asked", "_certain", "_complaint", "_failures", "_reason")

    def __init__(self) -> None:
        self._asked = False
        self._certain = False
        self._failures = 0
        self._reason = ""
        self._complaint: str | None = None

    @property
    def state(self) -> Health:
        if self._certain or self._failures >= FAILURES_TO_UNREACHABLE:
            return "unreachable"
        if self._failures or self._complaint is not None:
            return "degraded"
        return "healthy" if self._asked else "unknown"

    @property
    def reason(self) -> str | None:
        """Why the agent is degraded or unreachable; None otherwise."""
        return self._reason if self._failures else self._complaint

    def answered(self) -> None:
        """The agent answered; a rejection or an error counts as well."""
        self._asked = True
        self._certain = False
        self._failures = 0

    def failed(self, reason: str, *, certain: bool) -> None:
        """The agent did not answer; ``certain`` = it is known not to be there."""
        self._asked = True
        self._certain = certain
        self._failures += 1
        self._reason = reason

    def set_complaint(self, complaint: str | None) -> None:
        """Set the problem of the agent's figures; None = no problem."""
        self._complaint = complaint
