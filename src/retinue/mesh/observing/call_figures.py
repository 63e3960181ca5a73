"""Counts the calls and failures of each agent, with their mean time.

The figures come from the audit log when a hub starts, and from the events of its calls since. So they
outlive the process, unlike `AgentStats`, which the choice among equal agents uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from retinue.core.call import EXAM
from retinue.core.record import QUERY_CAPABILITIES, Candidate, Stats
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.observing.events import CallEndedEvent, Event

_PRIOR_CALLS = 10
"""Calls that are assumed to have succeeded, because a new agent is trusted, and one failure does not condemn
it.
"""

AGENT_FAILURES = frozenset(
    {
        "execution_error",
        "output_validation_error",
        "empty_output",
        "timeout",
        "agent_unreachable",
        "remote_error",
        "error",
    }
)
"""Errors that are the agent's. Bad arguments, refusals and cancellations are the caller's."""


@dataclass(frozen=True, slots=True)
class CallSummary:
    """The calls of one agent that ended with the same status and error."""

    agent: str
    status: str
    error: str | None
    calls: int
    total_ms: float


class CallFigures:
    """The figures of the agents of one hub; `observe` takes the events of its calls.

    The events may come later, in batches; ``catch_up`` brings those that wait before figures are read.
    """

    def __init__(self, catch_up: Callable[[], None] = lambda: None) -> None:
        self._counts: dict[str, list[float]] = {}
        self._catch_up = catch_up

    def seed(self, summaries: Iterable[CallSummary]) -> None:
        """Add the records of an earlier process."""
        for summary in summaries:
            self._add(summary.agent, summary.status, summary.error, summary.calls, summary.total_ms)

    def observe(self, event: Event) -> None:
        """Count one ended call; an observer of the event bus."""
        if isinstance(event, CallEndedEvent) and event.outcome.agent is not None:
            outcome = event.outcome
            if outcome.skill == QUERY_CAPABILITIES:
                return  # a question is no work: its milliseconds would make every agent look quick
            if event.call.endpoint == EXAM:
                return
            error = None if outcome.error is None else outcome.error.type
            self._add(outcome.agent or "", outcome.status, error, 1, outcome.duration_ms)

    def find(self, agent: str) -> Stats:
        """The figures of the agent of this name."""
        self._catch_up()
        calls, failures, total_ms = self._counts.get(agent, (0, 0, 0.0))
        mean_s = total_ms / calls / 1000 if calls else None
        return Stats(int(calls), int(failures), mean_s)

    def trust(self, agent: str) -> float:
        """The share of calls that are expected to succeed, 0 … 1; 1 for an agent without failures."""
        self._catch_up()
        calls, failures, _ = self._counts.get(agent, (0, 0, 0.0))
        return 1 - failures / (calls + _PRIOR_CALLS)

    def _add(self, agent: str, status: str, error: str | None, calls: int, total_ms: float) -> None:
        failed = status == "failed" and error in AGENT_FAILURES
        if status != "done" and not failed:
            return
        counts = self._counts.setdefault(agent, [0, 0, 0.0])
        counts[0] += calls
        counts[1] += calls if failed else 0
        counts[2] += total_ms


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """Figures of agents for the choice by role: load and success."""

    figures: CallFigures
    agent_stats: AgentStatsTable

    def is_busy(self, agent: Candidate) -> bool:
        """Whether the agent has many calls in flight, or answered the last call as busy."""
        return self.agent_stats.of(agent).is_busy

    def weigh(self, agent: Candidate, score: float | None) -> float:
        """A configured score, less the share of calls that are expected to fail."""
        return (score or 0.0) * self.figures.trust(agent.name)
