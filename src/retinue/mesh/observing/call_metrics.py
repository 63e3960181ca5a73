"""Counts the calls of a process for its metrics, from the events of its bus.

Labels hold the names of agents and skills that the directory knows, never a caller's text. So a skill that
no agent offers has neither. Calls of entrance exams count under their endpoint ``exam`` and in what was
spent, and in no duration or error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from retinue.core.call import EXAM
from retinue.core.errors import LookupFailedError
from retinue.core.usage import FURTHER, own_part
from retinue.mesh.observing.events import CallEndedEvent, Event
from retinue.mesh.observing.metrics import MAX_NAMES, OTHER, BoundedNames, Figures, Histogram, Labels

NONE = ""
"""The agent and skill of a call that reached no agent."""

MAX_PAIRS = 200
"""How many pairs of agent and skill have a histogram of their own, because each is 15 lines of every scrape.
"""

MAX_SERIES = 2_000

OnDuration = Callable[[float, str, str], None]
"""Called with the duration in seconds, the agent and the skill of each call."""


class CallMetrics:
    """The counts of one process; `observe` is an observer that takes its events in batches."""

    def __init__(self) -> None:
        self.on_duration: OnDuration | None = None
        self._pair_of: dict[tuple[str, str], tuple[str, str]] = {}
        self._calls: dict[Labels, int] = {}
        self._durations: dict[tuple[str, str], Histogram] = {}
        self._errors: dict[str, int] = defaultdict(int)
        self._messages: dict[Labels, int] = defaultdict(int)
        self._tokens: dict[Labels, int] = defaultdict(int)
        self._cost_usd: dict[str, float] = defaultdict(float)
        self._agents = BoundedNames(MAX_NAMES)
        self._error_names = BoundedNames(MAX_NAMES)

    def observe(self, event: Event) -> None:
        """Count one ended call."""
        if not isinstance(event, CallEndedEvent):
            return
        call, outcome = event.call, event.outcome
        if event.is_message:
            self._messages[call.endpoint, outcome.status] += 1
            return
        agent, error = outcome.agent, outcome.error
        is_exam = call.endpoint == EXAM
        if error is not None and not is_exam:
            self._errors[self._error_names(error.type)] += 1
        if agent is None or (error is not None and isinstance(error, LookupFailedError)):
            pair = (NONE, NONE)
        else:
            pair = self._pair_of.get((agent, call.skill)) or self._bound(agent, call.skill)
            if not is_exam:
                self._count_duration(outcome.duration_ms / 1000, pair)
            if outcome.usage is not None:
                self._count_usage(pair[0], outcome.usage)
        key = (*pair, call.endpoint, outcome.status)
        counted = self._calls.get(key)
        if counted is None and len(self._calls) >= MAX_SERIES:
            key = (OTHER, OTHER, call.endpoint, outcome.status)
            counted = self._calls.get(key)
        self._calls[key] = (counted or 0) + 1

    def read(self, figures: Figures) -> None:
        """Add the counts to ``figures``."""
        figures.put_all("retinue_calls_total", dict(self._calls))
        figures.put_all("retinue_call_errors_total", {(name,): n for name, n in self._errors.items()})
        figures.put_all("retinue_messages_total", dict(self._messages))
        figures.put_all("retinue_tokens_total", dict(self._tokens))
        figures.put_all("retinue_cost_dollars_total", {(name,): n for name, n in self._cost_usd.items()})
        figures.histograms["retinue_call_duration_seconds"] = {
            pair: histogram.copy() for pair, histogram in self._durations.items()
        }

    def _count_duration(self, seconds: float, pair: tuple[str, str]) -> None:
        histogram = self._durations.get(pair)
        if histogram is None:
            histogram = self._durations[pair] = Histogram()
        histogram.observe(seconds)
        if self.on_duration is not None:
            self.on_duration(seconds, *pair)

    def _bound(self, agent: str, skill: str) -> tuple[str, str]:
        known = self._agents(agent)
        if known == OTHER:
            return OTHER, OTHER
        if len(self._pair_of) >= MAX_PAIRS:
            return known, OTHER
        pair = self._pair_of[agent, skill] = (known, skill)
        return pair

    def _count_usage(self, agent: str, usage: object) -> None:
        """Count what a model reports; the report of a foreign agent may have any form.

        Further calls are counted where they are made, so only the own part counts here.
        """
        if not isinstance(usage, Mapping):
            return
        own: Mapping[Any, Any] = own_part(usage) if FURTHER in usage else usage
        for direction in ("input", "output"):
            tokens = own.get(f"{direction}_tokens", 0)
            if type(tokens) is int and 0 < tokens < 1e12:
                self._tokens[agent, direction] += tokens
        cost = own.get("cost_usd", 0)
        if type(cost) in (int, float) and 0 < cost < 1e9:
            self._cost_usd[agent] += cost
