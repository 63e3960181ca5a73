"""Templates: texts and nested values with ``${{ expression }}`` in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from retinue.core.errors import ExpressionError
from retinue.workflows.expressions.expression import (
    MAX_RESULT_BYTES,
    Expression,
    ExpressionSyntaxError,
    compile_expression,
    shorten,
)
from retinue.workflows.expressions.lexer import find_template_end

_OPENING = re.compile(r"\$?\$\{\{")


@dataclass(frozen=True, slots=True)
class Template:
    """A text with ``${{ … }}`` in it, as its pieces: plain text and expressions in turn.

    A text that is exactly one ``${{ … }}`` gives the value as it is; text around it makes a
    string. ``$${{`` stands for a literal ``${{``.
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


def render_value(value: Any, variables: Mapping[str, Any]) -> Any:
    """A JSON value with every template in it, however deep, replaced; raises ExpressionError."""
    if isinstance(value, str):
        if "${{" not in value:
            return value
        try:
            return parse_template(value).render(variables)
        except ExpressionSyntaxError as error:
            raise ExpressionError(shorten(value), error.problem, remedy=error.remedy) from None
    if isinstance(value, Mapping):
        return {key: render_value(inner, variables) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [render_value(inner, variables) for inner in value]
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
