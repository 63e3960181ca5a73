"""Control steps: ``loop``, ``foreach``, ``switch``, nested workflows, timers, waiting for a signal."""

from __future__ import annotations

from math import inf
from typing import Any

import orjson

from retinue.core.errors import ExpressionError, InvalidParametersError, StepFailedError, UnknownWorkflowError
from retinue.mesh.schema.checks import compile_schema
from retinue.workflows.definitions.definition import Step, Timer
from retinue.workflows.definitions.run_forms import NestedRun, render_form
from retinue.workflows.definitions.values import MAX_TIMER_S, parse_duration
from retinue.workflows.expressions.scope import nearest_output
from retinue.workflows.expressions.templates import evaluate, parse_condition, render
from retinue.workflows.interpreter.arguments import chain_arguments
from retinue.workflows.interpreter.branches import (
    Branch,
    BranchPlan,
    adopt_done,
    adopt_undo,
    branch_failure,
    child_origin,
    find_failure,
    run_branches,
)
from retinue.workflows.interpreter.frame import Frame, StepResult, add_note, below, overdue, record_failure
from retinue.workflows.runs.records import RunRequest, as_json
from retinue.workflows.times import parse_time, render_time

MAX_ITEMS = 1_000

DEFAULT_BRANCH = "default"


async def run_loop(frame: Frame, step: Step, path: str) -> StepResult | None:
    """Repeat the nested steps; the output is that of the last step."""
    assert step.loop is not None
    scope, around, before = frame.scope, frame.scope.loop, frame.scope.mark
    rounds = min(step.loop.max, frame.settings.max_iterations or step.loop.max)
    try:
        for index in range(1, rounds + 1):
            scope.loop = {**around, "index": index}
            await frame.run_steps(step.steps or (), f"{path}#{index}.")
            until = step.loop.until
            if until is not None and await frame.holds(until, f"{path}#{index}/until"):
                break
    finally:
        scope.loop = around
    entries = scope.list_since(before)
    return StepResult(nearest_output(entries)) if entries else None


async def run_foreach(frame: Frame, step: Step, path: str) -> StepResult:
    """Run the nested steps for each item in a child run; the output is the list of outputs."""
    assert step.foreach is not None
    items = await frame.render(step.foreach.items, path, field="foreach.in")
    if not isinstance(items, list) or len(items) > MAX_ITEMS:
        found = f"{len(items):,} items; at most {MAX_ITEMS:,}" if isinstance(items, list) else "no list"
        error = ExpressionError(str(step.foreach.items), f"gives {found}", remedy="give a list")
        raise await record_failure(frame.context, path, error)
    if not items:
        return StepResult([])
    plan = BranchPlan.of(frame, step.steps or ())
    branches = [
        plan.branch(f"{path}#{number}", loop={**frame.scope.loop, "index": number, "item": item})
        for number, item in enumerate(items, 1)
    ]
    ended = await run_branches(
        frame, path, branches, concurrency=step.foreach.concurrency, stop_at_failure=True
    )
    done = adopt_done(frame, ended)
    if (failed := find_failure(ended)) is not None:
        raise failed
    return StepResult([done[place].output for place in range(len(branches))])


async def run_switch(frame: Frame, step: Step, path: str) -> StepResult | None:
    """Run the branch named like the value, else ``default``, else none."""
    try:
        value = await evaluate(parse_condition(step.switch or ""), frame.scope.variables)
    except ExpressionError as error:
        raise await record_failure(frame.context, path, error) from None
    branches = step.branches or {}
    name = _name_of(value)
    taken = name if name in branches else DEFAULT_BRANCH if DEFAULT_BRANCH in branches else None
    await add_note(frame.context, path, {"kind": "switch", "value": name[:200], "branch": taken})
    if taken is None:
        return None
    before = frame.scope.mark
    await frame.run_steps(branches[taken], f"{path}.")
    entries = frame.scope.list_since(before)
    return StepResult(nearest_output(entries)) if entries else None


def _name_of(value: Any) -> str:
    """The branch name of a value: a text itself, other values as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


async def run_workflow(frame: Frame, step: Step, path: str) -> StepResult:
    """Run a bundled workflow in a child run; the output is that of the workflow."""
    nested = frame.nested.get(step.workflow or "")
    if nested is None:
        raise await record_failure(frame.context, path, UnknownWorkflowError(step.workflow or ""))
    schema = nested.definition.input
    try:
        run_input = await _render_input(frame, step, schema)
        if schema is not None and (problems := compile_schema(schema, "input").problems(run_input)):
            raise InvalidParametersError(problems)
    except (ExpressionError, InvalidParametersError) as error:
        raise await record_failure(frame.context, path, error) from None
    origin = child_origin(frame)
    request = RunRequest(
        name=f"{frame.request.name}/{path}",
        definition=render_form(NestedRun.of(nested.definition, frame.nested)),
        input=run_input,
        origin=origin.as_mesh() if nested.as_mesh else origin,
    )
    outcome = (await run_branches(frame, path, [Branch(path, request)]))[0]
    if outcome.status != "done":
        raise branch_failure(outcome)
    return StepResult(adopt_undo(frame, outcome, as_mesh=nested.as_mesh).output)


async def _render_input(frame: Frame, step: Step, schema: Any) -> Any:
    if step.with_ is not None:
        return await render(step.with_, frame.scope.variables, "with")
    return chain_arguments(step.id, step.workflow or "", schema, frame.scope)


MAX_SIGNALS = 100
"""The number of signals against the schema after which a step fails."""


async def run_wait_for(frame: Frame, step: Step, path: str) -> StepResult:
    """Wait for the next signal of the topic that fits the schema; its value is the output."""
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
            cause = as_json(outcome.fault) if limit is None else overdue(path, limit)
            raise StepFailedError(path, None, cause)
        if wait.schema_ is None:
            return StepResult(outcome.value)
        problems = compile_schema(wait.schema_, f"signal {wait.topic}").problems(outcome.value)
        if not problems:
            return StepResult(outcome.value)
        refused = InvalidParametersError(problems)
        place = f"{here}/refused"
        await add_note(frame.context, place, {"kind": "refused_signal", "below": below(place, path)}, refused)
    raise StepFailedError(path, None, {"type": "validation_error", "message": "no signal fits the schema"})


async def run_timer(frame: Frame, step: Step, path: str) -> None:
    """Wait for a length of time or until a point in time; without an output.

    Raises StepFailedError where a limit around the step ends the wait.
    """
    timer = step.wait
    assert timer is not None
    seconds = inf
    if timer.for_ is not None:
        seconds = parse_duration(timer.for_, MAX_TIMER_S)
        until = await frame.read_clock(path, f"{path}/clock") + seconds
    else:
        until = await _read_until(frame, timer, path)
    limit = min(frame.limits, key=lambda limit: limit.at, default=None)
    if limit is not None and limit.at >= until:
        limit = None
    at = until if limit is None else limit.at
    facts = {"kind": "timer", "until": render_time(until)}
    await frame.context.wait_until(path, at, at_most_s=seconds, facts=facts)
    if limit is not None:
        raise StepFailedError(path, None, overdue(path, limit))


async def _read_until(frame: Frame, timer: Timer, path: str) -> float:
    source = timer.until or ""
    time = await frame.render(source, path, field="wait.until")
    try:
        until = parse_time(time if isinstance(time, str) else orjson.dumps(time).decode())
    except ValueError as error:
        problem, _, remedy = str(error).partition(": ")
        fault = ExpressionError(source, problem, remedy=remedy)
        raise await record_failure(frame.context, path, fault) from None
    return until
