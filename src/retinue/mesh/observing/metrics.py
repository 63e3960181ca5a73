"""The metrics of a process: names, kinds, labels, and readings of its figures.

The table `METRICS` holds the metrics of the core; parts of a process add others to `Figures.metrics`.
Counting needs no library. The formats are made when somebody reads (``web.metrics_endpoint``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

MetricKind = Literal["counter", "gauge", "histogram"]

MAX_NAMES = 200
"""How many names of agents, skills and the like one process tells apart; further ones count as `OTHER`."""

OTHER = "other"
"""The value of a label for the names beyond `MAX_NAMES`, and for names that a reader may not see."""

LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; values are in the unit that its name ends with."""

    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


METRICS: Mapping[str, Metric] = {
    "retinue_build_info": Metric("gauge", "1; version and kind of the process", ("version", "process")),
    "retinue_ready": Metric("gauge", "1 if the process is ready, 0.5 if degraded, else 0"),
    "retinue_calls_total": Metric(
        "counter", "Calls that have ended", ("agent", "skill", "endpoint", "outcome")
    ),
    "retinue_call_errors_total": Metric("counter", "Calls that have failed, by error", ("error",)),
    "retinue_call_duration_seconds": Metric(
        "histogram", "Duration of the calls of agents, of any outcome", ("agent", "skill")
    ),
    "retinue_calls_in_flight": Metric("gauge", "Calls and messages that have not ended"),
    "retinue_messages_total": Metric(
        "counter", "MCP messages that run no skill and have ended", ("endpoint", "outcome")
    ),
    "retinue_tokens_total": Metric(
        "counter", "Tokens that language models have used", ("agent", "direction")
    ),
    "retinue_cost_dollars_total": Metric("counter", "US dollars that language models have cost", ("agent",)),
    "retinue_agents": Metric("gauge", "Agents in the directory, by health", ("health",)),
    "retinue_circuit_breakers": Metric(
        "gauge", "Agents that were called, by the state of their circuit breaker", ("state",)
    ),
    "retinue_circuit_breaker_open": Metric("gauge", "1 for each agent whose breaker is open", ("agent",)),
    "retinue_source_up": Metric("gauge", "Whether the last reading of a registry succeeded", ("source",)),
    "retinue_upstream_up": Metric("gauge", "Whether an imported server is connected", ("upstream",)),
    "retinue_hub_process_up": Metric("gauge", "Whether a process of the hub serves", ("number",)),
    "retinue_child_up": Metric("gauge", "Whether an agent that the hub started is ready", ("child",)),
    "retinue_child_restarts_total": Metric(
        "counter", "How often an agent that the hub started was started again", ("child",)
    ),
    "retinue_runs": Metric("gauge", "Outermost runs in the database, by status", ("status",)),
    "retinue_runs_half_undone": Metric("gauge", "Failed runs in the database with steps left to undo"),
    "retinue_runs_executing": Metric("gauge", "Outermost runs that this process executes"),
    "retinue_run_steps_total": Metric(
        "counter", "Steps of runs that have ended in this process", ("outcome",)
    ),
    "retinue_schedules": Metric("gauge", "Schedules and triggers in the database, by status", ("status",)),
    "retinue_artifacts": Metric("gauge", "Artifacts of the state folder"),
    "retinue_artifacts_stored_bytes": Metric("gauge", "What these artifacts take of their quota"),
    "retinue_artifacts_quota_bytes": Metric("gauge", "What all artifacts of the state folder may take"),
    "retinue_artifacts_read_bytes_total": Metric(
        "counter", "Bytes of artifacts that this process has read for others"
    ),
    "retinue_nodes": Metric("gauge", "Living nodes of the database of the runs"),
    "retinue_lease_remaining_seconds": Metric("gauge", "How long the lease of this node still lasts"),
    "retinue_lease_losses_total": Metric("counter", "How often this node has lost its lease"),
    "retinue_database_up": Metric("gauge", "Whether the database of the runs answers"),
    "retinue_database_query_seconds": Metric("gauge", "Duration of the last query for these figures"),
    "retinue_database_connections": Metric(
        "gauge", "Connections to the database of the runs, outside of the engine", ("state",)
    ),
}


class Histogram:
    """Counts of values by `LATENCY_BOUNDS_S`; ``counts`` has one more for larger values."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(LATENCY_BOUNDS_S, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        """The counts as they are now."""
        twin = Histogram()
        twin.counts, twin.total = list(self.counts), self.total
        return twin

    def add(self, other: Histogram) -> None:
        """Add the counts of another one."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def cumulate(self) -> Iterable[tuple[str, int]]:
        """The upper bounds, the last "+Inf", with the number of values up to each."""
        sum_so_far = 0
        for bound, count in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), self.counts, strict=True):
            sum_so_far += count
            yield bound, sum_so_far


Labels = tuple[str, ...]
"""Values of the labels, in the order of the metric's ``labels``."""


@dataclass(slots=True)
class Figures:
    """The values of a process at one time, by metric and labels; ``metrics`` are all that it has."""

    metrics: Mapping[str, Metric] = field(default_factory=lambda: METRICS)
    values: dict[str, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[str, dict[Labels, Histogram]] = field(default_factory=dict)

    def put(self, name: str, value: float, *labels: str) -> None:
        """Set one value; the name must be in ``metrics``, with as many labels."""
        self.values.setdefault(name, {})[labels] = value

    def put_all(self, name: str, values: Mapping[Labels, float]) -> None:
        """Set the values of one metric."""
        self.values.setdefault(name, {}).update(values)

    def hide(self, hidden: frozenset[str], skills: frozenset[tuple[str, str]] = frozenset()) -> Figures:
        """The same with these agents as `OTHER`, together with their skills, and these skills of agents."""
        if not hidden and not skills:
            return self
        shown = Figures(self.metrics)
        for name, values in self.values.items():
            into = shown.values.setdefault(name, {})
            for labels, value in values.items():
                seen = _hide(self.metrics[name].labels, labels, hidden, skills)
                into[seen] = into.get(seen, 0) + value
        for name, histograms in self.histograms.items():
            for labels, histogram in histograms.items():
                seen = _hide(self.metrics[name].labels, labels, hidden, skills)
                shown.histograms.setdefault(name, {}).setdefault(seen, Histogram()).add(histogram)
        return shown


def _hide(
    names: tuple[str, ...], labels: Labels, hidden: frozenset[str], skills: frozenset[tuple[str, str]]
) -> Labels:
    if any(n in ("agent", "upstream", "child") and v in hidden for n, v in zip(names, labels, strict=True)):
        kept = ("agent", "upstream", "child", "skill")
        return tuple(OTHER if n in kept else value for n, value in zip(names, labels, strict=True))
    if names[:2] == ("agent", "skill") and labels[:2] in skills:
        return (labels[0], OTHER, *labels[2:])
    return labels


class BoundedNames:
    """Keeps the first ``limit`` names; gives `OTHER` for further names."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit
        self._names: set[str] = set()

    def __call__(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= self._limit:
            return OTHER
        self._names.add(name)
        return name
