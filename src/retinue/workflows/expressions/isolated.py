"""Evaluates costly expressions in another process, because the engine keeps the GIL.

Nothing can interrupt the engine within a process. ``python -m retinue.workflows.expressions.isolated`` reads
lines of JSON (source, variables) and answers with the value, or with the problem and its remedy.
"""

from __future__ import annotations

from typing import Any

import orjson

from retinue.core.errors import ExpressionError
from retinue.processes.line_workers import LineWorkers, WorkerEndedError, serve
from retinue.workflows.expressions.caps import TO_A_SKILL

CPU_S = 1.0
MEMORY_BYTES = 512 * 1024 * 1024
PROCESSES = 2

_workers = LineWorkers(__name__, keep=PROCESSES)


def evaluate_isolated(source: str, variables: dict[str, Any]) -> Any:
    """The value of an expression, evaluated in another process; blocks its thread. Raises ExpressionError."""
    try:
        found = orjson.loads(_workers.ask(orjson.dumps([source, variables])))
    except WorkerEndedError as error:
        problem = f"takes more than {CPU_S:g} s of processor time"
        if not error.is_out_of_time:
            problem = f"could not be evaluated: {error}"
        raise ExpressionError(source, problem, remedy=TO_A_SKILL) from None
    if "problem" in found:
        raise ExpressionError(source, found["problem"], remedy=found["remedy"])
    return found["value"]


def main() -> None:
    """Answer until standard input ends."""
    # expression imports this module; here its import is done before time is limited.
    from retinue.workflows.expressions.expression import compile_expression

    def answer(line: bytes) -> bytes:
        source, variables = orjson.loads(line)
        try:
            return orjson.dumps({"value": compile_expression(source).evaluate_here(variables)})
        except ExpressionError as error:
            problem = error.message.removeprefix(f"expression {source!r}: ")
            return orjson.dumps({"problem": problem, "remedy": error.remedy})
        except MemoryError:
            problem = f"needs more than {MEMORY_BYTES // 1024**2} MB of memory"
            return orjson.dumps({"problem": problem, "remedy": TO_A_SKILL})

    serve(answer, cpu_s=CPU_S, memory_bytes=MEMORY_BYTES)


if __name__ == "__main__":
    main()
