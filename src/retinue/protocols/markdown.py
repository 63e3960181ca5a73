"""Pure: other people's text as Markdown that can only be text.

Names and descriptions come out of cards. Here they become paragraphs, code and cells of tables
(GitHub's dialect) that cannot open a heading, a link, a tag or another cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"([\\`*_\[\]<>#~&!$])")
_BLOCK_START = re.compile(r"^([-+=]|\d{1,9}(?=[.)]))")
_PLAIN_CODE = re.compile(r"[^`|\\]+")
_BLANK_LINE = re.compile(r"\n\s*\n")


def one_line(text: str) -> str:
    """The text without line breaks, control and direction characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def escape(text: str) -> str:
    """One line that reads as written wherever it stands: in a paragraph, a list or a cell."""
    line = _SPECIAL.sub(r"\\\1", one_line(text))
    # A number's dot would begin a list; what may not be escaped itself is written as an entity.
    line = _BLOCK_START.sub(lambda start: f"&#{ord(start[0][0])};{start[0][1:]}", line)
    # A pipe behind a backslash is read in two ways, an entity in one.
    return line.replace("|", "&#124;")


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a longer text, each escaped to one line."""
    parts = _BLANK_LINE.split(text.replace("\r\n", "\n"))
    return [line for line in map(escape, parts) if line]


def code(text: str) -> str:
    """The text as code in a line; "" for a text that shows nothing."""
    line = one_line(text)
    if not line:
        return ""
    if _PLAIN_CODE.fullmatch(line):
        return f"`{line}`"
    entities = "".join(c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in line)
    return f"<code>{entities}</code>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; the cells are escaped or code already."""
    return [
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(columns)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def fence(language: str, lines: Iterable[str]) -> list[str]:
    """A block of code behind a fence that nothing inside can close."""
    inside = list(lines)
    longest = max((len(run) for line in inside for run in re.findall("`+", line)), default=0)
    mark = "`" * max(3, longest + 1)
    return [f"{mark}{language}", *inside, mark]
