"""Ids for steps that have none: that of their role, ``execute``, ``execute-2``, … (SPEC 7, seed 002)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from retinue.mesh.roles import CAPABILITIES
from retinue.workflows.definitions.definition import DEFAULT_ROLE
from retinue.workflows.definitions.documents import Document
from retinue.workflows.definitions.step_parts import STEP_ID

_ASKS = ("agent", "role", "prompt")
_BY_CAPABILITY = {capability: role for role, capability in CAPABILITIES.items()}


def name_steps(document: Document) -> Document:
    """The document with an id on each step that asks for a role; other steps must have theirs."""
    if not isinstance(document.value, Mapping):
        return document
    # copied: in YAML two steps may be one object, which must become two ids
    value = {**document.value, "steps": _copy_steps(document.value.get("steps"))}
    if "steps" not in document.value:
        del value["steps"]
    steps = list(_iterate(value.get("steps")))
    taken = {str(step["id"]) for step in steps if "id" in step}
    for step in steps:
        role = _role_of(step)
        if "id" in step or role is None:
            continue
        number, name = 1, role
        while name in taken:
            number += 1
            name = f"{role}-{number}"
        taken.add(name)
        step["id"] = name
    return replace(document, value=value)


def _role_of(step: Mapping[str, Any]) -> str | None:
    """The role after which a step is called, None for one that asks for none."""
    parallel = step.get("parallel")
    if isinstance(parallel, Mapping):
        if "steps" in step or "branches" in step:
            return None
        role = parallel.get("role")
    elif "skill" in step or not any(key in step for key in _ASKS):
        return None
    else:
        role = step.get("role")
    if not isinstance(role, str) or not STEP_ID.fullmatch(role) or role == "auto":
        return DEFAULT_ROLE
    return _BY_CAPABILITY.get(role, role)


def _copy_steps(steps: Any) -> Any:
    if not isinstance(steps, list):
        return steps
    return [_copy_step(step) for step in steps]


def _copy_step(step: Any) -> Any:
    if not isinstance(step, Mapping):
        return step
    copied = dict(step)
    if "steps" in copied:
        copied["steps"] = _copy_steps(copied["steps"])
    if isinstance(copied.get("branches"), Mapping):
        copied["branches"] = {name: _copy_steps(inner) for name, inner in copied["branches"].items()}
    return copied


def _iterate(steps: Any) -> Iterator[dict[str, Any]]:
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict):
            yield step
            yield from _iterate(step.get("steps"))
            branches = step.get("branches")
            for branch in branches.values() if isinstance(branches, Mapping) else ():
                yield from _iterate(branch)
