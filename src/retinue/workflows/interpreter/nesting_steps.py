"""Steps around nested steps: ``loop``, ``foreach``, ``switch``."""

from __future__ import annotations

from typing import Any

import orjson

from retinue.core.errors import ExpressionError
from retinue.workflows.definitions.definition import Step
from retinue.workflows.expressions.scope import nearest_output
from retinue.workflows.expressions.templates import parse_condition
from retinue.workflows.interpreter.branches import (
    Branch,
    adopt_undo,
    branch_failure,
    first_failure,
    run_branches,
)
from retinue.workflows.interpreter.frame import Frame, Result
from retinue.workflows.interpreter.notes import fail, note

MAX_ITEMS = 1_000
DEFAULT_BRANCH = "default"


async def run_loop(frame: Frame, step: Step, path: str) -> Result | None:
    """Repeat the nested steps; what the last of them gave."""
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
    given = scope.list_since(before)
    return Result(nearest_output(given)) if given else None


async def run_foreach(frame: Frame, step: Step, path: str) -> Result:
    """Run the nested steps for each item, each in a child run; the list of what each item gave."""
    assert step.foreach is not None
    items = await frame.render(step.foreach.items, path)
    if not isinstance(items, list) or len(items) > MAX_ITEMS:
        found = f"{len(items):,} items; at most {MAX_ITEMS:,}" if isinstance(items, list) else "no list"
        error = ExpressionError(str(step.foreach.items), f"gives {found}", remedy="give a list")
        raise await fail(frame.context, path, error)
    branches = []
    for number, item in enumerate(items, 1):
        loop = {**frame.scope.loop, "index": number, "item": item}
        request = frame.branch_request(f"{path}#{number}", step.steps or (), loop=loop)
        branches.append(Branch(f"{path}#{number}", request))
    if not branches:
        return Result([])
    ended = await run_branches(
        frame, path, branches, concurrency=step.foreach.concurrency, stop_at_failure=True
    )
    for place in sorted(ended):
        if ended[place].status == "done":
            adopt_undo(frame, ended[place])
    if (failed := first_failure(ended)) is not None:
        raise branch_failure(failed)
    return Result([ended[place].value["output"] for place in range(len(branches))])


async def run_switch(frame: Frame, step: Step, path: str) -> Result | None:
    """Run the branch that is called as the value is, else ``default``, else none."""
    try:
        value = parse_condition(step.switch or "").evaluate(frame.scope.variables)
    except ExpressionError as error:
        raise await fail(frame.context, path, error) from None
    branches = step.branches or {}
    name = _name_of(value)
    taken = name if name in branches else DEFAULT_BRANCH if DEFAULT_BRANCH in branches else None
    await note(frame.context, path, {"kind": "switch", "value": name[:200], "branch": taken})
    if taken is None:
        return None
    before = frame.scope.mark
    await frame.run_steps(branches[taken], f"{path}.")
    given = frame.scope.list_since(before)
    return Result(nearest_output(given)) if given else None


def _name_of(value: Any) -> str:
    """A value as branches are called: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
