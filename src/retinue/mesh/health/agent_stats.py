"""Measures each agent: calls in flight, latency, failures, and the health derived from them.

The figures are kept in the memory of the calling process and are cheap enough to be updated at every attempt.
The figures decay while an agent is not called, so that a slow or failing agent is tried again after a while.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from math import exp

from retinue.core.durations import render_elapsed
from retinue.core.errors import RetinueError
from retinue.core.record import Candidate, Health, Listing, Stats
from retinue.mesh.health.breaker import CircuitBreaker, Clock, Condition

FADE_S = 30.0
"""After this time without a call, a figure has decayed to about a third."""

_WEIGHT = 0.3
"""Weight of the newest call in the mean latency of a skill."""

_USUAL_WEIGHT = 0.02
_FAILURE_WEIGHT = 0.2
FAILING = 0.5
"""An agent is degraded from this share of failures on (four in a row) …"""

RECOVERED = 0.25
"""… until the share is down to this one."""

_FAILURE_COST = 10.0
_UNTRIED_COST = 1e6
"""An agent without figures gets one call at a time; further calls go to agents with figures."""

SLOW_FACTOR = 5.0
SLOW_S = 1.0
SLOW_MIN_CALLS = 20
"""An agent is degraded when it is this many times slower than usual, above this mean latency, after this
many calls."""


BUSY_CALLS = 8
"""An agent with this many calls in flight is avoided where another one has the same role."""

HealthSink = Callable[[Candidate, Health, str], None]
"""Receives the health of an agent when it changes, with the reason where it is not healthy."""

_AgentKey = tuple[str, str | None]


class _Latency:
    """The latency of one skill of one agent; ``usual_s`` is a mean over many more calls than ``mean_s``."""

    __slots__ = ("at", "calls", "mean_s", "usual_s")

    def __init__(self) -> None:
        self.mean_s = self.usual_s = 0.0
        self.calls = 0
        self.at = 0.0

    def add(self, latency_s: float, at: float, *, ended: bool) -> None:
        """Count one call; a call that timed out does not change the usual latency."""
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


_NO_LATENCIES: dict[str, _Latency] = {}
"""Stays empty."""


class AgentStats:
    """The statistics of one agent.

    Each attempt is reported by `call_started` and then by exactly one of `answered`, `failed`, `refused`,
    `timed_out`, `lost` and `abandoned`; each probe by `probe_answered` or `probe_failed`. Times are seconds.
    """

    __slots__ = (
        "_breaker",
        "_clock",
        "_failing",
        "_failing_at",
        "_failing_text",
        "_latencies",
        "_slow",
        "_slow_text",
        "_timed",
        "_total_s",
        "busy_until",
        "calls",
        "condition",
        "failures",
        "in_flight",
        "reported",
        "seen_at",
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # made at the first call, as the latencies are: most agents are only probed
        self._breaker: CircuitBreaker | None = None
        self.condition = Condition()
        self.in_flight = 0
        self.busy_until = 0.0
        self.calls = 0
        self.failures = 0
        self.reported: Health = "unknown"
        self.seen_at = float("-inf")
        """When the agent has last answered a call or a probe."""
        self._total_s = 0.0
        self._timed = 0
        self._failing = 0.0
        self._failing_at = 0.0
        self._slow: _Latency | None = None
        # Set once, at the start: a text that changed with every call would be stored at every call.
        self._failing_text: str | None = None
        self._slow_text: str | None = None
        self._latencies = _NO_LATENCIES

    @property
    def breaker(self) -> CircuitBreaker:
        """The circuit breaker of the agent."""
        if self._breaker is None:
            self._breaker = CircuitBreaker(clock=self._clock)
        return self._breaker

    @property
    def is_broken(self) -> bool:
        """Whether the circuit breaker is open."""
        return self._breaker is not None and self._breaker.is_open

    def call_started(self) -> None:
        """A call is being sent to the agent."""
        self.in_flight += 1

    def answered(self, skill_id: str, latency_s: float) -> None:
        """The agent returned a result."""
        self._ended(skill_id, latency_s, failed=False)

    def failed(self, skill_id: str, latency_s: float) -> None:
        """The agent answered that it failed."""
        self._ended(skill_id, latency_s, failed=True)

    def refused(self) -> None:
        """The agent rejected the call, which proves only that it is running."""
        self.in_flight -= 1
        self.breaker.succeeded()
        self.condition.answered()

    def note_busy(self, retry_after_s: float) -> None:
        """Record that the agent refuses calls for this time."""
        self.busy_until = self._clock() + retry_after_s

    @property
    def is_busy(self) -> bool:
        """Whether another agent should be preferred for now."""
        return self.in_flight >= BUSY_CALLS or self._clock() < self.busy_until

    def timed_out(self, skill_id: str, latency_s: float) -> None:
        """The caller's time ran out; counts as a failure where the agent had enough time."""
        self.in_flight -= 1
        self.breaker.abandoned()
        known = self._latencies.get(skill_id)
        if latency_s >= (2 * known.usual_s if known is not None and known.calls else SLOW_S):
            self._count(failed=True, how=": the last had no answer in time")
            self._measure(skill_id, latency_s, ended=False)

    def lost(self, error: RetinueError, *, certain: bool) -> None:
        """The connection failed or broke; ``certain`` = nothing listens there."""
        self.in_flight -= 1
        self.breaker.failed(error)
        self.condition.failed(error.message, certain=certain)
        self._count(failed=True)

    def abandoned(self) -> None:
        """The caller cancelled the call, which is no evidence about the agent."""
        self.in_flight -= 1
        self.breaker.abandoned()

    def probe_answered(self) -> None:
        """The agent returned its card, so calls may be sent at once."""
        self.seen_at = self._clock()
        if self._breaker is not None:
            self._breaker.succeeded()
        self.condition.answered()

    def probe_failed(self, reason: str, *, certain: bool) -> None:
        """The probe failed. The circuit breaker is not changed, because calls have another time limit."""
        self.condition.failed(reason, certain=certain)

    @property
    def health(self) -> Health:
        """The health of the agent now."""
        if self._failing_text is not None or self._slow is not None:
            self._update_complaint()
        return self.condition.state

    def snapshot(self) -> Stats:
        """The figures since this process started."""
        mean_s = self._total_s / self._timed if self._timed else None
        return Stats(self.calls, self.failures, mean_s)

    def cost(self, skill_id: str) -> float:
        """The expected wait of a further call in seconds, increased by failures; 0 = never called."""
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
            if self._latencies is _NO_LATENCIES:
                self._latencies = {}
            latency = self._latencies[skill_id] = _Latency()
        latency.add(latency_s, at, ended=ended)
        if ended:
            self.seen_at = at
        if latency_s > SLOW_S and self._slow is None and latency.is_slow(at):
            self._slow = latency
            mean, usual = render_elapsed(latency.mean_s), render_elapsed(latency.usual_s)
            self._slow_text = f"{skill_id} takes {mean}, usually {usual}"

    def _count(self, *, failed: bool, how: str = "") -> None:
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
            self._failing_text = f"most of its last calls failed{how}"

    def _failing_now(self, at: float) -> float:
        idle_s = at - self._failing_at
        return self._failing if idle_s <= 0 else self._failing * exp(-idle_s / FADE_S)

    def _update_complaint(self) -> None:
        at = self._clock()
        if self._failing_text is not None and self._failing_now(at) <= RECOVERED:
            self._failing_text = None
        if self._slow is not None and not self._slow.is_slow(at):
            self._slow = self._slow_text = None
        self.condition.set_complaint(self._failing_text or self._slow_text)


class AgentStatsTable:
    """The statistics of the agents that are called or probed.

    An agent is identified by name and url: one that moves gets new statistics. They last as long as a listing
    of the agent, for `is_listed`; of all others the ``keep_unlisted`` are kept that were listed last.
    """

    def __init__(self, *, keep_unlisted: int = 10_000, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._keep_unlisted = keep_unlisted
        self._table: dict[_AgentKey, AgentStats] = {}
        # in the order in which they are dropped; some may be listed again
        self._unlisted: OrderedDict[_AgentKey, None] = OrderedDict()
        self.is_listed: Callable[[str, str | None], bool] = lambda name, url: False
        """Whether an agent of this name and url is listed; a directory knows."""

    def of(self, listing: Candidate) -> AgentStats:
        """The statistics of this agent; new ones at first."""
        key = (listing.name, listing.url)
        try:
            return self._table[key]  # twice as fast as get(); every call does this
        except KeyError:
            stats = self._table[key] = AgentStats(self._clock)
            if not self.is_listed(*key):
                self._drop_later(key)
            return stats

    def note_unlisted(self, name: str, url: str | None) -> None:
        """Keep the statistics of an agent for a while only, unless another listing of it is there."""
        if (name, url) in self._table and not self.is_listed(name, url):
            self._drop_later((name, url))

    def _drop_later(self, key: _AgentKey) -> None:
        self._unlisted[key] = None
        self._unlisted.move_to_end(key)
        if len(self._unlisted) > self._keep_unlisted:
            oldest, _ = self._unlisted.popitem(last=False)
            if not self.is_listed(*oldest):
                del self._table[oldest]

    def has_seen(self, listing: Candidate, within_s: float) -> bool:
        """Whether this agent has answered a call or a probe in the last seconds."""
        stats = self._table.get((listing.name, listing.url))
        return stats is not None and self._clock() - stats.seen_at < within_s

    def list_answered(self, since: float) -> list[tuple[str, str | None]]:
        """Name and url of the agents that have answered a call or a probe since a time of the clock."""
        return [key for key, stats in self._table.items() if stats.seen_at >= since]

    def count_breakers(self) -> tuple[int, list[str]]:
        """How many agents have statistics, and the names of those whose circuit breaker is open."""
        return len(self._table), [name for (name, _), stats in self._table.items() if stats.is_broken]

    def stats_of(self, listing: Listing) -> Stats:
        """The figures of this agent; those of the listing where it was not called."""
        stats = self._table.get((listing.name, listing.url))
        return listing.stats if stats is None or not stats.calls else stats.snapshot()


def report_health(stats: AgentStats, listing: Candidate, sink: HealthSink) -> None:
    """Report the agent's health where it differs from the listing, or from the last report."""
    health = stats.health
    if health == listing.health == stats.reported and health in ("healthy", "unknown"):
        return
    stats.reported = health
    sink(listing, health, stats.condition.reason or "")
