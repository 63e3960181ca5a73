"""Adds the steps to come to those that have begun, from the plan of a run's definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]
Plan = Sequence[Mapping[str, Any]]

TO_COME, NOT_RUN = "to come", "not run"
"""The status of a step that has not begun, in a run that goes on and in one that has ended."""

_OPEN = ("running", "waiting")


def add_steps_to_come(steps: Sequence[Json], plan: Plan, *, ended: bool) -> list[Json]:
    """The steps of a run in the order of its plan, with those that have not begun.

    Of an ended run only the outermost level is completed: what a branch or an iteration left out says
    nothing. A step whose branch was not chosen is no step to come.
    """
    return _complete(steps, plan, "", NOT_RUN if ended else TO_COME, is_open=not ended)


def _complete(steps: Sequence[Json], plan: Plan, prefix: str, status: str, *, is_open: bool) -> list[Json]:
    begun = {step["step"]: step for step in steps}
    rows: list[Json] = []
    for planned in plan:
        path = f"{prefix}{planned['id']}"
        step = begun.pop(path, None)
        if step is None:
            rows.append(_plan(path, planned, status))
        else:
            if step.get("kind") == "group":
                # only the definition says what kind of group it is
                step = {**step, "kind": planned["kind"]}
            rows.append(_open(step, planned, status) if is_open and step.get("status") in _OPEN else step)
    return rows + list(begun.values())


def _open(step: Json, planned: Mapping[str, Any], status: str) -> Json:
    """A step that goes on, with the steps to come of its branches and iterations that go on."""
    path, kind, branches = step["step"], planned.get("kind"), planned.get("branches") or {}
    below = list(step.get("steps") or [])
    if kind == "switch":
        below = _complete(below, branches.get(step.get("branch"), ()), f"{path}.", status, is_open=True)
    elif kind in ("loop", "foreach", "parallel"):
        # l#1.step of a loop, e#1/step of a foreach, p.left/step of a parallel step
        mark = "." if kind == "loop" else "/"
        for place, group in enumerate(below):
            inner = branches.get(group["step"][len(path) + 1 :]) if branches else planned.get("steps")
            if inner and group.get("status") in _OPEN and (branches or kind != "parallel"):
                steps = group.get("steps") or []
                rest = _complete(steps, inner, f"{group['step']}{mark}", status, is_open=True)
                below[place] = {**group, "steps": rest}
    if kind == "parallel":
        known = {group["step"] for group in below}
        names = [f"{path}.{name}" for name in branches]
        below += [{"step": name, "kind": "branch", "status": status} for name in names if name not in known]
    return {**step, "steps": below} if below else step


def _plan(path: str, planned: Mapping[str, Any], status: str) -> Json:
    row: Json = {"step": path, "kind": planned["kind"], "status": status}
    if planned.get("name"):
        row["skill"] = planned["name"]
    return row
