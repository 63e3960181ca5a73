"""What is measured of each agent: calls in flight, latency, failures, and the health that follows.

Kept in memory by the process that calls, and cheap enough to be told of every attempt. The figures
fade while an agent is left alone, so that one that was slow or failing is tried again in time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from math import exp
from typing import Protocol

from retinue.core.errors import RetinueError
from retinue.core.record import Health, Listing, Stats
from retinue.mesh.entry import Candidate
from retinue.mesh.health import CircuitBreaker, Clock, Condition

FADE_S = 30.0
"""After this time without a call, a figure counts about a third."""

_WEIGHT = 0.3
"""How much the newest call counts in the mean latency of a skill."""

_USUAL_WEIGHT = 0.02
_FAILURE_WEIGHT = 0.2
FAILING = 0.5
"""Degraded from this share of failures on (four in a row) …"""

RECOVERED = 0.25
"""… until it is down to this one."""

_FAILURE_COST = 10.0
_UNTRIED_COST = 1e6
"""One call at a time tells what an agent is like; the others go where that is known."""

SLOW_FACTOR = 5.0
SLOW_S = 1.0
SLOW_MIN_CALLS = 20
"""Degraded: so much slower than usual, over this mean latency, after so many calls."""


class Board(Protocol):
    """Where health is noted for everybody to see: the directory."""

    def mark_reachable(self, listing: Candidate) -> None:
        """Note that the agent answers, and well."""

    def mark_degraded(self, listing: Candidate, reason: str) -> None:
        """Note that others should be preferred."""

    def mark_unreachable(self, listing: Candidate, error: RetinueError | str) -> None:
        """Note that there is no way to the agent."""


class _Latency:
    """The latency of one skill of one agent; the slow mean tells what is usual."""

    __slots__ = ("at", "calls", "mean_s", "usual_s")

    def __init__(self) -> None:
        self.mean_s = self.usual_s = 0.0
        self.calls = 0
        self.at = 0.0

    def add(self, latency_s: float, at: float, *, ended: bool) -> None:
        """Count one call; one that did not end in its time says nothing of what is usual."""
        self.mean_s += (latency_s - self.mean_s) * (_WEIGHT if self.mean_s else 1.0)
        self.at = at
        if ended:
            self.calls += 1
            self.usual_s += (latency_s - self.usual_s) * max(_USUAL_WEIGHT, 1 / self.calls)

    def now_s(self, at: float) -> float:
        idle_s = at - self.at
        return self.mean_s if idle_s <= 0 else self.mean_s * exp(-idle_s / FADE_S)

    def is_slow(self, at: float) -> bool:
        return self.calls >= SLOW_MIN_CALLS and self.now_s(at) > max(SLOW_S, SLOW_FACTOR * self.usual_s)


class Pulse:
    """The figures of one agent; each attempt is `begun`, and ended by exactly one of the others.

    Times are seconds. Probes are told by `probe_answered` and `probe_failed`.
    """

    __slots__ = (
        "_clock",
        "_failing",
        "_failing_at",
        "_failing_text",
        "_latencies",
        "_slow",
        "_slow_text",
        "_timed",
        "_total_s",
        "breaker",
        "calls",
        "condition",
        "failures",
        "in_flight",
        "noted",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.breaker = CircuitBreaker(clock=clock)
        self.condition = Condition()
        self.in_flight = 0
        self.calls = 0
        self.failures = 0
        self.noted: Health = "unknown"
        self._total_s = 0.0
        self._timed = 0
        self._failing = 0.0
        self._failing_at = 0.0
        self._slow: _Latency | None = None
        # said once, at the start: a text that changed with every call would be written as often
        self._failing_text: str | None = None
        self._slow_text: str | None = None
        self._latencies: dict[str, _Latency] = {}

    def begun(self) -> None:
        """A call is sent to the agent."""
        self.in_flight += 1

    def answered(self, skill_id: str, latency_s: float) -> None:
        """It delivered."""
        self._ended(skill_id, latency_s, failed=False)

    def failed(self, skill_id: str, latency_s: float) -> None:
        """It answered that it could not deliver."""
        self._ended(skill_id, latency_s, failed=True)

    def refused(self) -> None:
        """It answered that the call was not one for it: that tells of its caller."""
        self.in_flight -= 1
        self.breaker.succeeded()
        self.condition.answered()

    def timed_out(self, skill_id: str, latency_s: float) -> None:
        """The caller's time was over; that counts where the agent had enough of it."""
        self.in_flight -= 1
        self.breaker.abandoned()
        known = self._latencies.get(skill_id)
        if latency_s >= (2 * known.usual_s if known is not None and known.calls else SLOW_S):
            self._count(failed=True)
            self._measure(skill_id, latency_s, ended=False)

    def lost(self, error: RetinueError, *, certain: bool) -> None:
        """There was no way to the agent, or it broke; ``certain`` = nobody is there."""
        self.in_flight -= 1
        self.breaker.failed(error)
        self.condition.failed(error.message, certain=certain)
        self._count(failed=True)

    def abandoned(self) -> None:
        """The caller gave up: no verdict."""
        self.in_flight -= 1
        self.breaker.abandoned()

    def probe_answered(self) -> None:
        """It showed its own card: calls may come at once."""
        self.breaker.succeeded()
        self.condition.answered()

    def probe_failed(self, reason: str, *, certain: bool) -> None:
        """It did not. Calls decide for themselves: theirs is another time limit."""
        self.condition.failed(reason, certain=certain)

    @property
    def health(self) -> Health:
        """What to think of the agent now."""
        if self._failing_text is not None or self._slow is not None:
            self._complain()
        return self.condition.state

    def stats(self) -> Stats:
        """What was seen since this process started."""
        mean_s = self._total_s / self._timed if self._timed else None
        return Stats(self.calls, self.failures, mean_s)

    def cost(self, skill_id: str) -> float:
        """How long a further call would wait, in seconds made worse by failures; 0 = never tried."""
        at = self._clock()
        latency = self._latencies.get(skill_id)
        if latency is None:
            is_known = self.in_flight or (self._failing and self._failing_now(at) > RECOVERED)
            return _UNTRIED_COST + self.in_flight if is_known else 0.0
        cost_s = (self.in_flight + 1) * latency.now_s(at)
        return cost_s if not self._failing else cost_s * (1 + _FAILURE_COST * self._failing_now(at))

    def _ended(self, skill_id: str, latency_s: float, *, failed: bool) -> None:
        self.in_flight -= 1
        self.breaker.succeeded()
        self.condition.answered()
        self._count(failed=failed)
        self._measure(skill_id, latency_s, ended=True)

    def _measure(self, skill_id: str, latency_s: float, *, ended: bool) -> None:
        self._total_s += latency_s
        self._timed += 1
        at = self._clock()
        latency = self._latencies.get(skill_id)
        if latency is None:
            latency = self._latencies[skill_id] = _Latency()
        latency.add(latency_s, at, ended=ended)
        if latency_s > SLOW_S and self._slow is None and latency.is_slow(at):
            self._slow = latency
            self._slow_text = f"{skill_id} takes {latency.mean_s:.1f} s, usually {latency.usual_s:.1f} s"

    def _count(self, *, failed: bool) -> None:
        self.calls += 1
        if failed:
            self.failures += 1
        elif not self._failing:
            return
        at = self._clock()
        failing = self._failing_now(at)
        self._failing = failing + (failed - failing) * _FAILURE_WEIGHT
        self._failing_at = at
        if self._failing >= FAILING and self._failing_text is None:
            self._failing_text = "most of its last calls failed"

    def _failing_now(self, at: float) -> float:
        idle_s = at - self._failing_at
        return self._failing if idle_s <= 0 else self._failing * exp(-idle_s / FADE_S)

    def _complain(self) -> None:
        at = self._clock()
        if self._failing_text is not None and self._failing_now(at) <= RECOVERED:
            self._failing_text = None
        if self._slow is not None and not self._slow.is_slow(at):
            self._slow = self._slow_text = None
        self.condition.complain(self._failing_text or self._slow_text)


class Pulses:
    """One pulse for each agent that is called or probed; the least recently used are forgotten.

    An agent is what answers to a name at a url: one that moves starts anew.
    """

    def __init__(self, *, keep: int = 10_000, clock: Clock = time.monotonic) -> None:
        self._keep = keep
        self._clock = clock
        self._pulses: OrderedDict[tuple[str, str | None], Pulse] = OrderedDict()

    def of(self, listing: Candidate) -> Pulse:
        """The pulse of this agent, a new one at first."""
        key = (listing.name, listing.url)
        pulse = self._pulses.get(key)
        if pulse is None:
            pulse = self._pulses[key] = Pulse(self._clock)
            if len(self._pulses) > self._keep:
                self._pulses.popitem(last=False)
        else:
            self._pulses.move_to_end(key)
        return pulse

    def stats_of(self, listing: Listing) -> Stats:
        """What was seen of this agent; the listing's own figures where nothing was."""
        pulse = self._pulses.get((listing.name, listing.url))
        return listing.stats if pulse is None or not pulse.calls else pulse.stats()


def note_health(pulse: Pulse, listing: Candidate, board: Board) -> None:
    """Tell the board where the agent's health is not what the listing, or the last note, says."""
    health = pulse.health
    if health == listing.health == pulse.noted and health in ("healthy", "unknown"):
        return
    pulse.noted = health
    reason = pulse.condition.reason or ""
    if health == "healthy":
        board.mark_reachable(listing)
    elif health == "degraded":
        board.mark_degraded(listing, reason)
    elif health == "unreachable":
        board.mark_unreachable(listing, reason)
