"""Splits a CEL expression into tokens, for checks before the engine compiles it.

CEL offers its syntax tree only as protobuf bytes. The loader needs less: the ends of strings and brackets (to
find the ``}}`` of a template), and the variables that an expression reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["space", "text", "name", "number", "mark"]

ROOTS = ("input", "steps", "loop")
"""The variables that an expression may read."""

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*)
  | (?P<text>
        [bB]?[rR][bB]?(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')
      | [bB]?(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    )
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*|`[^`\n]*`)
  | (?P<number>[0-9][0-9A-Za-z]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?[uU]?)
  | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")


@dataclass(frozen=True, slots=True)
class Token:
    """One word; ``start`` is its offset in the source."""

    kind: Kind
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class ExpressionReference:
    """A reference of an expression: ``root`` and the keys that follow it literally.

    ``steps.plan.output["a"]`` is ``ExpressionReference("steps", ("plan", "output", "a"))``.
    """

    root: str
    keys: tuple[str, ...]


def iterate_tokens(source: str, start: int = 0) -> Iterator[Token]:
    """The words from ``start`` on; never fails, since every character is at least a mark."""
    for match in _TOKEN.finditer(source, start):
        kind: Kind = match.lastgroup  # type: ignore[assignment]  # the groups are the kinds
        yield Token(kind, match.group(), match.start())


def find_template_end(text: str, start: int) -> int | None:
    """The offset of the ``}}`` that ends the template whose expression begins at ``start``."""
    depth = 0
    for token in iterate_tokens(text, start):
        if token.kind != "mark":
            continue
        if token.text in _OPENING:
            depth += 1
        elif token.text in _CLOSING:
            if depth == 0:
                return token.start if text.startswith("}}", token.start) else None
            depth -= 1
    return None


def read_reference(words: list[Token], index: int) -> tuple[ExpressionReference, int]:
    """The reference that begins at ``index``, and the index of the word after it."""
    root = words[index].text
    keys: list[str] = []
    at = index + 1
    while at + 1 < len(words):
        mark, key = words[at], words[at + 1]
        after = words[at + 2].text if at + 2 < len(words) else ""
        if mark.text == "." and key.kind == "name" and after != "(":
            keys.append(key.text.strip("`"))
            at += 2
        elif mark.text == "[" and key.kind == "text" and after == "]" and _is_plain(key.text):
            keys.append(key.text[1:-1])
            at += 3
        else:
            break
    return ExpressionReference(root, tuple(keys)), at


def _is_plain(text: str) -> bool:
    """Whether the value of a string literal is exactly the text between its quotes."""
    return text[0] in "\"'" and "\\" not in text and not text.startswith(('"""', "'''"))
