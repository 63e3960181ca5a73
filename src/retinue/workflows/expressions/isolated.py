"""Evaluates costly expressions in another process, because the engine keeps the GIL.

Nothing can interrupt the engine within a process. The other process runs `expressions.evaluator`, which is
named by text here because it imports the module of expressions, and that imports this one.
"""

from __future__ import annotations

from typing import Any

import orjson

from retinue.core.errors import ExpressionError
from retinue.processes.line_workers import LineWorkers, WorkerEndedError
from retinue.workflows.expressions.caps import TO_A_SKILL

CPU_S = 1.0
MEMORY_BYTES = 512 * 1024 * 1024
PROCESSES = 2

_workers = LineWorkers("retinue.workflows.expressions.evaluator", keep=PROCESSES)


def evaluate_isolated(source: str, variables: dict[str, Any]) -> Any:
    """The value of an expression, evaluated in another process; blocks its thread. Raises ExpressionError."""
    try:
        reply = orjson.loads(_workers.ask(orjson.dumps([source, variables])))
    except WorkerEndedError as error:
        problem = f"takes more than {CPU_S:g} s of processor time"
        if not error.is_out_of_time:
            problem = f"could not be evaluated: {error}"
        raise ExpressionError(source, problem, remedy=TO_A_SKILL) from None
    if "problem" in reply:
        raise ExpressionError(source, reply["problem"], remedy=reply["remedy"])
    return reply["value"]
