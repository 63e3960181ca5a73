"""Executes workflows in Python, as the body of their runs."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from retinue.core.errors import (
    ExecutionFailedError,
    InvalidSettingError,
    NondeterminismError,
    OutputInvalidError,
    RetinueError,
    StepFailedError,
)
from retinue.mesh.schema.checks import compile_schema
from retinue.workflows.definitions.loading import Loaded
from retinue.workflows.interpreter.frame import Frame, Tools
from retinue.workflows.interpreter.saga import compensate, finish_undoing
from retinue.workflows.library import Library
from retinue.workflows.runs.hosting import HostedWorkflow, RunCode
from retinue.workflows.runs.ports import DurableRuleError, RunContext
from retinue.workflows.runs.records import Fault, RunRequest, as_json

if TYPE_CHECKING:
    from retinue.flows.determinism import Hint
    from retinue.flows.run import Run
    from retinue.flows.workflow import CodeWorkflow

_log = structlog.get_logger("retinue.runs")


class HostedWorkflows:
    """The workflows in Python that this process executes, by name."""

    def __init__(self, workflows: Iterable[CodeWorkflow] = ()) -> None:
        self._workflows: dict[str, CodeWorkflow] = {}
        for workflow in workflows:
            self.add(workflow)

    def add(self, workflow: CodeWorkflow) -> None:
        """Host a workflow; raises InvalidSettingError where another one has its name.

        A workflow whose file was imported under two names is one.
        """
        known = self._workflows.setdefault(workflow.name, workflow)
        if not known.is_same(workflow):
            places = [f"{each.place.file}:{each.place.line}" for each in (known, workflow)]
            if known.place.file == workflow.place.file:
                places = [
                    f"{each.function.__code__.co_filename}:{each.place.line}" for each in (known, workflow)
                ]
            raise InvalidSettingError(
                f"workflow {workflow.name}",
                f"both {' and '.join(places)} have this name",
                remedy='give one of them another: @workflow(name="…")',
            )

    def list_hints(self) -> Sequence[Hint]:
        """Hints about code that does not belong between the steps of the workflows."""
        if not self._workflows:
            return []
        from retinue.flows.determinism import find_hints

        return [hint for name in sorted(self._workflows) for hint in find_hints(self._workflows[name])]

    def list_loaded(self) -> Sequence[Loaded]:
        """The workflows as the library lists them, in the order of their names."""
        return [self._workflows[name].loaded for name in sorted(self._workflows)]

    def list_hosted(self) -> Sequence[HostedWorkflow]:
        """The workflows as this process announces them to other nodes, in the order of their names."""
        return [self._workflows[name].hosted for name in sorted(self._workflows)]

    def find(self, code: RunCode) -> CodeWorkflow | None:
        """The workflow that executes runs of this code; None where this process has none."""
        workflow = self._workflows.get(code.name)
        return workflow if workflow is not None and workflow.hosted.executes(code) else None


class CodeBody:
    """The body of the runs of workflows in Python; ``library`` has the workflows that they run."""

    def __init__(self, hosted: HostedWorkflows, tools: Tools, library: Library | None = None) -> None:
        self._hosted = hosted
        self._tools = tools
        self._library = library or Library(code=hosted.list_loaded())

    async def run(self, context: RunContext, request: RunRequest) -> Any:
        """Execute a run.

        A run whose code this process does not have is passed on to a node that has it. Without such a
        node the run waits until one comes, it is cancelled or the process ends, because other code might make
        other steps.
        """
        code = RunCode.find(request.definition)
        assert code is not None
        workflow = self._hosted.find(code)
        if workflow is None:
            _log.warning("run waits for its code", run=context.run_id, code=code.describe())
            await context.pass_on(code)
        # its code has loaded this module; a hub without workflows in Python never does
        from retinue.flows.run import Run

        run = Run(context, request, self._tools, self._library)
        return await _execute(workflow, context, request, run)


async def _execute(workflow: CodeWorkflow, context: RunContext, request: RunRequest, run: Run) -> Any:
    frame, task = run.open_frame(context), asyncio.current_task()
    try:
        arguments = workflow.signature.bind(request.input or {}, run)
        value = workflow.signature.encode(await workflow.function(**arguments))
        _check_output(workflow, value)
    except (DurableRuleError, NondeterminismError):
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        # SystemExit would end this process, and again after each start. A GeneratorExit would leave the run
        # without an end. Other BaseExceptions are those of an engine, as of a run that is taken over.
        if isinstance(error, GeneratorExit) and _find_task() is not task:
            raise  # this coroutine is closed from outside; the body has raised nothing
        failed = await _undo(frame, _explain(workflow, error))
        frame.record_usage()
        raise failed from error
    frame.record_usage()
    return value


def _find_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # there is no loop any more
        return None


def _check_output(workflow: CodeWorkflow, value: Any) -> None:
    """Raises OutputInvalidError for a value that is not of the annotated type."""
    schema = workflow.definition.output_schema
    if schema is not None and (problems := compile_schema(schema, "output").problems(value)):
        raise OutputInvalidError(workflow.name, problems)


async def _undo(frame: Frame, failed: RetinueError) -> RetinueError:
    """Make the registered compensations; returns the error that ends the run."""
    if not frame.undo:
        return failed
    if not isinstance(failed, StepFailedError):
        failed = StepFailedError("body", None, as_json(Fault.from_error(failed)))
    undone = await compensate(frame, 0)
    failed = StepFailedError(failed.step, failed.agent, failed.cause, [*failed.compensated, *undone])
    return await finish_undoing(frame, failed)


def _explain(workflow: CodeWorkflow, error: BaseException) -> RetinueError:
    """The error of a failed step, or what the author's code raised, with its line."""
    failed = error if isinstance(error, StepFailedError) else error.__cause__
    if isinstance(error, RetinueError) and isinstance(failed, StepFailedError):
        return failed
    file = workflow.function.__code__.co_filename
    lines = [entry.lineno for entry in traceback.extract_tb(error.__traceback__) if entry.filename == file]
    place = f"{Path(file).name}:{lines[-1]}: " if lines else ""
    plain = ExecutionFailedError.from_exception(error)
    name = type(error).__name__
    text = plain.message if plain.message == name else f"{name}: {plain.message}"
    remedy = error.remedy if isinstance(error, RetinueError) else ""
    return ExecutionFailedError(f"{place}{text}", remedy=remedy, exception=name, detail=plain.detail)
