"""Foreign text as Python source: string literals, docstrings, comments and identifiers.

Names and descriptions come from cards of other people. Each function here returns text that ends where it
should: a literal closes, a comment stays on its line, an identifier is one.
"""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Iterable

from retinue.core.foreign_text import cut_text

MAX_COMMENT = 100
"""Characters of a comment, and of the description of one parameter in a docstring."""

_MAX_DOC_LINES = 40
_MAX_DOC_LINE = 300

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSAFE_QUOTES = re.compile(r'"(?=")|(?<=")"|^"|"$')
"""Quotes that stand beside another one, or begin or end a line."""

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


def is_identifier(name: str) -> bool:
    """Whether the name is an ASCII identifier and no keyword, so that a parameter can have it."""
    return _IDENTIFIER.fullmatch(name) is not None and not keyword.iskeyword(name)


def as_identifier(text: str) -> str:
    """The text with ``_`` for characters that no ASCII identifier has; a keyword gets ``_`` behind it."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    if not name.strip("_") or name[0].isdigit():
        name = f"skill_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def as_type_name(text: str) -> str:
    """The words of a text with capital letters: ``create_plan`` → ``CreatePlan``; "" without ASCII words."""
    return "".join(word[0].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", text))


def render_string(text: str) -> str:
    """A string literal in double quotes that evaluates to the text."""
    return f'"{"".join(map(_escape, text))}"'


def render_comment(text: str) -> str:
    """The text as one line without control characters, cut to `MAX_COMMENT`."""
    return cut_text(" ".join(_clean_line(text).split()), MAX_COMMENT)


def render_docstring(text: str, rows: Iterable[tuple[str, str]] = ()) -> list[str]:
    """The lines of a docstring: the text, and below it the rows, each a name and its description.

    A long text is cut. Empty for no text and no rows.
    """
    lines = [cut_text(_clean_line(line).rstrip(), _MAX_DOC_LINE) for line in text.strip().split("\n")]
    if len(lines) > _MAX_DOC_LINES:
        lines = [*lines[:_MAX_DOC_LINES], "…"]
    listed = [f"{name}: {line}" for name, about in rows if (line := render_comment(about))]
    lines = [*lines, "", *listed] if listed else lines
    lines = [_UNSAFE_QUOTES.sub(r'\\"', line.replace("\\", "\\\\")) for line in lines]
    if not any(lines):
        return []
    return [f'"""{lines[0]}"""'] if len(lines) == 1 else [f'"""{lines[0]}', *lines[1:], '"""']


def digest_of(text: str, length: int) -> str:
    """The first ``length`` hexadecimal digits of the SHA-256 digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _clean_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
