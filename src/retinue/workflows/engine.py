"""The interpreter: the body of every run, which walks a definition.

It keeps the rules of ``runs``: each durable call has the path of its node, one comes after the
other, and branches of a parallel step are child runs. Paths: ``plan``; ``refine#2.build`` (a loop's
second round); ``each.left`` (a branch, and the path of its child run); below a node ``…/choose``
(the choice of agent), ``…@2`` (the second attempt), ``…/again`` (the same attempt at another agent
because the first was unreachable, once).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.errors import ExpressionError, StepFailedError
from retinue.workflows.caller import Caller
from retinue.workflows.definition import Definition, Loop, Step, iterate_steps
from retinue.workflows.notes import fail, note
from retinue.workflows.runs import ChildOutcome, Fault, RunContext, RunRequest
from retinue.workflows.scope import Scope
from retinue.workflows.skill_steps import SkillSteps
from retinue.workflows.spending import Spending
from retinue.workflows.templates import parse_condition, render_value


class Interpreter:
    """Runs definitions; its `run` is the Body that the Runs are made with."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def run(self, context: RunContext, request: RunRequest) -> Any:
        """Walk the definition of a run, or the branch of one, to its end.

        Gives the output; of a branch ``{"outputs": [[id, value], …], "output": …, "calls": …}``.
        Raises StepFailedError, which names the step, its agent and the cause.
        """
        if "branch" in request.definition:
            return await self._run_branch(context, request)
        definition = Definition.from_json(request.definition)
        scope = Scope(request.input, (step.id for step in iterate_steps(definition.steps)))
        walk = _Walk(context, request, scope, self._caller)
        await walk.run_steps(definition.steps, "")
        return await walk.render_output(definition)

    async def _run_branch(self, context: RunContext, request: RunRequest) -> Any:
        branch = Definition.from_json({"name": "branch", "steps": request.definition["branch"]})
        scope = Scope(request.input["input"], request.definition["known"])
        for step_id, output in request.input["outputs"]:
            scope.record(step_id, output)
        scope.loop = request.input["loop"]
        before = scope.mark
        walk = _Walk(context, request, scope, self._caller)
        await walk.run_steps(branch.steps, "")
        given = scope.list_since(before)
        return {
            "outputs": [list(pair) for pair in given],
            "output": given[-1][1] if given else None,
            "calls": walk.spending.used,
        }


class _Walk:
    """One walk through one body."""

    def __init__(self, context: RunContext, request: RunRequest, scope: Scope, caller: Caller) -> None:
        self._context = context
        self._request = request
        self._scope = scope
        self.spending = Spending(request.ambient.get("trace"))
        self._skills = SkillSteps(context, request.ambient, scope, caller, self.spending)

    async def run_steps(self, steps: tuple[Step, ...], prefix: str) -> None:
        for step in steps:
            await self._run_step(step, f"{prefix}{step.id}")

    async def _run_step(self, step: Step, path: str) -> None:
        if step.when is not None and not await self._holds(step.when, path):
            await note(self._context, path, {"kind": "skip", "when": step.when})
            return
        if step.parallel is not None:
            await self._run_parallel(step, path)
        elif step.loop is not None:
            await self._run_loop(step, step.loop, path)
        else:
            self._scope.record(step.id, await self._skills.run(step, path))

    async def _run_loop(self, step: Step, loop: Loop, path: str) -> None:
        around, before = self._scope.loop, self._scope.mark
        for index in range(1, loop.max + 1):
            self._scope.loop = {"index": index}
            await self.run_steps(step.steps or (), f"{path}#{index}.")
            if loop.until is not None and await self._holds(loop.until, f"{path}#{index}/until"):
                break
        self._scope.loop = around
        given = self._scope.list_since(before)
        if given:
            self._scope.record(step.id, given[-1][1])

    async def _run_parallel(self, step: Step, path: str) -> None:
        branches = step.list_branches()
        ambient = {**self._request.ambient, "trace": self.spending.divide(len(branches))}
        children = [
            await self._context.child(
                f"{path}.{name}", self._branch_request(f"{path}.{name}", steps, ambient)
            )
            for name, steps in branches
        ]
        outcomes = await self._context.wait(f"{path}/wait", children, "all")
        outputs: dict[str, Any] = {}
        for (name, _), outcome in zip(branches, outcomes, strict=True):
            if outcome.status != "done":
                raise _branch_failure(outcome)
            for step_id, output in outcome.value["outputs"]:
                self._scope.record(step_id, output)
            outputs[name] = outcome.value["output"]
            self.spending.settle(outcome.value.get("calls", 0))
        self._scope.record(step.id, outputs)

    def _branch_request(self, path: str, steps: tuple[Step, ...], ambient: Mapping[str, Any]) -> RunRequest:
        return RunRequest(
            name=f"{self._request.name}/{path}",
            definition={
                "branch": [s.model_dump(mode="json", by_alias=True, exclude_defaults=True) for s in steps],
                "known": self._scope.known,
            },
            input={
                "input": self._scope.input,
                "outputs": [list(pair) for pair in self._scope.outputs],
                "loop": self._scope.loop,
            },
            ambient=ambient,
        )

    async def render_output(self, definition: Definition) -> Any:
        """The value of the run: see ``Definition.output``."""
        if definition.output == "last":
            return self._scope.find_nearest()
        if definition.output == "merged":
            return self._merge(definition)
        try:
            return render_value(definition.output, self._scope.variables)
        except ExpressionError as error:
            raise await fail(self._context, "output/value", error, step="output") from None

    def _merge(self, definition: Definition) -> dict[str, Any]:
        calls = {step.id for step in iterate_steps(definition.steps) if step.skill is not None}
        merged: dict[str, Any] = {}
        for step_id, output in self._scope.outputs:
            if step_id in calls:
                merged |= output if isinstance(output, Mapping) else {step_id: output}
        return merged

    async def _holds(self, condition: str, path: str) -> bool:
        try:
            return parse_condition(condition).holds(self._scope.variables)
        except ExpressionError as error:
            raise await fail(self._context, path, error) from None


def _branch_failure(outcome: ChildOutcome) -> StepFailedError:
    """The failure of a branch, with the path of its step seen from here."""
    fault = outcome.fault or Fault(type="cancelled", message="the branch was cancelled", on_error="cancelled")
    if fault.type == StepFailedError.type:
        inner = StepFailedError.from_data(fault.data)
        return StepFailedError(f"{outcome.child.path}/{inner.step}", inner.agent, inner.cause)
    return StepFailedError(outcome.child.path, None, fault.to_json())
