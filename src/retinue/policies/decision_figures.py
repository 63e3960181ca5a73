"""Counts the decisions of policies, for the metrics of a process and the page of its policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retinue.mesh.observing.metrics import BoundedNames, Figures, Labels

if TYPE_CHECKING:  # with the engine, which a hub without policies does not need
    from retinue.policies.decision import Decision

METRIC = "retinue_policy_decisions_total"
WATCHED = "watch_"
"""The prefix of a decision that was only recorded."""


@dataclass(slots=True, eq=False)
class DecisionFigures:
    """The decisions since the process started; further names of policies than 200 count as one in metrics.

    ``hits`` counts what each policy has decided, by its id and a verdict such as ``deny``.
    """

    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    _counts: dict[Labels, int] = field(default_factory=dict)
    _names: BoundedNames = field(default_factory=BoundedNames)

    def count(self, decision: Decision, *, is_watched: bool) -> None:
        """Count one decision under each policy that decided, and under "" where none did."""
        prefix = WATCHED if is_watched else ""
        self._count(prefix + decision.verdict, decision)
        if decision.would_be is not None:
            self._count(WATCHED + decision.would_be.verdict, decision.would_be)
            self.hits.update((policy.id, "watch") for policy in decision.would_be.policies)
        for policy in decision.policies:
            verdict = "deny" if decision.verdict == "deny" else policy.effect
            self.hits[policy.id, "watch" if is_watched else verdict] += 1

    def _count(self, verdict: str, decision: Decision) -> None:
        for name in [self._names(policy.id) for policy in decision.policies] or [""]:
            key = (verdict, name)
            self._counts[key] = self._counts.get(key, 0) + 1

    def take(self) -> list[list[list[Any]]]:
        """The counts as rows for `add` of another process; here they begin again at 0."""
        counts = [[*key, count] for key, count in self._counts.items()]
        hits = [[*key, count] for key, count in self.hits.items()]
        self._counts.clear()
        self.hits.clear()
        return [counts, hits]

    def add(self, taken: Sequence[Sequence[Sequence[Any]]]) -> None:
        """Add the counts of another process of the hub, as `take` gives them."""
        counts, hits = taken or ((), ())
        for verdict, name, count in counts:
            key = (verdict, self._names(name) if name else "")
            self._counts[key] = self._counts.get(key, 0) + count
        for name, verdict, count in hits:
            self.hits[name, verdict] += count

    def read(self, figures: Figures) -> None:
        """Add the counts to ``figures``."""
        if self._counts:
            figures.put_all(METRIC, {key: float(count) for key, count in self._counts.items()})
