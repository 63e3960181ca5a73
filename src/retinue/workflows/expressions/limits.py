"""The caps that need the data: what an expression may be run on.

Looks only at what the expression reads. The bounds are estimates from above; the slowest expression
that passes them takes a few seconds (`tests/workflows/test_expressions.py` runs some of them).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from retinue.core.errors import ExpressionError
from retinue.workflows.expressions.lexer import Reference
from retinue.workflows.expressions.shapes import Shape

MAX_LIST_ITEMS = 1_000
MAX_MACRO_VALUES = 50_000
MAX_JOINED_BYTES = 64 * 1024 * 1024
MAX_JOINED_ITEMS = 5_000_000
MAX_COMPARED_VALUES = 100_000_000
MAX_READ_CHARACTERS = 200_000_000

_TO_A_SKILL = "read a smaller part, or leave the work to a skill"


def check_data(source: str, shape: Shape, variables: Mapping[str, Any]) -> None:
    """Refuse data that this expression could make explode, or that the engine would garble.

    Raises ExpressionError.
    """
    roots = [_resolve(reference, variables) for reference in shape.references]
    _refuse_nul(source, roots)
    if not shape.macros and not shape.joins and not shape.patterns:
        return
    values = 0
    longest_list = shape.items
    longest_text = len(source)
    for value in _iterate_values(roots):
        values += 1
        if values > MAX_MACRO_VALUES:
            raise ExpressionError(source, f"reads more than {MAX_MACRO_VALUES:,} values", remedy=_TO_A_SKILL)
        if isinstance(value, str):
            longest_text = max(longest_text, len(value))
        elif isinstance(value, (list, dict)):
            longest_list = max(longest_list, len(value))
    if shape.macros and longest_list > MAX_LIST_ITEMS:
        raise ExpressionError(
            source,
            f"a list of {longest_list:,} items; expressions go through at most {MAX_LIST_ITEMS:,}",
            remedy=_TO_A_SKILL,
        )
    # The engine itself stops after some ten thousand rounds, all macros together.
    rounds = min(10_000, shape.macros * longest_list**shape.nesting) if shape.macros else 1
    if shape.joins:
        _refuse(source, longest_text * shape.growth * rounds, MAX_JOINED_BYTES, "build too long a text")
        if longest_list > 1:
            _refuse(source, longest_list * shape.growth * rounds, MAX_JOINED_ITEMS, "build too long a list")
    if shape.macros:
        _refuse(source, values * rounds * shape.operations, MAX_COMPARED_VALUES, "compare too much")
        _refuse(source, longest_text * rounds * shape.operations, MAX_READ_CHARACTERS, "read too much text")
    searched = longest_text * rounds * (shape.patterns or 0)
    _refuse(source, searched, MAX_READ_CHARACTERS, "search too much text")


def _refuse(source: str, estimate: float, limit: int, problem: str) -> None:
    if estimate > limit:
        raise ExpressionError(source, f"could {problem} on this data", remedy=_TO_A_SKILL)


def _refuse_nul(source: str, values: list[Any]) -> None:
    """The engine takes texts as C strings, and would cut them at a NUL without a word."""
    try:
        encoded = orjson.dumps(values)
    except TypeError as error:
        if "64-bit" in str(error):
            raise ExpressionError(
                source, "an integer beyond 64 bits", remedy="carry such a number as text"
            ) from None
        raise ExpressionError(source, f"reads what is no JSON: {error}") from None
    # JSON text is searched a hundred times faster than values; a find may be an escaped backslash.
    if b"\\u0000" in encoded and any(_holds_nul(value) for value in _iterate_values(values)):
        raise ExpressionError(
            source,
            "reads a text with a NUL character",
            remedy="hand it on alone, as in ${{ steps.x.output }}",
        )


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    return isinstance(value, Mapping) and any("\0" in key for key in value)


def _resolve(reference: Reference, variables: Mapping[str, Any]) -> Any:
    value = variables[reference.root]
    for key in reference.keys:
        if not isinstance(value, Mapping):
            break
        if key not in value:
            return None
        value = value[key]
    return value


def _iterate_values(roots: Iterable[Any]) -> Iterator[Any]:
    stack = list(roots)
    while stack:
        value = stack.pop()
        yield value
        if isinstance(value, Mapping):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
