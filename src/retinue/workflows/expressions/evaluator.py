"""The program that evaluates costly expressions, started by `isolated` under limits of time and memory.

``python -m retinue.workflows.expressions.evaluator`` reads lines of JSON (source, variables) and answers with
the value, or with the problem and its remedy.
"""

from __future__ import annotations

import orjson

from retinue.core.errors import ExpressionError
from retinue.processes.line_workers import serve
from retinue.workflows.expressions.caps import TO_A_SKILL
from retinue.workflows.expressions.expression import compile_expression
from retinue.workflows.expressions.isolated import CPU_S, MEMORY_BYTES


def main(cpu_s: float = CPU_S) -> None:
    """Answer until standard input ends; one expression may take ``cpu_s`` seconds of processor time."""

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

    serve(answer, cpu_s=cpu_s, memory_bytes=MEMORY_BYTES)


if __name__ == "__main__":
    main()
