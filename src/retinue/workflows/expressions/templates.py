"""Templates: texts and nested values that contain ``${{ expression }}``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from retinue.core.errors import ExpressionError
from retinue.workflows.expressions.caps import MAX_RESULT_BYTES, TO_A_SKILL
from retinue.workflows.expressions.expression import (
    Expression,
    ExpressionSyntaxError,
    compile_expression,
    shorten,
)
from retinue.workflows.expressions.isolated import PROCESSES
from retinue.workflows.expressions.lexer import find_template_end

_threads = ThreadPoolExecutor(PROCESSES, "expressions")
_OPENING = re.compile(r"\$?\$\{\{")


@dataclass(frozen=True, slots=True)
class Template:
    """A text with ``${{ … }}`` in it, as its pieces: plain text and expressions in turn.

    A text that is exactly one ``${{ … }}`` gives the value as it is; text around it makes a
    string. ``$${{`` is a literal ``${{``.
    """

    pieces: tuple[str | Expression, ...]

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Expression))

    def render(self, variables: Mapping[str, Any]) -> Any:
        """The value of this template; raises ExpressionError."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], Expression):
            return self.pieces[0].evaluate(variables)
        size = 0
        texts: list[str] = []
        for piece in self.pieces:
            text = piece if isinstance(piece, str) else _as_text(piece.evaluate(variables))
            size += len(text)
            if size > MAX_RESULT_BYTES:
                source = piece if isinstance(piece, str) else piece.source
                raise ExpressionError(source, f"a text of more than {MAX_RESULT_BYTES:,} bytes")
            texts.append(text)
        return "".join(texts)


@lru_cache(maxsize=4096)
def parse_template(text: str) -> Template:
    """The pieces of a text; raises ExpressionSyntaxError."""
    pieces: list[str | Expression] = []
    plain = ""
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        plain += text[at : opening.start()]
        at = opening.end()
        if opening.group().startswith("$$"):
            plain += "${{"
            continue
        end = find_template_end(text, at)
        if end is None:
            raise ExpressionSyntaxError(
                f"a ${{{{ without its }}}} in {shorten(text)!r}", "close it, or write $${{ for a literal ${{"
            )
        if plain:
            pieces.append(plain)
        plain = ""
        pieces.append(compile_expression(text[at:end]))
        at = end + 2
    plain += text[at:]
    if plain or not pieces:
        pieces.append(plain)
    return Template(tuple(pieces))


def parse_condition(source: str) -> Expression:
    """The expression of a ``when`` or ``until``, with or without ``${{ }}`` around all of it.

    Raises ExpressionSyntaxError.
    """
    if "${{" not in source:
        return compile_expression(source)
    pieces = parse_template(source.strip()).pieces
    if len(pieces) == 1 and isinstance(pieces[0], Expression):
        return pieces[0]
    raise ExpressionSyntaxError(
        f"condition {shorten(source)!r} mixes text and ${{{{ }}}}", "write one expression"
    )


def iterate_templates(value: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Each text within a JSON value that holds ``${{``, with the path that leads to it."""
    if isinstance(value, str):
        if "${{" in value:
            yield (), value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (((key, *path), text) for path, text in iterate_templates(inner))
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from (((index, *path), text) for path, text in iterate_templates(inner))


def render_value(value: Any, variables: Mapping[str, Any], field: str = "") -> Any:
    """A JSON value with every template in it, however deep, replaced; raises ExpressionError.

    All that its templates give, plain paths included, is at most ``MAX_RESULT_BYTES`` of JSON; ``field`` is
    what the definition calls the value, for the error. Blocks while a costly expression runs: see `render`.
    """
    return _Rendering(variables).render(value, (field,) if field else ())


async def render(value: Any, variables: Mapping[str, Any], field: str = "") -> Any:
    """As `render_value`, without blocking the event loop."""
    with suppress(ExpressionSyntaxError):  # which render_value reports
        for _, text in iterate_templates(value):
            if any(expression.takes_long(variables) for expression in parse_template(text).expressions):
                return await _run_aside(render_value, value, variables, field)
    return render_value(value, variables, field)


async def evaluate(expression: Expression, variables: Mapping[str, Any]) -> Any:
    """As `Expression.evaluate`, without blocking the event loop."""
    if expression.takes_long(variables):
        return await _run_aside(expression.evaluate, variables)
    return expression.evaluate(variables)


async def holds(expression: Expression, variables: Mapping[str, Any]) -> bool:
    """As `Expression.holds`, without blocking the event loop."""
    return expression.as_condition(await evaluate(expression, variables))


async def _run_aside(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that waits for a child process; after a cancellation it ends within its limits."""
    return await asyncio.get_running_loop().run_in_executor(_threads, function, *arguments)


class _Rendering:
    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = variables
        self._bytes = 0

    def render(self, value: Any, path: tuple[str | int, ...]) -> Any:
        if isinstance(value, str):
            return self._render_text(value, path) if "${{" in value else value
        if isinstance(value, Mapping):
            return {key: self.render(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.render(inner, (*path, place)) for place, inner in enumerate(value)]
        return value

    def _render_text(self, text: str, path: tuple[str | int, ...]) -> Any:
        try:
            template = parse_template(text)
        except ExpressionSyntaxError as error:
            raise ExpressionError(shorten(text), error.problem, remedy=error.remedy) from None
        value = template.render(self._variables)
        self._bytes += _measure(value)
        if self._bytes > MAX_RESULT_BYTES:
            where = f" at {_render_path(path)}" if path else ""
            problem = f"with it{where} the value has {self._bytes:,} bytes; at most {MAX_RESULT_BYTES:,}"
            raise ExpressionError(shorten(text), problem, remedy=TO_A_SKILL)
        return value


def _measure(value: Any) -> int:
    """The bytes of a value as JSON; of an integer beyond 64 bits, which fails where it is stored, some."""
    try:
        return len(orjson.dumps(value))
    except TypeError:
        return len(repr(value))


def _render_path(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
