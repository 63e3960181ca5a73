"""Steps that run another workflow, which was read and checked before the run began."""

from __future__ import annotations

from typing import Any

from retinue.core.errors import ExpressionError, InvalidParametersError, UnknownWorkflowError
from retinue.mesh.schema import compile_schema
from retinue.workflows.definitions.definition import Step
from retinue.workflows.expressions.templates import render_value
from retinue.workflows.interpreter.branches import Branch, adopt_undo, branch_failure, run_branches
from retinue.workflows.interpreter.chaining import chain_arguments
from retinue.workflows.interpreter.frame import Frame, Result
from retinue.workflows.interpreter.notes import fail
from retinue.workflows.run_records import RunRequest


async def run_workflow(frame: Frame, step: Step, path: str) -> Result:
    """The output of the workflow, as a child run of its own."""
    nested = frame.nested.get(step.workflow or "")
    if nested is None:
        raise await fail(frame.context, path, UnknownWorkflowError(step.workflow or ""))
    schema = nested["definition"].get("input")
    try:
        given = _render_input(frame, step, schema)
        if schema is not None and (problems := compile_schema(schema, "input").problems(given)):
            raise InvalidParametersError(problems)
    except (ExpressionError, InvalidParametersError) as error:
        raise await fail(frame.context, path, error) from None
    request = RunRequest(
        name=f"{frame.request.name}/{path}",
        definition={**nested["definition"], "nested": frame.nested, "as_step": True},
        input=given,
        ambient=frame.child_ambient(),
    )
    outcome = (await run_branches(frame, path, [Branch(path, request)]))[0]
    if outcome.status != "done":
        raise branch_failure(outcome)
    adopt_undo(frame, outcome)
    return Result(outcome.value["output"])


def _render_input(frame: Frame, step: Step, schema: Any) -> Any:
    if step.with_ is not None:
        return render_value(step.with_, frame.scope.variables)
    return chain_arguments(step.id, step.workflow or "", schema, frame.scope)
