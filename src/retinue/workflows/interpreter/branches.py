"""Child runs side by side: a few at a time, until all have ended or it is decided.

They are started in order from the one body, and what the body does next it decides by the recorded
order in which they ended (FACTS part 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retinue.core.errors import StepFailedError
from retinue.workflows.interpreter.frame import Frame
from retinue.workflows.interpreter.spending import Origin
from retinue.workflows.run_records import (
    Child,
    ChildOutcome,
    Fault,
    RunRequest,
)


@dataclass(frozen=True, slots=True)
class Branch:
    """One child run to be: the path at which it is started, and its request."""

    path: str
    request: RunRequest


Ended = Mapping[int, ChildOutcome]
"""The branches that have ended, by their place in the list."""


async def run_branches(
    frame: Frame,
    path: str,
    branches: Sequence[Branch],
    *,
    concurrency: int | None = None,
    is_decided: Callable[[Ended], bool] | None = None,
    stop_at_failure: bool = False,
) -> dict[int, ChildOutcome]:
    """Run branches, at most ``concurrency`` at once; those that had ended when it was decided.

    What still runs then is cancelled, calls in flight included. With ``stop_at_failure`` none is
    started after a failure; those that run end first. Each gets an equal part of the calls that are
    left; one that does not tell what it used keeps its part.
    """
    origin = frame.spending.divide(len(branches))
    shared = [_with_origin(branch, origin) for branch in branches]
    ended = await _run_shared(frame, path, shared, concurrency, is_decided, stop_at_failure)
    for place in range(len(branches)):
        frame.spending.settle_branch(origin, ended.get(place))
    return ended


async def _run_shared(
    frame: Frame,
    path: str,
    branches: Sequence[Branch],
    concurrency: int | None,
    is_decided: Callable[[Ended], bool] | None,
    stop_at_failure: bool,
) -> dict[int, ChildOutcome]:
    context = frame.context
    if is_decided is None and (concurrency is None or concurrency >= len(branches)):
        children = [await context.child(branch.path, branch.request) for branch in branches]
        return dict(enumerate(await context.wait(f"{path}/wait", children, "all")))
    ended: dict[int, ChildOutcome] = {}
    running: dict[int, Child] = {}
    begun = 0
    while True:
        may_start = not (stop_at_failure and any(one.status != "done" for one in ended.values()))
        while may_start and begun < len(branches) and len(running) < (concurrency or len(branches)):
            branch = branches[begun]
            running[begun] = await context.child(branch.path, branch.request)
            begun += 1
        if not running:
            return ended
        (outcome,) = await context.wait(f"{path}/wait#{len(ended) + 1}", list(running.values()), "first")
        index = next(place for place, child in running.items() if child == outcome.child)
        del running[index]
        ended[index] = outcome
        if is_decided is not None and is_decided(ended):
            if running:
                await context.cancel(f"{path}/stop", list(running.values()))
            return ended


def _with_origin(branch: Branch, origin: Origin | None) -> Branch:
    ambient = {**branch.request.ambient, "trace": origin}
    return Branch(branch.path, replace(branch.request, ambient=ambient))


def fault_of(outcome: ChildOutcome) -> Fault:
    """Why a branch is not done."""
    return outcome.fault or Fault(type="cancelled", message="the branch was cancelled", on_error="cancelled")


def branch_failure(outcome: ChildOutcome) -> StepFailedError:
    """The failure of a branch, with the path of its step seen from here."""
    fault = fault_of(outcome)
    if fault.type != StepFailedError.type:
        return StepFailedError(outcome.child.path, None, fault.to_json())
    inner = StepFailedError.from_data(fault.data)
    below = outcome.child.path
    undone = [{**one, "step": f"{below}/{one['step']}"} for one in inner.compensated]
    return StepFailedError(f"{below}/{inner.step}", inner.agent, inner.cause, undone)


def adopt_undo(frame: Frame, outcome: ChildOutcome) -> None:
    """Take over what a done branch would have to undo, should something around it fail."""
    for entry in outcome.value["undo"]:
        frame.undo.append({**entry, "path": f"{outcome.child.path}/{entry['path']}"})


def first_failure(ended: Ended) -> ChildOutcome | None:
    """The failed branch that stands first in the definition."""
    return next((ended[place] for place in sorted(ended) if ended[place].status != "done"), None)


def read_error(fault: Fault) -> dict[str, Any]:
    """A failure as expressions read it: the cause, and the step and agent where it happened."""
    if fault.type == StepFailedError.type:
        return describe_error(StepFailedError.from_data(fault.data))
    return {**fault.to_json(), "step": "", "agent": None}


def describe_error(error: StepFailedError) -> dict[str, Any]:
    """As `read_error`, of an error."""
    found = {**error.cause, "step": error.step, "agent": error.agent}
    if error.compensated:
        found["compensated"] = [dict(one) for one in error.compensated]
    return found
