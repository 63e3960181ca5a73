"""Limits expressions: their source at compilation, the values that they read at runtime.

The caps do not limit the time and the memory of macros and patterns; `isolated` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from retinue.core.errors import ExpressionError
from retinue.workflows.expressions.lexer import (
    ROOTS,
    ExpressionReference,
    Token,
    iterate_tokens,
    read_reference,
)

MAX_SOURCE_BYTES = 4 * 1024
MAX_MACRO_LEVELS = 2
MAX_MACRO_ITEMS = 1_000
MAX_MACRO_BYTES = 1024 * 1024
MAX_HERE_BYTES = 256 * 1024
"""The limit of the input of an expression in the process of the run, because the engine copies all of it
first: 100,000 numbers in 10 ms.
"""

MAX_RESULT_BYTES = 8 * 1024 * 1024
"""The limit of the input and of the result of one expression or mapping without a macro."""

MAX_RESULT_VALUES = 100_000

TO_A_SKILL = "read a smaller part, or leave the work to a skill"

_MACROS = frozenset({"all", "exists", "exists_one", "map", "filter"})


@dataclass(frozen=True, slots=True)
class Shape:
    """The facts about an expression that its tokens show before it runs.

    ``levels`` is how deep macros are nested; ``is_costly`` = it has a macro or matches a pattern, so that its
    input does not bound its time; ``path`` is set when the whole expression is one reference and needs no
    engine.
    """

    references: tuple[ExpressionReference, ...]
    levels: int
    is_costly: bool
    path: ExpressionReference | None


def read_shape(source: str) -> Shape:
    """The references of an expression, and whether it can be costly."""
    words = [token for token in iterate_tokens(source) if token.kind != "space"]
    references: list[ExpressionReference] = []
    whole: ExpressionReference | None = None
    for index, token in enumerate(words):
        if token.kind == "name" and token.text in ROOTS and (index == 0 or words[index - 1].text != "."):
            reference, end = read_reference(words, index)
            references.append(reference)
            if index == 0 and end == len(words):
                whole = reference
    levels = _count_levels(words)
    matches = any(token.kind == "name" and token.text == "matches" for token in words)
    return Shape(tuple(references), levels, levels > 0 or matches, whole)


def _count_levels(words: list[Token]) -> int:
    """How many macros are open at once, at most."""
    brackets: list[bool] = []
    most = 0
    for index, token in enumerate(words):
        if token.kind != "mark":
            continue
        if token.text in "([{":
            is_macro = index >= 2 and words[index - 1].text in _MACROS and words[index - 2].text == "."
            brackets.append(is_macro and token.text == "(")
            most = max(most, sum(brackets))
        elif token.text in ")]}" and brackets:
            brackets.pop()
    return most


def check_data(source: str, shape: Shape, variables: Mapping[str, Any]) -> int:
    """Refuse data that is too large for this expression, or that the engine would garble; gives its bytes.

    Each reference counts, even to the same data. Raises ExpressionError.
    """
    limit, size = MAX_MACRO_BYTES if shape.levels else MAX_RESULT_BYTES, 0
    for reference in shape.references:
        root = _resolve(reference, variables)
        encoded = _encode(source, root)
        size += len(encoded)
        if size > limit:
            raise ExpressionError(source, f"reads more than {limit:,} bytes", remedy=TO_A_SKILL)
        # JSON text is searched a hundred times faster than values; a find may be an escaped backslash.
        if b"\\u0000" in encoded and any(_holds_nul(value) for value in _iterate_values(root)):
            # The engine takes texts as C strings, and would cut them there.
            raise ExpressionError(
                source,
                "reads a text with a NUL character",
                remedy="hand it on alone, as in ${{ steps.x.output }}",
            )
        for value in _iterate_values(root) if shape.levels else ():
            if isinstance(value, (list, dict)) and len(value) > MAX_MACRO_ITEMS:
                raise ExpressionError(
                    source,
                    f"a list of {len(value):,} items; expressions go through at most {MAX_MACRO_ITEMS:,}",
                    remedy=TO_A_SKILL,
                )
    return size


def reads_much(shape: Shape, variables: Mapping[str, Any]) -> bool:
    """Whether an expression reads more than `MAX_HERE_BYTES`."""
    size = 0
    for reference in shape.references:
        try:
            size += len(orjson.dumps(_resolve(reference, variables)))
        except TypeError:
            return False  # no JSON, which `check_data` refuses
        if size > MAX_HERE_BYTES:
            return True
    return False


def pick_data(shape: Shape, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables with no more in them than the expression reads."""
    paths = [(reference.root, *reference.keys) for reference in shape.references]
    return {**{root: {} for root in ROOTS}, **_pick(variables, paths)}


def _pick(value: Any, paths: list[tuple[str, ...]]) -> Any:
    if () in paths or not isinstance(value, Mapping):
        return value
    below: dict[str, list[tuple[str, ...]]] = {}
    for key, *rest in paths:
        below.setdefault(key, []).append(tuple(rest))
    return {key: _pick(value[key], rest) for key, rest in below.items() if key in value}


def _encode(source: str, value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        if "64-bit" in str(error):
            raise ExpressionError(
                source, "an integer beyond 64 bits", remedy="carry such a number as text"
            ) from None
        raise ExpressionError(source, f"reads what is no JSON: {error}") from None


def _resolve(reference: ExpressionReference, variables: Mapping[str, Any]) -> Any:
    value = variables[reference.root]
    for key in reference.keys:
        if not isinstance(value, Mapping):
            break
        if key not in value:
            return None
        value = value[key]
    return value


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    return isinstance(value, Mapping) and any("\0" in key for key in value)


def _iterate_values(root: Any) -> Iterator[Any]:
    stack = [root]
    while stack:
        value = stack.pop()
        yield value
        if isinstance(value, Mapping):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
