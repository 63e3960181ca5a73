"""Undoing what is done (P-31): the compensations of a failed run, last step first.

A failed step leaves nothing behind: whatever was done in it, branches and nested workflows included,
is compensated before its ``on_error`` is looked at; a failed run compensates all that is left. What is
cancelled is not compensated, since it may be resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.errors import ExpressionError, StepFailedError
from retinue.workflows.caller import Choice
from retinue.workflows.definitions.definition import DEFAULT_STEP_TIMEOUT_S, Step
from retinue.workflows.definitions.durations import parse_duration
from retinue.workflows.definitions.step_parts import Compensation, Retry
from retinue.workflows.expressions.scope import Scope
from retinue.workflows.interpreter.branches import describe_error
from retinue.workflows.interpreter.call_steps import render_with
from retinue.workflows.interpreter.calls import Ask, CallSteps
from retinue.workflows.interpreter.chaining import chain_arguments
from retinue.workflows.interpreter.frame import Frame, Result
from retinue.workflows.run_records import Fault

RETRY = Retry(attempts=3)
"""How often a compensation is tried that says nothing itself: what stays undone, a person must mend."""


def note_done(frame: Frame, step: Step, path: str, result: Result) -> None:
    """Remember how a done step is undone; its ``with`` reads what is known now, its output included."""
    compensation = step.compensate
    if compensation is None:
        return
    entry: dict[str, Any] = {
        "path": path,
        "step_id": step.id,
        "agent": result.facts.get("agent"),
        "call": compensation.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
    if compensation.with_ is None:
        entry |= {"input": frame.scope.input, "sent": result.arguments, "output": result.output}
    else:
        try:
            entry["arguments"] = dict(render_with(compensation.with_, frame.scope.variables))
        except ExpressionError as error:
            entry["fault"] = Fault.from_error(error).to_json()
    frame.undo.append(entry)


async def compensate(frame: Frame, mark: int) -> list[dict[str, Any]]:
    """Undo what was done since ``frame.undo`` was ``mark`` long; what became of each, last first."""
    told = []
    limits, frame.limits = frame.limits, ()  # the time being over is no reason to leave things undone
    try:
        while len(frame.undo) > mark:
            told.append(await _undo(frame, frame.undo.pop()))
    finally:
        frame.limits = limits
    return told


async def _undo(frame: Frame, entry: Mapping[str, Any]) -> dict[str, Any]:
    call = Compensation.model_validate(entry["call"])
    told: dict[str, Any] = {"step": entry["path"], "skill": call.skill, "agent": entry["agent"]}
    if "fault" in entry:
        return {**told, "ok": False, "error": entry["fault"]}
    ask = Ask(
        step_id=entry["step_id"],
        arguments_for=lambda choice: _arguments(entry, call.skill, choice),
        skill=call.skill,
        agent=call.agent,
        prefer=entry["agent"],
        version=call.version,
        timeout_s=DEFAULT_STEP_TIMEOUT_S if call.timeout is None else parse_duration(call.timeout),
        retry=call.retry or RETRY,
        allow_empty=True,
        kind="undo",
    )
    try:
        result = await CallSteps(frame).run(ask, f"{entry['path']}/undo")
    except StepFailedError as error:
        return {**told, "agent": error.agent, "ok": False, "error": describe_error(error)}
    return {**told, "agent": result.facts["agent"], "ok": True}


def _arguments(entry: Mapping[str, Any], skill: str, choice: Choice) -> Any:
    """What the compensation is sent: its ``with``, else chained out of the step's output, then its input."""
    if "arguments" in entry:
        return entry["arguments"]
    own = Scope(entry["input"], ())
    own.record("its arguments", entry["sent"])
    own.record(entry["step_id"], entry["output"])
    return chain_arguments(entry["step_id"], skill, choice.input_schema, own)
