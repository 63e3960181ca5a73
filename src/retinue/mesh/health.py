"""Is an agent worth asking? Its circuit breaker, and its condition from healthy to unreachable.

The breaker keeps calls from an agent that has just failed several of them, and lets one try after a
while; the condition is what people are shown, and the order in which agents are preferred.

Only transport failures count (``Kind.counts_against_health``); any answer of the agent, an error
included, closes the circuit. The last error is kept, so that a refusal can say why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from retinue.core.errors import CircuitOpenError, RetinueError
from retinue.core.record import Health
from retinue.mesh.entry import Candidate

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


PATIENCE = 3
"""So many failures in a row, with somebody there who does not answer well, make an agent unreachable."""

_TIERS: Mapping[Health, int] = {"healthy": 0, "unknown": 0, "degraded": 1, "unreachable": 2}


def tier_of(listing: Candidate) -> int:
    """0 for the healthy and for those not asked yet, 1 for the degraded, 2 for the unreachable."""
    return _TIERS[listing.health]


class Condition:
    """HEALTHY → DEGRADED → UNREACHABLE and back, of one agent.

    Nobody there (a refused connection, another agent at the url) is certain, and makes the agent
    unreachable at once. Somebody there who does not answer well (a probe without an answer in time,
    a broken connection, a status of 500 or more) makes it degraded, and unreachable after
    ``PATIENCE`` times in a row. Any answer, of a probe or of a call, ends both. A complaint about
    its figures degrades an agent that answers, for as long as it is made.
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
        if self._certain or self._failures >= PATIENCE:
            return "unreachable"
        if self._failures or self._complaint is not None:
            return "degraded"
        return "healthy" if self._asked else "unknown"

    @property
    def reason(self) -> str | None:
        """Why it is degraded or unreachable; None for the others."""
        return self._reason if self._failures else self._complaint

    def answered(self) -> None:
        """It gave an answer of its own, a refusal or an error included."""
        self._asked = True
        self._certain = False
        self._failures = 0

    def failed(self, reason: str, *, certain: bool) -> None:
        """It gave none; ``certain`` = it is known not to be there."""
        self._asked = True
        self._certain = certain
        self._failures += 1
        self._reason = reason

    def complain(self, complaint: str | None) -> None:
        """What is wrong with its figures now; None = nothing."""
        self._complaint = complaint
