"""Compensates completed steps after a failure (P-31), last step first.

When a step fails, everything done inside it is compensated first, including branches and nested workflows;
then its ``on_error`` applies. A failed run compensates all remaining steps. A cancelled run compensates
nothing, because it may be resumed. A failed run whose compensations failed is resumed to make these again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retinue.core.errors import ExpressionError, StepFailedError
from retinue.workflows.caller import Choice
from retinue.workflows.definitions.definition import (
    DEFAULT_STEP_TIMEOUT_S,
    Compensation,
    Retry,
    Step,
    parse_duration,
)
from retinue.workflows.expressions.scope import Scope
from retinue.workflows.interpreter.arguments import chain_arguments
from retinue.workflows.interpreter.branches import AGAIN, describe_error, hide_undo
from retinue.workflows.interpreter.call_steps import render_with
from retinue.workflows.interpreter.calls import Ask, CallSteps
from retinue.workflows.interpreter.frame import Frame, StepResult, Undo
from retinue.workflows.runs.records import RUN_ID_MARK, Fault, as_json, read_json

RETRY = Retry(attempts=3)
"""The default retry of compensations: a step that is not compensated needs a person."""

WAIT_S = 600.0
"""How long a compensation waits for an agent that is away (specification 7.10)."""


async def record_undo(
    frame: Frame, compensation: Compensation, step: Step, path: str, result: StepResult
) -> None:
    """Record how to compensate a done step; ``with`` is rendered now, with the step's output."""
    agent = result.facts.get("agent")
    call = compensation.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    undo = Undo(path, step.id, agent, call)
    if compensation.with_ is None:
        undo = replace(undo, input=frame.scope.input, sent=result.arguments, output=result.output)
    else:
        try:
            undo = replace(undo, arguments=dict(await render_with(compensation.with_, frame.scope.variables)))
        except ExpressionError as error:
            undo = replace(undo, fault=Fault.from_error(error))
    frame.undo.append(undo)


async def compensate(frame: Frame, mark: int) -> list[dict[str, Any]]:
    """Run the compensations after the first ``mark``, last first; returns their outcomes."""
    outcomes = []
    limits, frame.limits = frame.limits, ()  # compensations run even when the time of the run is over
    try:
        while len(frame.undo) > mark:
            outcomes.append(await _undo(frame, frame.undo.pop()))
    finally:
        frame.limits = limits
    return outcomes


async def finish_undoing(frame: Frame, error: StepFailedError) -> StepFailedError:
    """Make the compensations that failed once more, each time that the run was resumed for it.

    Returns the error that ends the run.
    """
    outcomes, made = [dict(one) for one in error.compensated], 0
    limits, frame.limits = frame.limits, ()
    try:
        while any(AGAIN in one for one in outcomes) and made < await frame.context.count_undo_requests():
            made += 1
            for place, one in enumerate(outcomes):
                if AGAIN in one:
                    outcomes[place] = await _undo(frame, read_json(Undo, one[AGAIN]), made)
    finally:
        frame.limits = limits
    compensated = [hide_undo(one) for one in outcomes]
    # As the caller names the run: what marks its rights is not shown.
    run_id = frame.context.run_id.partition(RUN_ID_MARK)[0]
    return StepFailedError(error.step, error.agent, error.cause, compensated, run_id)


async def _undo(frame: Frame, undo: Undo, made: int = 0) -> dict[str, Any]:
    """Make a compensation whose attempts have failed ``made`` times."""
    call = Compensation.model_validate(undo.call)
    outcome: dict[str, Any] = {"step": undo.path, "skill": call.skill, "agent": undo.agent}
    if undo.fault is not None:
        return {**outcome, "ok": False, "error": as_json(undo.fault)}
    retry = call.retry or RETRY
    ask = Ask(
        step_id=undo.step_id,
        arguments_for=lambda choice: _arguments(undo, call.skill, choice),
        skill=call.skill,
        agent=call.agent,
        prefer=undo.agent,
        version=call.version,
        timeout_s=DEFAULT_STEP_TIMEOUT_S if call.timeout is None else parse_duration(call.timeout),
        retry=retry,
        allow_empty=True,
        kind="undo",
        as_mesh=undo.as_mesh,
        wait_s=WAIT_S,
        first=1 + made * retry.attempts,
    )
    try:
        result = await CallSteps(frame).run(ask, f"{undo.path}/undo")
    except StepFailedError as error:
        failed = {"agent": error.agent, "ok": False, "error": describe_error(error)}
        return {**outcome, **failed, AGAIN: undo.to_json()}
    return {**outcome, "agent": result.facts["agent"], "ok": True}


def _arguments(undo: Undo, skill: str, choice: Choice) -> Any:
    """The arguments: ``with``, else chained from the output of the step, then its input."""
    if undo.arguments is not None:
        return undo.arguments
    own = Scope(undo.input, ())
    own.record("its arguments", undo.sent)
    own.record(undo.step_id, undo.output)
    return chain_arguments(undo.step_id, skill, choice.input_schema, own)
