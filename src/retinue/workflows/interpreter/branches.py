"""Runs branches, items and nested workflows as concurrent child runs.

The body starts the child runs in order, and continues by the recorded order of their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retinue.core.errors import StepFailedError, TooLargeError
from retinue.workflows.definitions.definition import Step
from retinue.workflows.definitions.run_forms import BranchRun, render_form
from retinue.workflows.expressions.scope import StepState
from retinue.workflows.interpreter.branch_inputs import find_branch_reads
from retinue.workflows.interpreter.frame import Frame, Undo, record_failure
from retinue.workflows.runs.records import (
    ChildOutcome,
    ChildRun,
    Fault,
    Origin,
    RunRequest,
    as_json,
    read_json,
)


@dataclass(frozen=True, slots=True)
class BranchInput:
    """The input of a branch: the parts of the run's input and of earlier entries that its steps read."""

    input: Any
    entries: tuple[tuple[str, StepState], ...]
    loop: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BranchResult:
    """The result of a branch or a nested workflow: output, entries of its steps, compensations."""

    output: Any
    entries: tuple[tuple[str, StepState], ...]
    undo: tuple[Undo, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "output": self.output,
            "entries": as_json(self.entries),
            "undo": [undo.to_json() for undo in self.undo],
        }

    @classmethod
    def of(cls, outcome: ChildOutcome) -> BranchResult:
        """The result of a done child run."""
        return read_json(cls, outcome.value)


def output_of(outcome: ChildOutcome) -> Any:
    """The output of a done child run; cheaper than `BranchResult.of`."""
    return outcome.value["output"]


@dataclass(frozen=True, slots=True)
class Branch:
    """A child run to start: its path and its request."""

    path: str
    request: RunRequest


@dataclass(frozen=True, slots=True)
class BranchPlan:
    """Creates the requests of child runs that execute the same steps."""

    name: str
    definition: Mapping[str, Any]
    given: BranchInput
    origin: Origin

    @classmethod
    def of(cls, frame: Frame, steps: tuple[Step, ...]) -> BranchPlan:
        """A plan for steps that are nested in a step of this body."""
        reads, scope = find_branch_reads(steps), frame.scope
        form = BranchRun.model_validate(
            {
                "branch": steps,
                "known": reads.pick_known(scope.known),
                "settings": frame.settings,
                "nested": frame.nested if reads.workflows else {},
            }
        )
        inputs = BranchInput(reads.pick_input(scope.input), reads.pick_entries(scope.entries), scope.loop)
        return cls(frame.request.name, render_form(form), inputs, child_origin(frame))

    def branch(self, path: str, *, loop: Mapping[str, Any] | None = None) -> Branch:
        """The branch at a path, by default with the ``loop`` variables of the body."""
        inputs = self.given if loop is None else replace(self.given, loop=loop)
        return Branch(path, RunRequest(f"{self.name}/{path}", self.definition, as_json(inputs), self.origin))


def child_origin(frame: Frame) -> Origin:
    """The origin of child runs: that of this run, with the limits that apply now."""
    return replace(frame.request.origin, limits=frame.limits)


Ended = Mapping[int, ChildOutcome]
"""The ended branches, by their index."""


async def run_branches(
    frame: Frame,
    path: str,
    branches: Sequence[Branch],
    *,
    concurrency: int | None = None,
    is_decided: Callable[[Ended], bool] | None = None,
    stop_at_failure: bool = False,
) -> dict[int, ChildOutcome]:
    """Run branches, at most ``concurrency`` at once; returns the ended ones.

    Once ``is_decided``, the branches that still run are cancelled. With ``stop_at_failure``, no branch is
    started after a failure, and the running ones end first. Each branch gets an equal share of the call
    budget; the share of a branch with unknown usage counts as used.
    """
    origin = frame.budget.divide(len(branches))
    shared = [Branch(branch.path, _with_budget(branch.request, origin)) for branch in branches]
    ended = await _run_shared(frame, path, shared, concurrency, is_decided, stop_at_failure)
    for place in range(len(branches)):
        frame.budget.settle_branch(origin, ended.get(place))
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
        children: list[ChildRun] = []
        for branch in branches:
            children.append(await _start(frame, path, branch, children))
        return dict(enumerate(await context.wait(f"{path}/wait", children, "all")))
    ended: dict[int, ChildOutcome] = {}
    running: dict[int, ChildRun] = {}
    begun = 0
    while True:
        may_start = not (stop_at_failure and any(branch.status != "done" for branch in ended.values()))
        while may_start and begun < len(branches) and len(running) < (concurrency or len(branches)):
            branch = branches[begun]
            running[begun] = await _start(frame, path, branch, list(running.values()))
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


async def _start(frame: Frame, path: str, branch: Branch, running: Sequence[ChildRun]) -> ChildRun:
    """Start a child run; where the run may store no more, the ``running`` ones are cancelled."""
    try:
        return await frame.context.child(branch.path, branch.request)
    except TooLargeError as error:
        if running:
            await frame.context.cancel(f"{path}/stop", running)
        raise await record_failure(frame.context, f"{branch.path}/size", error, step=path) from None


def _with_budget(request: RunRequest, origin: Origin) -> RunRequest:
    return replace(
        request,
        origin=replace(
            request.origin, trace=origin.trace, allowance=origin.allowance, sources=origin.sources
        ),
    )


def fault_of(outcome: ChildOutcome) -> Fault:
    """The fault of a branch that is not done."""
    return outcome.fault or Fault(type="cancelled", message="the branch was cancelled", on_error="cancelled")


AGAIN = "again"
"""The key under which the outcome of a failed compensation holds that compensation, until the run ends."""


def hide_undo(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of a compensation as it is shown."""
    return {key: value for key, value in outcome.items() if key != AGAIN}


def _relocate(outcome: Mapping[str, Any], below: str) -> dict[str, Any]:
    """The outcome of a compensation in a child run, with paths relative to its parent."""
    moved = {**outcome, "step": f"{below}/{outcome['step']}"}
    if "attempt" in outcome:
        moved["attempt"] = f"{below}/{outcome['attempt']}"
    if AGAIN in outcome:
        moved[AGAIN] = read_json(Undo, outcome[AGAIN]).moved_below(below).to_json()
    return moved


def find_failure(ended: Ended) -> StepFailedError | None:
    """The failure of the first branch of the definition that failed, with what all of them have undone."""
    failures = [branch_failure(ended[place]) for place in sorted(ended) if ended[place].status != "done"]
    if not failures:
        return None
    first = failures[0]
    undone = [entry for failure in failures for entry in failure.compensated]
    return StepFailedError(first.step, first.agent, first.cause, undone)


def branch_failure(outcome: ChildOutcome) -> StepFailedError:
    """The failure of a branch, with the path of its step relative to this body."""
    fault = fault_of(outcome)
    if fault.type != StepFailedError.type:
        return StepFailedError(outcome.child.path, None, as_json(fault))
    inner = StepFailedError.from_data(fault.data)
    below = outcome.child.path
    undone = [_relocate(entry, below) for entry in inner.compensated]
    return StepFailedError(f"{below}/{inner.step}", inner.agent, inner.cause, undone)


def adopt_undo(frame: Frame, outcome: ChildOutcome, *, as_mesh: bool = False) -> BranchResult:
    """The result of a done branch; its compensations are added to those of this body.

    ``as_mesh`` = the branch had the scopes of the mesh, which its compensations need too.
    """
    result = BranchResult.of(outcome)
    below = outcome.child.path
    frame.undo += [undo.moved_below(below, as_mesh=as_mesh) for undo in result.undo]
    return result


def adopt_done(frame: Frame, ended: Ended) -> dict[int, BranchResult]:
    """The results of all done branches, in the order of the definition, as `adopt_undo`."""
    done = [place for place in sorted(ended) if ended[place].status == "done"]
    return {place: adopt_undo(frame, ended[place]) for place in done}


def read_error(fault: Fault) -> dict[str, Any]:
    """A failure as expressions see it: the cause, with step and agent."""
    if fault.type == StepFailedError.type:
        return describe_error(StepFailedError.from_data(fault.data))
    return {**as_json(fault), "step": "", "agent": None}


def describe_error(error: StepFailedError) -> dict[str, Any]:
    """An error as `read_error` gives it."""
    fault = {**error.cause, "step": error.step, "agent": error.agent}
    if error.compensated:
        fault["compensated"] = [hide_undo(entry) for entry in error.compensated]
    return fault
