"""Replaces agents and time limits of single steps for one run (L-12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retinue.core.errors import InvalidParametersError, Problem, UnknownStepError
from retinue.workflows.definitions.definition import Definition, Step, iterate_steps
from retinue.workflows.definitions.values import parse_duration, render_duration


def apply_overrides(
    definition: Definition,
    *,
    agents: Mapping[str, Any] | None = None,
    timeouts: Mapping[str, Any] | None = None,
) -> Definition:
    """The definition with other agents, or time limits, at the steps that the keys name.

    A key is a step's id, or the 1-based position of one of the outermost steps. An agent is a name, of a
    parallel step also a list of names, and of a step ``think`` its model. A time limit is a text with a unit,
    or milliseconds (specification 7.3).
    Raises UnknownStepError with the ids, and InvalidParametersError for what a step cannot take.
    """
    changes: dict[str, dict[str, Any]] = {}
    for key, agent in (agents or {}).items():
        step = _find(definition, key)
        changes.setdefault(step.id, {}).update(_with_agent(step, agent))
    for key, timeout in (timeouts or {}).items():
        step = _find(definition, key)
        changes.setdefault(step.id, {})["timeout"] = _read_timeout(step.id, timeout)
    if not changes:
        return definition
    return definition.model_copy(update={"steps": _rebuild(definition.steps, changes)})


def _find(definition: Definition, key: str) -> Step:
    steps = list(iterate_steps(definition.steps))
    match = next((step for step in steps if step.id == key), None)
    if match is None and key.isdecimal() and 1 <= int(key) <= len(definition.steps):
        return definition.steps[int(key) - 1]
    if match is None:
        raise UnknownStepError(key, known=[step.id for step in steps])
    return match


def _with_agent(step: Step, agent: Any) -> dict[str, Any]:
    names = [agent] if isinstance(agent, str) else agent
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise _refused(f"overrides.agents.{step.id}", "it must be an agent's name")
    if step.asks_agents and step.parallel is not None:
        return {"parallel": step.parallel.model_copy(update={"agents": names})}
    if step.kind not in ("skill", "role", "think"):
        raise _refused(f"overrides.agents.{step.id}", f"a {step.kind} step calls no agent itself")
    if len(names) != 1:
        raise _refused(f"overrides.agents.{step.id}", f"a {step.kind} step calls one agent")
    name = names[0].replace("${{", "$${{")
    return {"agent": name} if step.think is None else {"think": step.think.model_copy(update={"model": name})}


def _read_timeout(step_id: str, timeout: Any) -> str:
    place = f"overrides.timeouts.{step_id}"
    try:
        if isinstance(timeout, str):
            parse_duration(timeout)
            return timeout
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise ValueError("it must be milliseconds, or a text with a unit")
        rendered = render_duration(timeout / 1000)
        parse_duration(rendered)
        return rendered
    except (ValueError, OverflowError) as error:
        raise _refused(place, str(error)) from None


def _refused(place: str, problem: str) -> InvalidParametersError:
    return InvalidParametersError([Problem(place, f"{place}: {problem}")])


def _rebuild(steps: Sequence[Step], changes: Mapping[str, Mapping[str, Any]]) -> tuple[Step, ...]:
    rebuilt = []
    for step in steps:
        update: dict[str, Any] = dict(changes.get(step.id, {}))
        if step.steps is not None:
            update["steps"] = _rebuild(step.steps, changes)
        if step.branches is not None:
            update["branches"] = {name: _rebuild(inner, changes) for name, inner in step.branches.items()}
        rebuilt.append(step.model_copy(update=update) if update else step)
    return tuple(rebuilt)
