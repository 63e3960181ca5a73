"""One walk through one body: its steps in order, what each leads to, and what is undone at the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from retinue.core.errors import ExpressionError, OutputInvalidError, Problem, StepFailedError
from retinue.mesh.schema import compile_schema
from retinue.workflows.definitions.definition import Definition, Step, StepKind, iterate_steps
from retinue.workflows.definitions.durations import parse_duration
from retinue.workflows.definitions.step_parts import Settings
from retinue.workflows.expressions.scope import Scope
from retinue.workflows.expressions.templates import render_value
from retinue.workflows.interpreter.branches import describe_error
from retinue.workflows.interpreter.call_steps import run_call
from retinue.workflows.interpreter.frame import Frame, Result, Tools
from retinue.workflows.interpreter.nested_steps import run_workflow
from retinue.workflows.interpreter.nesting_steps import run_foreach, run_loop, run_switch
from retinue.workflows.interpreter.notes import fail, note
from retinue.workflows.interpreter.parallel_steps import run_parallel
from retinue.workflows.interpreter.saga import compensate, note_done
from retinue.workflows.interpreter.wait_steps import run_wait_for
from retinue.workflows.run_records import RunRequest
from retinue.workflows.runs import RunContext

RunStep = Callable[[Frame, Step, str], Awaitable[Result | None]]

_KINDS: Mapping[StepKind, RunStep] = {
    "skill": run_call,
    "role": run_call,
    "parallel": run_parallel,
    "loop": run_loop,
    "foreach": run_foreach,
    "switch": run_switch,
    "workflow": run_workflow,
    "wait_for": run_wait_for,
}
_CALLS = ("skill", "role")
"""Whose time limit is that of each attempt; of the other kinds it is that of all they do."""


class Walk:
    """One walk through one body."""

    def __init__(
        self,
        context: RunContext,
        request: RunRequest,
        scope: Scope,
        tools: Tools,
        settings: Settings,
        nested: Mapping[str, Any],
    ) -> None:
        self.frame = Frame(context, request, scope, tools, settings, nested, self._run_steps)

    def envelope(self, output: Any, mark: int) -> dict[str, Any]:
        """What a child run gives to the body that started it."""
        entries = self.frame.scope.list_since(mark)
        return {
            "output": output,
            "entries": [list(pair) for pair in entries],
            "undo": self.frame.undo,
        }

    async def run_definition(self, definition: Definition) -> Any:
        """Walk a whole workflow; its output."""
        if definition.settings.max_duration is not None:
            seconds = parse_duration(definition.settings.max_duration)
            await self.frame.add_limit("", seconds, "settings.max_duration")
        return await self.run_all(definition.steps, lambda: self._finish(definition))

    async def run_all(
        self, steps: tuple[Step, ...], finish: Callable[[], Awaitable[Any]] | None = None
    ) -> Any:
        """Walk to the end, and undo what was done when that fails."""
        try:
            await self._run_steps(steps, "")
            given = None if finish is None else await finish()
        except StepFailedError as error:
            failed = await self._undo(error, 0)
            self.frame.tell_calls()
            raise failed from None
        # of a body that ends otherwise nobody knows what its branches have used
        self.frame.tell_calls()
        return given

    async def _run_steps(self, steps: tuple[Step, ...], prefix: str) -> None:
        place = 0
        while place < len(steps):
            target = await self._run_step(steps[place], f"{prefix}{steps[place].id}")
            place += 1
            if target is not None:
                place = next(n for n, step in enumerate(steps) if step.id == target)

    async def _run_step(self, step: Step, path: str) -> str | None:
        """Run one step; the id of the step to go on with where that is not the next."""
        frame, limits, mark = self.frame, self.frame.limits, len(self.frame.undo)
        try:
            if step.when is not None and not await frame.holds(step.when, path):
                await note(frame.context, path, {"kind": "skip", "when": step.when})
                return None
            if step.timeout is not None and step.kind not in _CALLS and not step.asks_agents:
                await frame.add_limit(path, step.timeout_s, f"timeout of step {path}")
            result = await _KINDS[step.kind](frame, step, path)
            if result is not None:
                result = await self._settle(step, path, result)
        except StepFailedError as error:
            frame.limits = limits
            return await self._handle(step, path, await self._undo(error, mark))
        frame.limits = limits
        if result is not None:
            note_done(frame, step, path, result)
        return step.then

    async def _settle(self, step: Step, path: str, result: Result) -> Result:
        """Record what a step gave, transformed where it says so."""
        frame = self.frame
        frame.scope.record(step.id, result.output, **result.facts)
        checked = None if step.kind in _CALLS else step.validate_
        if checked is not None and not await frame.holds(checked, f"{path}/validate"):
            raise await fail(frame.context, f"{path}/validate", _unfit(step), step=path)
        if step.transform is None:
            return result
        output = await frame.render(step.transform, f"{path}/transform", step=path)
        frame.scope.record(step.id, output, **result.facts)
        return Result(output, result.facts, result.arguments)

    async def _handle(self, step: Step, path: str, error: StepFailedError) -> str | None:
        """Let a failed step be data, where its ``on_error`` wants that; raises the error otherwise."""
        action = step.on_error or self.frame.settings.on_error
        if action == "stop" or self.frame.is_overdue(error):
            raise error
        found = describe_error(error)
        self.frame.scope.record_error(step.id, found)
        facts = {"kind": "handled", "on_error": action, "failed": error.step, "below": "/handled"}
        await note(self.frame.context, f"{path}/handled", facts)
        return action["goto"] if isinstance(action, Mapping) else None

    async def _undo(self, error: StepFailedError, mark: int) -> StepFailedError:
        undone = await compensate(self.frame, mark)
        if not undone:
            return error
        return StepFailedError(error.step, error.agent, error.cause, [*error.compensated, *undone])

    async def _finish(self, definition: Definition) -> Any:
        """The value of the run, checked: see ``Definition.output``."""
        output = await self._render_output(definition)
        if definition.output_schema is not None:
            problems = compile_schema(definition.output_schema, "output").problems(output)
            if problems:
                error = OutputInvalidError(definition.name, problems)
                raise await fail(self.frame.context, "output/schema", error, step="output")
        return output

    async def _render_output(self, definition: Definition) -> Any:
        if definition.output == "last":
            return self.frame.scope.find_nearest()
        if definition.output == "merged":
            return self._merge(definition)
        try:
            return render_value(definition.output, self.frame.scope.variables)
        except ExpressionError as error:
            raise await fail(self.frame.context, "output/value", error, step="output") from None

    def _merge(self, definition: Definition) -> dict[str, Any]:
        calls = {step.id for step in iterate_steps(definition.steps) if step.kind in _CALLS}
        merged: dict[str, Any] = {}
        for step_id, output in self.frame.scope.outputs:
            if step_id in calls:
                merged |= output if isinstance(output, Mapping) else {step_id: output}
        return merged


def _unfit(step: Step) -> OutputInvalidError:
    return OutputInvalidError(f"step {step.id}", [Problem("", f"it does not fulfil {step.validate_}")])
