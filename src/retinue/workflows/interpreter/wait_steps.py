"""Steps that wait for a signal: a person's approval, or word from another system."""

from __future__ import annotations

from retinue.core.errors import InvalidParametersError, StepFailedError
from retinue.mesh.schema import compile_schema
from retinue.workflows.definitions.definition import Step
from retinue.workflows.interpreter.frame import Frame, Result, overdue
from retinue.workflows.interpreter.notes import below, note

MAX_SIGNALS = 100
"""So many signals that do not fit the schema a step lets pass before it fails."""


async def run_wait_for(frame: Frame, step: Step, path: str) -> Result:
    """The value of the next signal of the topic that fits the schema."""
    wait = step.wait_for
    assert wait is not None
    message = await frame.render(wait.message, path) if "${{" in wait.message else wait.message
    facts = {"kind": "wait", "topic": wait.topic, "message": message, "schema": wait.schema_}
    for turn in range(1, MAX_SIGNALS + 1):
        here = path if turn == 1 else f"{path}@{turn}"
        timeout_s, limit = await frame.bound(here, wait.timeout_s, step=path)
        seen = {**facts, "below": below(here, path)}
        outcome = await frame.context.receive(here, wait.topic, timeout_s, facts=seen)
        if outcome.fault is not None:
            cause = outcome.fault.to_json() if limit is None else overdue(path, limit)
            raise StepFailedError(path, None, cause)
        if wait.schema_ is None:
            return Result(outcome.value)
        problems = compile_schema(wait.schema_, f"signal {wait.topic}").problems(outcome.value)
        if not problems:
            return Result(outcome.value)
        refused = InvalidParametersError(problems)
        place = f"{here}/refused"
        await note(frame.context, place, {"kind": "refused_signal", "below": below(place, path)}, refused)
    raise StepFailedError(path, None, {"type": "validation_error", "message": "no signal fits the schema"})
