"""Compensates completed steps after a failure (P-31), last step first.

When a step fails, everything done inside it is compensated first, including branches and nested workflows;
then its ``on_error`` applies. A failed run compensates all remaining steps. A cancelled run compensates
nothing, because it may be resumed. A failed run whose compensations failed is resumed to make these again.

A step may have had more effects than its result tells: attempts whose outcome is unknown, or whose result was
refused. Each of them is undone as well (decision 0065). The outcome of an open one is asked for first, by the
same call with the same key; where it stays unknown, the compensation is not made and names attempt and key.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retinue.core.errors import (
    EmptyOutputError,
    ExecutionFailedError,
    ExpressionError,
    ModelError,
    OutputInvalidError,
    RemoteFaultError,
    StepFailedError,
)
from retinue.workflows.caller import Choice
from retinue.workflows.definitions.definition import DEFAULT_STEP_TIMEOUT_S, Compensation, Retry, Step
from retinue.workflows.definitions.values import parse_duration
from retinue.workflows.expressions.scope import Scope
from retinue.workflows.interpreter.arguments import chain_arguments
from retinue.workflows.interpreter.branch_inputs import find_branch_reads
from retinue.workflows.interpreter.branches import AGAIN, describe_error, hide_undo
from retinue.workflows.interpreter.call_steps import render_with
from retinue.workflows.interpreter.calls import SETTLE, Ask, CallSteps
from retinue.workflows.interpreter.frame import Frame, StepResult, Trial, Undo
from retinue.workflows.runs.records import RUN_ID_MARK, Fault, as_json, read_json

RETRY = Retry(attempts=3)
"""The default retry of compensations: a step that is not compensated needs a person."""

SETTLE_S = DEFAULT_STEP_TIMEOUT_S
"""How long the outcome of an attempt is waited for before it is undone; its step had less patience."""

_ANSWERS = frozenset(
    kind.type
    for kind in (ExecutionFailedError, OutputInvalidError, EmptyOutputError, RemoteFaultError, ModelError)
)
"""Failures with which an agent tells the outcome of an attempt; others say why it does not."""

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


async def record_trials(frame: Frame, step: Step, path: str) -> None:
    """Record how to compensate the attempts of a step that may have had an effect besides its result."""
    trials, frame.trials = frame.trials, []
    assert step.compensate is not None
    call = step.compensate.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for trial in trials:
        # The plain path is that of the result, or of the one attempt that may still become it.
        place = path if trial.is_open else trial.path if "@" in trial.path[len(path) :] else f"{path}@1"
        undo = Undo(place, step.id, trial.choice.agent, call, input=frame.scope.input, trial=trial)
        if trial.is_open:
            entries = find_branch_reads((step,)).pick_entries(frame.scope.entries)
            undo = replace(undo, entries=entries, loop=frame.scope.loop)
        elif step.compensate.with_ is not None:
            scope = Scope(frame.scope.input, frame.scope.known)
            for step_id, entry in frame.scope.entries:
                scope.keep(step_id, entry)
            scope.loop = frame.scope.loop
            undo = await _render_undo(undo, step.compensate.with_, scope)
        frame.undo.append(undo)


async def _render_undo(undo: Undo, value: Any, scope: Scope) -> Undo:
    """The compensation of an attempt with its arguments, or with the fault of those that cannot be had."""
    trial = undo.trial
    assert trial is not None
    scope.keep(undo.step_id, {"output": trial.value} if trial.is_answered else {})
    try:
        return replace(undo, arguments=dict(await render_with(value, scope.variables)))
    except ExpressionError as error:
        return replace(undo, fault=Fault.from_error(error))


async def compensate(frame: Frame, mark: int) -> list[dict[str, Any]]:
    """Run the compensations after the first ``mark``, last first; returns their outcomes."""
    outcomes = []
    limits, frame.limits = frame.limits, ()  # compensations run even when the time of the run is over
    try:
        while len(frame.undo) > mark:
            outcome = await _undo(frame, frame.undo.pop())
            if outcome is not None:
                outcomes.append(outcome)
    finally:
        frame.limits = limits
    return outcomes


async def finish_undoing(frame: Frame, error: StepFailedError) -> StepFailedError:
    """Make the compensations that failed once more, each time that the run was resumed for it.

    Returns the error that ends the run.
    """
    outcomes: list[dict[str, Any] | None] = [dict(entry) for entry in error.compensated]
    made = 0
    limits, frame.limits = frame.limits, ()
    try:
        while (
            any(AGAIN in outcome for outcome in outcomes if outcome)
            and made < await frame.context.count_undo_requests()
        ):
            made += 1
            for place, outcome in enumerate(outcomes):
                if outcome is not None and AGAIN in outcome:
                    outcomes[place] = await _undo(frame, read_json(Undo, outcome[AGAIN]), made)
    finally:
        frame.limits = limits
    compensated = [hide_undo(outcome) for outcome in outcomes if outcome is not None]
    # As the caller names the run: what marks its rights is not shown.
    run_id = frame.context.run_id.partition(RUN_ID_MARK)[0]
    return StepFailedError(error.step, error.agent, error.cause, compensated, run_id)


async def _undo(frame: Frame, undo: Undo, made: int = 0) -> dict[str, Any] | None:
    """Make a compensation whose attempts have failed ``made`` times; None if nothing is to be undone."""
    call = Compensation.model_validate(undo.call)
    outcome: dict[str, Any] = {"step": undo.path, "skill": call.skill, "agent": undo.agent}
    if undo.trial is not None:
        trial = undo.trial
        outcome |= {"step": trial.step, "attempt": trial.path, "key": frame.key(trial.key_path)}
        if trial.is_open:
            settled = await _settle(frame, undo, trial, made)
            if isinstance(settled, Fault):
                return {**outcome, "ok": False, "error": as_json(settled), AGAIN: undo.to_json()}
            if settled is None:
                return None
            undo = await _with_arguments(undo, call, settled)
    if undo.fault is not None:
        fault = undo.fault
        if undo.trial is not None and not undo.trial.is_answered:
            what = f"attempt {outcome['attempt']} (key {outcome['key']}) may have had its effect"
            fault = replace(fault, message=f"{what}, and its output never came: {fault.message}")
        return {**outcome, "ok": False, "error": as_json(fault)}
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
        key_path=undo.key_path,
    )
    try:
        result = await CallSteps(frame).run(ask, f"{undo.path}/undo")
    except StepFailedError as error:
        failed = {"agent": error.agent, "ok": False, "error": describe_error(error)}
        unknown = next((trial for trial in frame.trials if trial.is_open), None)
        if unknown is not None:
            # Resumed, it is repeated with the same key.
            undo = replace(undo, key_path=unknown.key_path)
            outcome = {"attempt": unknown.path, "key": frame.key(unknown.key_path)} | outcome
        return {**outcome, **failed, AGAIN: undo.to_json()}
    return {**outcome, "agent": result.facts["agent"], "ok": True}


async def _settle(frame: Frame, undo: Undo, trial: Trial, made: int) -> Trial | Fault | None:
    """Ask for the outcome of an open attempt, by the same call with the same key.

    Returns the attempt with what is known of it, None if it had no effect, or why its outcome stays unknown.
    """
    ask = Ask(
        step_id=undo.step_id,
        arguments_for=lambda choice: trial.sent,
        skill=trial.skill,
        agent=trial.choice.agent,
        choice=trial.choice,
        timeout_s=SETTLE_S,
        retry=RETRY,
        allow_empty=True,
        kind=SETTLE,
        as_mesh=undo.as_mesh,
        wait_s=WAIT_S,
        first=1 + made * RETRY.attempts,
        key_path=trial.key_path,
        once=True,
    )
    try:
        result = await CallSteps(frame).run(ask, trial.step, f"{undo.path}/settle")
    except StepFailedError as error:
        if error.cause.get("type") not in _ANSWERS or any(trial.is_open for trial in frame.trials):
            return _stays_unknown(frame, trial, error)
        # An agent that may have died in the attempt does not know what became of it.
        return replace(trial, is_open=False) if trial.was_lost or frame.trials else None
    return replace(trial, value=result.output, is_answered=True, is_open=False)


def _stays_unknown(frame: Frame, trial: Trial, error: StepFailedError) -> Fault:
    key, agent = frame.key(trial.key_path), trial.choice.agent
    failure = ExecutionFailedError(
        f"the outcome of attempt {trial.path} (key {key}) at {agent} is unknown: "
        f"{error.cause.get('message')}",
        remedy=f"ask {agent} what it did for the key {key}",
    )
    return Fault.from_error(failure)


async def _with_arguments(undo: Undo, call: Compensation, settled: Trial) -> Undo:
    """The compensation of a settled attempt."""
    undo = replace(undo, trial=settled)
    if call.with_ is None:
        return undo
    scope = Scope(undo.input, (step_id for step_id, _ in undo.entries))
    for step_id, entry in undo.entries:
        scope.keep(step_id, entry)
    scope.loop = undo.loop
    return await _render_undo(undo, call.with_, scope)


def _arguments(undo: Undo, skill: str, choice: Choice) -> Any:
    """The arguments: ``with``, else chained from the output of the step, then its input."""
    if undo.arguments is not None:
        return undo.arguments
    own = Scope(undo.input, ())
    trial = undo.trial
    own.record("its arguments", undo.sent if trial is None else trial.sent)
    if trial is None or trial.is_answered:
        own.record(undo.step_id, undo.output if trial is None else trial.value)
    return chain_arguments(undo.step_id, skill, choice.input_schema, own)
