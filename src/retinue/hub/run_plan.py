"""Lists the steps that a definition has, for drawings that also show the steps to come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from retinue.workflows.definitions.definition import Step
from retinue.workflows.definitions.run_forms import parse_form

MAX_PLANNED = 500
"""Steps of one plan, with those inside others; the rest is left out."""


def list_plan(definition: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each step of a run's definition as ``{id, kind, name, steps, branches}``; ``name`` is what it calls.

    ``steps`` and ``branches`` are plans of the steps inside, where it has any. A definition that an older
    release stored and this one cannot read has no plan.
    """
    try:
        steps = parse_form(definition).steps
    except ValidationError:
        return []
    return _list(steps, [MAX_PLANNED])


def _list(steps: Iterable[Step], room: list[int]) -> list[dict[str, Any]]:
    plan: list[dict[str, Any]] = []
    for step in steps:
        if room[0] <= 0:
            break
        room[0] -= 1
        row: dict[str, Any] = {"id": step.id, "kind": step.kind}
        if name := step.skill or step.role or step.workflow:
            row["name"] = name
        if step.steps:
            row["steps"] = _list(step.steps, room)
        if step.branches:
            row["branches"] = {branch: _list(inner, room) for branch, inner in step.branches.items()}
        plan.append(row)
    return plan
