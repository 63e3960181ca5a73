"""Renders the result of a tool from its run (L-28, L-29): output, agents, duration, metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from retinue.core.call import Answer
from retinue.core.usage import sum_usages
from retinue.hub.orchestration.step_lines import CALLS
from retinue.workflows.orchestrator import Selection
from retinue.workflows.runs.records import RunEvent, StepRecord, as_json, read_json

Json = dict[str, Any]

METADATA_KEY = "lexical/metadata"
"""In ``_meta`` of an MCP result: typed clients drop the seed's own place for the metadata."""

_ASKED = (*CALLS, "model")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts in the events and records of a run: its agents, by role too, and their usage together."""

    agents: tuple[str, ...]
    agents_by_role: Mapping[str, tuple[str, ...]]
    usage: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class OrchestrationResult:
    """The result of one request. ``choice`` and ``warnings`` are of the request, the rest is kept."""

    tool: str
    run: str
    output: Any
    agents: tuple[str, ...]
    usage: Mapping[str, Any] | None = None
    reasons: tuple[str, ...] = ()
    choice: Selection | None = None
    warnings: tuple[str, ...] = ()
    is_cached: bool = False

    def to_json(self) -> Json:
        """The form that the cache keeps."""
        fields: Json = as_json(self)
        return fields

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OrchestrationResult:
        return read_json(cls, value)

    @property
    def result(self) -> Json:
        """The result as far as it depends on the run alone.

        Of ``orchestrate`` the main output comes first, and the others of the workflow are ``details``.
        """
        if self.tool == "orchestrate" and isinstance(self.output, Mapping) and "output" in self.output:
            more = {
                key: value for key, value in self.output.items() if key not in ("output", "agent", "agents")
            }
            details = _in_milliseconds(more)
            return {"output": self.output["output"], **({"details": details} if details else {})}
        if self.tool == "orchestrate_parallel":
            value: Json = _in_milliseconds(self.output)
            return value
        return {"output": self.output}


def render_answer(answered: OrchestrationResult, workflow: str, duration_ms: float) -> Answer:
    """The result of a tool with its metadata, and the tokens and money that it took.

    The usage of the call itself is that of the run, which the guard adds.
    """
    duration = round(duration_ms)
    metadata: Json = {
        "workflow": workflow,
        "agents": list(answered.agents),
        "cached": answered.is_cached,
        "duration": duration,
    }
    if answered.warnings:
        metadata["warnings"] = list(answered.warnings)
    result: Json = {
        "run": answered.run,
        "workflow": workflow,
        **answered.result,
        "agents": list(answered.agents),
        "fromCache": answered.is_cached,
        "duration": duration,
    }
    if answered.choice is not None:
        result["choice"] = as_json(answered.choice)
    if answered.reasons:
        result["reasons"] = list(answered.reasons)
    usage = None if answered.is_cached else answered.usage
    if usage:
        result["usage"] = dict(usage)
    return Answer({**result, "metadata": metadata}, meta={METADATA_KEY: metadata})


def read_run(events: Iterable[RunEvent], steps: Iterable[StepRecord]) -> RunFacts:
    """The agents that answered, in the order in which they were asked; all that were asked if none did."""
    asked: dict[str, None] = {}
    answered: set[str] = set()
    by_role: dict[str, dict[str, None]] = {}
    for event in events:
        agent = event.facts.get("agent")
        if event.facts.get("kind") not in _ASKED or not isinstance(agent, str):
            continue
        asked.setdefault(agent)
        if event.kind == "step_finished" and "error" not in event.facts:
            answered.add(agent)
            if role := event.facts.get("role"):
                by_role.setdefault(role, {}).setdefault(agent)
    agents = tuple(agent for agent in asked if agent in answered) or tuple(asked)
    return RunFacts(agents, {role: tuple(names) for role, names in by_role.items()}, sum_usage(steps))


def _in_milliseconds(value: Any) -> Any:
    """Ballots with the seed's key for their time."""
    if isinstance(value, Mapping):
        return {
            "duration" if key == "duration_ms" else key: round(inner)
            if key == "duration_ms"
            else _in_milliseconds(inner)
            for key, inner in value.items()
        }
    return [_in_milliseconds(item) for item in value] if isinstance(value, list | tuple) else value


def sum_usage(steps: Iterable[StepRecord]) -> Json | None:
    """The numbers of all usages, added by key."""
    usages = [usage for step in steps if (usage := step.outcome.spent)]
    total = (sum_usages(usages) if usages else None) or {}
    return {key: number for key, number in total.items() if isinstance(number, int | float)} or None
