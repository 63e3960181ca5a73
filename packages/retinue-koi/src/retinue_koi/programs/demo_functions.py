"""The functions behind the callable traits of the demo's agents."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

_MAX_CHARACTERS = 200
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_LINES = {
    "a": "a lantern crosses the water",
    "e": "each wave keeps a colour",
    "i": "in the reeds a heron waits",
    "o": "over the bridge comes the rain",
    "u": "under the leaves it is evening",
}


def calculate(input: str) -> float:  # noqa: A002 - the parameter's name on the wire
    """Calculates an arithmetic expression, such as (2 + 3) * 4."""
    if len(input) > _MAX_CHARACTERS:
        raise ValueError(f"the expression has more than {_MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(input.strip(), mode="eval")
    except SyntaxError as error:
        raise ValueError(f"{input!r} is not an arithmetic expression") from error
    return float(_value_of(tree.body))


def _value_of(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value_of(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return float(_OPERATORS[type(op)](_value_of(left), _value_of(right)))
    raise ValueError("only numbers, + - * / // % and parentheses are calculated")


def make_acrostic(input: str) -> str:  # noqa: A002 - the parameter's name on the wire
    """Writes an acrostic of a word: one line for each of its letters."""
    letters = [letter for letter in input.lower() if letter.isalpha()][:40]
    return "\n".join(_LINES.get(letter, f"{letter} stands alone, as letters do") for letter in letters)
