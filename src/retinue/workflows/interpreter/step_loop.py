"""The interpreter: executes the steps of a definition in order, as the body of every run.

It keeps the rules of ``runs.ports``: each durable call is named by its path, calls are sequential, and
concurrent work is done in child runs. Paths:

- ``plan``: a step; ``refine#2.build``: a step in the second round of a loop; ``route.fix``: of a switch;
- ``each.left``, ``files#3``: a branch and an item, each a child run;
- after the path of a step: ``/choose`` (choice of an agent), ``@2`` (second attempt), ``/again`` (same
  attempt at another agent, after the first one was unreachable), ``/answer-1`` and ``/answered-1`` (the
  wait for a person who decides about the call, and the call after it), ``/undo`` (compensation),
  ``/handled`` (a failure that ``on_error`` handled).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from retinue.core.errors import (
    ExecutionFailedError,
    ExpressionError,
    OutputInvalidError,
    Problem,
    StepFailedError,
)
from retinue.core.parts import PARTS_FIELD
from retinue.mesh.schema.checks import compile_schema
from retinue.workflows.caller import Caller, cache_key
from retinue.workflows.definitions.definition import (
    DEFAULT_CACHE_TTL_S,
    Definition,
    Step,
    StepKind,
    WorkflowSettings,
    iterate_steps,
)
from retinue.workflows.definitions.run_forms import BranchRun, Bundled, CodeRun, NestedRun, parse_form
from retinue.workflows.definitions.values import parse_duration
from retinue.workflows.expressions.scope import Scope, nearest_output
from retinue.workflows.expressions.templates import render
from retinue.workflows.interpreter.branches import BranchInput, BranchResult, describe_error
from retinue.workflows.interpreter.call_steps import run_call
from retinue.workflows.interpreter.control_steps import (
    run_foreach,
    run_loop,
    run_switch,
    run_timer,
    run_wait_for,
    run_workflow,
)
from retinue.workflows.interpreter.frame import Frame, StepResult, Tools, add_note, record_failure
from retinue.workflows.interpreter.parallel_steps import run_parallel
from retinue.workflows.interpreter.saga import compensate, finish_undoing, record_trials, record_undo
from retinue.workflows.runs.ports import Body, RunContext
from retinue.workflows.runs.records import RunRequest, read_json

RunStep = Callable[[Frame, Step, str], Awaitable[StepResult | None]]


async def _run_think(frame: Frame, step: Step, path: str) -> StepResult:
    # loaded with the first such step: most hubs run none
    from retinue.workflows.interpreter.think.steps import run_think

    return await run_think(frame, step, path)


_KINDS: Mapping[StepKind, RunStep] = {
    "skill": run_call,
    "role": run_call,
    "parallel": run_parallel,
    "loop": run_loop,
    "foreach": run_foreach,
    "switch": run_switch,
    "workflow": run_workflow,
    "think": _run_think,
    "wait_for": run_wait_for,
    "wait": run_timer,
}
_CALLS = ("skill", "role")
"""Kinds whose time limit applies to each attempt; that of other kinds applies to the whole step."""

_CACHE_TIMEOUT_S = 60.0


class StepLoop:
    """Executes the steps of one body."""

    def __init__(
        self,
        context: RunContext,
        request: RunRequest,
        scope: Scope,
        tools: Tools,
        settings: WorkflowSettings,
        nested: Bundled,
    ) -> None:
        self.frame = Frame(context, request, scope, tools, settings, nested, self._run_steps)

    def result(self, output: Any, mark: int) -> BranchResult:
        """The result of a child run, with the entries recorded since the scope had ``mark``."""
        return BranchResult(output, self.frame.scope.list_since(mark), tuple(self.frame.undo))

    async def run_definition(self, definition: Definition) -> Any:
        """Execute a whole workflow; returns its output."""
        if definition.settings.max_duration is not None:
            seconds = parse_duration(definition.settings.max_duration)
            await self.frame.add_limit("", seconds, "settings.max_duration")
        is_whole = not isinstance(definition, NestedRun)
        return await self.run_all(definition.steps, lambda: self._finish(definition), is_whole=is_whole)

    async def run_all(
        self,
        steps: tuple[Step, ...],
        finish: Callable[[], Awaitable[Any]] | None = None,
        *,
        is_whole: bool = False,
    ) -> Any:
        """Execute steps, and compensate the done ones if a step fails; ``is_whole`` = no other run undoes."""
        try:
            await self._run_steps(steps, "")
            output = None if finish is None else await finish()
        except StepFailedError as error:
            failed = await self._undo(error, 0)
            if is_whole:
                failed = await finish_undoing(self.frame, failed)
            self.frame.record_usage()
            raise failed from None
        # Not for other exceptions: what branches used is unknown then.
        self.frame.record_usage()
        return output

    async def _run_steps(self, steps: tuple[Step, ...], prefix: str) -> None:
        place = 0
        while place < len(steps):
            target = await self._run_step(steps[place], f"{prefix}{steps[place].id}")
            place += 1
            if target is not None:
                place = next(n for n, step in enumerate(steps) if step.id == target)

    async def _run_step(self, step: Step, path: str) -> str | None:
        """Execute one step; returns the id of the step to continue with if it is not the next one."""
        frame, limits, mark = self.frame, self.frame.limits, len(self.frame.undo)
        try:
            if step.when is not None and not await frame.holds(step.when, path):
                await add_note(frame.context, path, {"kind": "skip", "when": step.when})
                return None
            if step.timeout is not None and step.kind not in _CALLS and not step.asks_agents:
                await frame.add_limit(path, step.timeout_s, f"timeout of step {path}")
            await self._execute(step, path)
        except StepFailedError as error:
            frame.limits = limits
            return await self._handle(step, path, await self._undo(error, mark))
        frame.limits = limits
        return step.then

    async def _execute(self, step: Step, path: str) -> None:
        """Execute one step, and record how all its effects are undone, even if it fails."""
        frame, result = self.frame, None
        frame.trials = []
        try:
            result = await _KINDS[step.kind](frame, step, path)
            settled = None if result is None else await self._settle(step, path, result)
        except StepFailedError:
            if step.compensate is not None:
                await record_trials(frame, step, path)
                if result is not None:
                    await record_undo(frame, step.compensate, step, path, result)
            raise
        if step.compensate is not None:
            await record_trials(frame, step, path)
            if settled is not None:
                await record_undo(frame, step.compensate, step, path, settled)

    async def _settle(self, step: Step, path: str, result: StepResult) -> StepResult:
        """Record the output of a step, validated and transformed."""
        frame = self.frame
        frame.scope.record(step.id, result.output, **result.facts)
        checked = None if step.kind in _CALLS else step.validate_
        if checked is not None and not await frame.holds(checked, f"{path}/validate"):
            raise await record_failure(frame.context, f"{path}/validate", _unfit(step), step=path)
        if step.transform is None:
            return result
        output = await frame.render(step.transform, f"{path}/transform", step=path, field="transform")
        # a transformed output holds the parts that it is to have
        facts = {key: fact for key, fact in result.facts.items() if key != PARTS_FIELD}
        frame.scope.record(step.id, output, **facts)
        return StepResult(output, facts, result.arguments)

    async def _handle(self, step: Step, path: str, error: StepFailedError) -> str | None:
        """Record a failure as data if ``on_error`` allows it; raises the error otherwise."""
        action = step.on_error or self.frame.settings.on_error
        if action == "stop" or self.frame.is_overdue(error):
            raise error
        found = describe_error(error)
        self.frame.scope.record_error(step.id, found)
        facts = {"kind": "handled", "on_error": action, "failed": error.step, "below": "/handled"}
        await add_note(self.frame.context, f"{path}/handled", facts)
        return action["goto"] if isinstance(action, Mapping) else None

    async def _undo(self, error: StepFailedError, mark: int) -> StepFailedError:
        undone = await compensate(self.frame, mark)
        if not undone:
            return error
        return StepFailedError(error.step, error.agent, error.cause, [*error.compensated, *undone])

    async def _finish(self, definition: Definition) -> Any:
        """The output of the workflow, checked against its schema."""
        output = await self._render_output(definition)
        if definition.output_schema is not None:
            problems = compile_schema(definition.output_schema, "output").problems(output)
            if problems:
                error = OutputInvalidError(definition.name, problems)
                raise await record_failure(self.frame.context, "output/schema", error, step="output")
        return output

    async def _render_output(self, definition: Definition) -> Any:
        if definition.output == "last":
            scope = self.frame.scope
            # a schema says what the output is; parts would break it
            is_plain = definition.output_schema is not None
            return scope.find_nearest() if is_plain else scope.find_nearest_with_parts()
        if definition.output == "merged":
            return self._merge(definition)
        try:
            return await render(definition.output, self.frame.scope.variables, "output")
        except ExpressionError as error:
            raise await record_failure(self.frame.context, "output/value", error, step="output") from None

    def _merge(self, definition: Definition) -> dict[str, Any]:
        calls = {step.id for step in iterate_steps(definition.steps) if step.kind in _CALLS}
        merged: dict[str, Any] = {}
        for step_id, output in self.frame.scope.outputs:
            if step_id in calls:
                merged |= output if isinstance(output, Mapping) else {step_id: output}
        return merged


def _unfit(step: Step) -> OutputInvalidError:
    return OutputInvalidError(f"step {step.id}", [Problem("", f"it does not fulfil {step.validate_}")])


class Interpreter:
    """Executes definitions; `run` is the Body of a Runs implementation.

    ``code`` is the body of runs of workflows in Python; without one they fail.
    """

    def __init__(self, tools: Tools | Caller, *, code: Body | None = None) -> None:
        self._code = code
        self._tools = tools if isinstance(tools, Tools) else Tools(tools)

    async def run(self, context: RunContext, request: RunRequest) -> Any:
        """Execute a workflow, a nested workflow or a branch.

        Returns the output of a workflow, and a `BranchResult` for the other two. Raises StepFailedError
        with the step, its agent, the cause and the compensated steps.
        """
        form = parse_form(request.definition)
        if isinstance(form, CodeRun):
            if self._code is None:
                raise ExecutionFailedError("this process runs no workflows in Python", remedy="use a hub")
            return await self._code(context, request)
        if isinstance(form, BranchRun):
            return await self._run_branch(context, request, form)
        scope = Scope(request.input, (step.id for step in iterate_steps(form.steps)))
        loop = StepLoop(context, request, scope, self._tools, form.settings, form.nested)
        if isinstance(form, NestedRun):
            return loop.result(await loop.run_definition(form), 0).to_json()
        if form.settings.cache == "workflow" and not request.origin.is_tracked:
            return await self._keep_whole(loop, form)
        return await loop.run_definition(form)

    async def _run_branch(self, context: RunContext, request: RunRequest, form: BranchRun) -> Any:
        branch_input = read_json(BranchInput, request.input)
        scope = Scope(branch_input.input, form.known)
        for step_id, entry in branch_input.entries:
            scope.keep(step_id, entry)
        scope.loop = branch_input.loop
        before = scope.mark
        loop = StepLoop(context, request, scope, self._tools, form.settings, form.nested)
        await loop.run_all(form.steps)
        return loop.result(nearest_output(scope.list_since(before)), before).to_json()

    async def _keep_whole(self, loop: StepLoop, definition: Definition) -> Any:
        """The cached output of an equal run, else that of this run, which is then cached."""
        context, request, cache = loop.frame.context, loop.frame.request, self._tools.cache
        key = cache_key("workflow", request.definition, request.input, request.origin.rights)

        async def find() -> Any:
            kept = await cache.find(key)
            return {} if kept is None else {"value": kept.value}

        facts = {"kind": "cache"}
        found = await context.step("cache/find", find, timeout_s=_CACHE_TIMEOUT_S, facts=facts)
        if found.value:
            loop.frame.record_usage()
            return found.value["value"]
        output = await loop.run_definition(definition)
        if loop.frame.budget.is_tracked:
            return output  # who gets it from the cache would not know its sources

        async def keep() -> None:
            await cache.put(key, output, DEFAULT_CACHE_TTL_S)

        await context.step("cache/keep", keep, timeout_s=_CACHE_TIMEOUT_S, facts=facts)
        return output
