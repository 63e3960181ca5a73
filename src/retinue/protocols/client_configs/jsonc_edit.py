"""Edits of a JSONC text that leave every other byte as it is; pure.

Adding only inserts: of what stood there nothing goes and nothing moves. Comments, trailing commas, line
ends, the byte-order mark and the indentation that a person chose all stay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from retinue.core.errors import InvalidSettingError
from retinue.protocols.client_configs.jsonc_tree import Node, parse_tree, skip_trivia

DEFAULT_INDENT = "  "
_MARK = "\ufeff"


def read_value(text: str, path: Sequence[str], where: str) -> Any:
    """What stands at ``path``, None where nothing does; raises InvalidSettingError for a broken text."""
    node = parse_tree(text, where)
    found = None if node is None else _walk(node, path)
    return None if found is None else found.value


def set_value(text: str, path: Sequence[str], value: Any, where: str) -> str:
    """The text with ``value`` at ``path``, whose objects are made where they are missing.

    Raises InvalidSettingError for a broken text, and where something else than an object is in the way.
    """
    root = parse_tree(text, where)
    if root is None:
        return _start_document(text, _nest(path, value))
    node = root
    for depth, key in enumerate(path):
        if node.members is None:
            what = ".".join(path[:depth]) or "the document"
            raise InvalidSettingError(
                where, f"{what} is no object", remedy="mend it in an editor; nothing was changed"
            )
        at = node.find(key)
        if at is None:
            return _insert(text, root, node, key, _nest(path[depth + 1 :], value))
        node = node.members[at].node
    if node.value == value:
        return text
    rendered = render(value, _find_unit(text, root), _indent_of_line(text, node.start), find_newline(text))
    return text[: node.start] + rendered + text[node.end :]


def remove_value(text: str, path: Sequence[str], where: str) -> str:
    """The text without what stands at ``path``; the same text where nothing does."""
    # a name that stands there twice would come to light again
    while (root := parse_tree(text, where)) is not None:
        parent = _walk(root, path[:-1])
        at = None if parent is None else parent.find(path[-1])
        if parent is None or at is None:
            break
        text = _remove_member(text, parent, at)
    return text


def render(value: Any, unit: str, base: str, newline: str) -> str:
    """JSON over several lines, lists on one; the lines after the first start with ``base``."""
    if isinstance(value, dict) and value:
        inner = base + unit
        rows = [f"{inner}{_quote(key)}: {render(item, unit, inner, newline)}" for key, item in value.items()]
        return "{" + newline + f",{newline}".join(rows) + newline + base + "}"
    return _quote(value)


def find_newline(text: str) -> str:
    """The line end of the text's first line."""
    at = text.find("\n")
    return "\r\n" if at > 0 and text[at - 1] == "\r" else "\n"


def _walk(node: Node, path: Sequence[str]) -> Node | None:
    for key in path:
        at = node.find(key)
        if at is None or node.members is None:
            return None
        node = node.members[at].node
    return node


def _start_document(text: str, value: Any) -> str:
    """A text of space and comments, with its first value behind them."""
    newline = find_newline(text)
    fresh = render(value, DEFAULT_INDENT, "", newline) + newline
    if not text.strip(_MARK + " \t\r\n"):
        return text[: text.startswith(_MARK)] + fresh
    return text + ("" if text.endswith("\n") else newline) + fresh


def _insert(text: str, root: Node, node: Node, key: str, value: Any) -> str:
    """One more member, behind the others."""
    members = node.members or ()
    newline, unit, base = find_newline(text), _find_unit(text, root), _indent_of_line(text, node.start)
    if members and "\n" not in text[node.start : node.end]:
        last, row = members[-1], f"{_quote(key)}: {_quote(value)}"
        if last.comma is not None:
            return _put_in(text, (last.comma + 1, f" {row},"))
        return _put_in(text, (last.node.end, f", {row}"))
    own = _own_line_indent(text, members[0].start) if members else None
    inner = base + unit if own is None else own
    row = f"{newline}{inner}{_quote(key)}: {render(value, unit, inner, newline)}"
    if members:
        last = members[-1]
        if last.comma is not None:
            return _put_in(text, (_behind_line_comments(text, last.comma + 1), f"{row},"))
        return _put_in(text, (last.node.end, ","), (_behind_line_comments(text, last.node.end), row))
    at = node.start + 1 + len(text[node.start + 1 : node.end - 1].rstrip())
    closing = "" if "\n" in text[at : node.end] else newline + base
    return _put_in(text, (at, row + closing))


def _remove_member(text: str, node: Node, at: int) -> str:
    members = node.members or ()
    member = members[at]
    end = member.node.end if member.comma is None else member.comma + 1
    before = _line_break_before(text, member.start)
    behind_last = members[at - 1].comma if at else None
    gap = text[(node.start if behind_last is None else behind_last) + 1 : member.start]
    # a // comment in the line before needs its line break, unless one follows
    if before is not None and ("//" not in gap or _ends_line(text, end)):
        start = before
    elif at == len(members) - 1:
        start = len(text[: member.start].rstrip(" \t"))
    else:
        start = member.start
        while text[end] in " \t":
            end += 1
    text = text[:start] + text[end:]
    if member.comma is None and behind_last is not None:
        text = text[:behind_last] + text[behind_last + 1 :]
    if len(members) == 1:
        inside = text[node.start + 1 : skip_trivia(text, node.start + 1)]
        if not inside.strip():
            text = text[: node.start + 1] + text[node.start + 1 + len(inside) :]
    return text


def _put_in(text: str, *additions: tuple[int, str]) -> str:
    for at, added in reversed(additions):
        text = text[:at] + added + text[at:]
    return text


def _behind_line_comments(text: str, at: int) -> int:
    """Behind the comments that follow on the same line, or ``at`` where none does."""
    line_end = text.find("\n", at)
    line = text[: line_end if line_end >= 0 else len(text)].rstrip("\r")
    end = at
    while True:
        place = end + len(line[end:]) - len(line[end:].lstrip(" \t"))
        if line.startswith("//", place):
            return len(line)
        closing = line.find("*/", place + 2) if line.startswith("/*", place) else -1
        if closing < 0:
            return end
        end = closing + 2


def _line_break_before(text: str, at: int) -> int | None:
    """Where the line break before ``at`` stands; None where something else stands before it on its line."""
    indent = _own_line_indent(text, at)
    if indent is None:
        return None
    start = at - len(indent) - 1
    return start - 1 if text[:start].endswith("\r") else start


def _ends_line(text: str, at: int) -> bool:
    """Whether nothing but space stands between ``at`` and the end of its line."""
    return not text[at:].split("\n", 1)[0].strip()


def _own_line_indent(text: str, at: int) -> str | None:
    """The space before ``at`` when nothing else stands there on its line."""
    start = len(text[:at].rstrip(" \t"))
    return text[start:at] if text[:start].endswith("\n") else None


def _indent_of_line(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at].removeprefix(_MARK)
    return line[: len(line) - len(line.lstrip(" \t"))]


def _find_unit(text: str, root: Node) -> str:
    """One level of indentation, as this text has it."""
    for member in root.members or ():
        if indent := _own_line_indent(text, member.start):
            return indent
    return DEFAULT_INDENT


def _nest(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _quote(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
