"""Compares the calls of two digests of a team: failures, latency and cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import comb
from typing import Any

from retinue.core.call import Outcome
from retinue.mesh.observing.call_figures import AGENT_FAILURES

MIN_CALLS = 20
"""With fewer calls of either digest, shares and costs say nothing."""

MIN_LATENCIES = 50
"""With fewer calls at one weight, latencies say nothing, because the first calls of a program are slow."""

CHANCE = 1e-4
"""A digest is slower only if chance gives so many slow calls less often."""

MORE_FAILURES = 0.02
SLOWER = 2.0
SLOWER_BY_S = 0.025
"""A digest is slower only if its latency is also so much longer, because short calls vary by much."""

DEARER = 1.5
DEARER_BY_USD = 0.0001

_KEPT_LATENCIES = 1_000
_SHARE = 0.95


@dataclass(slots=True)
class DigestFigures:
    """The calls of one digest; the latencies are those at its present weight, at most the last thousand."""

    calls: int = 0
    failures: int = 0
    cost_usd: float = 0.0
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_LATENCIES))

    def add(self, outcome: Outcome) -> None:
        """Count a call. It has failed also if another agent answered after the first one had failed."""
        first = outcome.attempts[0] if outcome.attempts else None
        has_failed = outcome.error is not None and outcome.error.type in AGENT_FAILURES
        is_repeated = len(outcome.attempts) > 1 and first is not None and first.error is not None
        self.calls += 1
        self.failures += has_failed or is_repeated
        self.latencies_s.append(outcome.duration_ms / 1000)
        if outcome.usage is not None:
            self.cost_usd += float(outcome.usage.get("cost_usd") or 0.0)

    def begin_weight(self) -> None:
        """Forget the latencies at the weight before, when the machine may have had other work."""
        self.latencies_s.clear()

    @property
    def failed_share(self) -> float:
        """The share of failed calls."""
        return self.failures / self.calls if self.calls else 0.0

    @property
    def p95_s(self) -> float:
        """The latency that 95 % of the calls do not exceed."""
        ordered = sorted(self.latencies_s)
        return ordered[min(int(len(ordered) * _SHARE), len(ordered) - 1)] if ordered else 0.0

    @property
    def mean_cost_usd(self) -> float:
        """The cost of a call."""
        return self.cost_usd / self.calls if self.calls else 0.0

    def as_json(self) -> dict[str, Any]:
        """The figures as they are stored and shown."""
        return {
            "calls": self.calls,
            "failures": self.failures,
            "p95_ms": round(self.p95_s * 1000, 1),
            "cost_usd": round(self.cost_usd, 6),
        }


def find_worse(old: DigestFigures, new: DigestFigures) -> str:
    """In what the new digest is worse than the old one, with the figures; "" where it is not, or unknown."""
    if new.calls < MIN_CALLS or old.calls < MIN_CALLS:
        return ""
    if new.failed_share > old.failed_share + MORE_FAILURES:
        return f"{new.failed_share:.1%} of its calls fail; of the digest before {old.failed_share:.1%}"
    if _is_slower(old, new):
        return f"p95 is {new.p95_s * 1000:.0f} ms; of the digest before {old.p95_s * 1000:.0f} ms"
    if new.mean_cost_usd > max(old.mean_cost_usd * DEARER, old.mean_cost_usd + DEARER_BY_USD):
        before = f"of the digest before ${old.mean_cost_usd:.4f}"
        return f"a call costs ${new.mean_cost_usd:.4f}; {before}"
    return ""


def _is_slower(old: DigestFigures, new: DigestFigures) -> bool:
    """Whether more calls of the new digest take much longer than the p95 of the old one than chance gives."""
    count = len(new.latencies_s)
    if min(count, len(old.latencies_s)) < MIN_LATENCIES:
        return False
    limit_s = max(old.p95_s * SLOWER, old.p95_s + SLOWER_BY_S)
    slow = sum(latency_s > limit_s for latency_s in new.latencies_s)
    rare = 1 - _SHARE
    below = sum(comb(count, k) * rare**k * (1 - rare) ** (count - k) for k in range(slow))
    return 1 - below < CHANCE


def render_figures(figures: Mapping[str, Any]) -> str:
    """The stored figures of one digest as people read them."""
    text = f"{figures['calls']} calls, {figures['failures']} failed, p95 {figures['p95_ms']:g} ms"
    return text + (f", ${figures['cost_usd']:.4f}" if figures["cost_usd"] else "")
