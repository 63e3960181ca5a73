"""Counts the decisions of policies for the metrics of a process."""

from __future__ import annotations

from dataclasses import dataclass, field

from retinue.mesh.observing.metrics import BoundedNames, Figures, Labels
from retinue.policies.decision import Decision

METRIC = "retinue_policy_decisions_total"
WATCHED = "watch_"
"""Before a decision that was only recorded."""


@dataclass(slots=True, eq=False)
class DecisionFigures:
    """The decisions since the process started; further names of policies than 200 count as one."""

    _counts: dict[Labels, int] = field(default_factory=dict)
    _names: BoundedNames = field(default_factory=BoundedNames)

    def count(self, decision: Decision, *, is_watched: bool) -> None:
        """Count one decision under each policy that decided, and under "" where none did."""
        prefix = WATCHED if is_watched else ""
        self._count(prefix + decision.verdict, decision)
        if decision.would_be is not None:
            self._count(WATCHED + decision.would_be.verdict, decision.would_be)

    def _count(self, verdict: str, decision: Decision) -> None:
        for name in [self._names(policy.id) for policy in decision.policies] or [""]:
            key = (verdict, name)
            self._counts[key] = self._counts.get(key, 0) + 1

    def read(self, figures: Figures) -> None:
        """Add the counts to ``figures``."""
        if self._counts:
            figures.put_all(METRIC, {key: float(count) for key, count in self._counts.items()})
