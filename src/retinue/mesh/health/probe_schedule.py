"""When the agents of a directory are asked again whether they answer.

An agent that does not answer is asked less and less often. The times have jitter, so that agents that failed
together are not asked together. A call that an agent has answered is as good as a probe.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from retinue.core.record import Candidate, Health, ListingKey
from retinue.mesh.health.breaker import Clock

FIRST_WAIT_S = 5.0
"""Interval after the first failure, and between probes of an agent that answers but is not healthy."""

_BACK_OFF = 2.0
_LEAST_SHARE = 0.9
"""The shortest wait, as a share of the full one."""


class _Wait(NamedTuple):
    due_at: float
    full_s: float
    url: str | None


class ProbeSchedule:
    """The times of the next probes of the agents that are not healthy.

    ``draw`` gives a number from 0 to 1 for the jitter. An agent that moved to another URL is asked at once.
    """

    def __init__(self, clock: Clock = time.monotonic, draw: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._draw = draw
        self._waits: dict[ListingKey, _Wait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def is_due(self, agent: Candidate) -> bool:
        """Whether an agent that is not healthy is asked now."""
        return self.test_due()(agent)

    def test_due(self) -> Callable[[Candidate], bool]:
        """The function that tells whether an agent is asked now, for ten thousand agents at one time."""
        waits, now = self._waits, self._clock()

        def is_due(agent: Candidate) -> bool:
            wait = waits.get(agent.id)
            return wait is None or wait.due_at <= now or wait.url != agent.url

        return is_due

    def note(self, agent: Candidate, health: Health, longest_s: float) -> None:
        """Record a probe with what it found; failures are ``longest_s`` apart at most."""
        if health == "healthy":
            self._waits.pop(agent.id, None)
            return
        before = self._waits.get(agent.id)
        full_s = FIRST_WAIT_S
        if health == "unreachable" and before is not None and before.url == agent.url:
            full_s = before.full_s * _BACK_OFF
        full_s = min(full_s, longest_s)
        share = _LEAST_SHARE + (1 - _LEAST_SHARE) * self._draw()
        self._waits[agent.id] = _Wait(self._clock() + full_s * share, full_s, agent.url)

    def forget(self, listing_id: ListingKey) -> None:
        """Forget an agent: it is gone, or healthy."""
        self._waits.pop(listing_id, None)
