"""Pure: edits a JSONC text without changing any other byte.

JSONC is JSON with comments and trailing commas, without the rest of JSON5. Adding a value only inserts
text: comments, trailing commas, line ends, the byte-order mark and the indentation stay.

pyjson5 returns values without their positions, and rewriting a whole document would lose its comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from retinue.core.errors import InvalidSettingError

MAX_DEPTH = 200


_TRIVIA = re.compile(r"(?:[ \t\r\n]|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)

_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')

_WORD = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])|(?:true|false|null)(?!\w)")


@dataclass(frozen=True, slots=True)
class JsonNode:
    """One value at ``text[start:end]``; ``members`` is None unless it is an object."""

    start: int
    end: int
    value: Any = field(compare=False)
    members: tuple[ObjectMember, ...] | None = None

    def find(self, key: str) -> int | None:
        """The index of the member of that name; the last of equal names, as in every JSON parser."""
        places = [at for at, member in enumerate(self.members or ()) if member.key == key]
        return places[-1] if places else None


@dataclass(frozen=True, slots=True)
class ObjectMember:
    """``"key": value`` of an object, from the key's quote, and the position of the comma after it."""

    key: str
    start: int
    node: JsonNode
    comma: int | None


def parse_tree(text: str, where: str) -> JsonNode | None:
    """The value of a document, or None if it holds only space and comments.

    Raises InvalidSettingError with ``where``, line and column.
    """
    start = skip_trivia(text, 1 if text.startswith("\ufeff") else 0)
    if start == len(text):
        return None
    scan = _Scan(text, where)
    node = scan.read_value(start, 0)
    if (rest := skip_trivia(text, node.end)) != len(text):
        raise scan.broken(rest, "more text behind the end")
    return node


def skip_trivia(text: str, at: int) -> int:
    """The position of the next token, after space and comments."""
    match = _TRIVIA.match(text, at)
    return match.end() if match else at


def place_of(text: str, at: int) -> str:
    """``line 3, column 7``, both counted from 1."""
    line_start = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at) if "\n" not in text else -1) + 1
    column = at - line_start + 1 - (line_start == 0 and text.startswith("\ufeff"))
    return f"line {text.count(chr(10), 0, at) + 1}, column {column}"


class _Scan:
    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where

    def broken(self, at: int, problem: str) -> InvalidSettingError:
        return InvalidSettingError(
            self.where,
            f"no JSON at {place_of(self.text, at)}: {problem}",
            remedy="mend it in an editor; nothing was changed",
        )

    def read_value(self, at: int, depth: int) -> JsonNode:
        text = self.text
        if depth > MAX_DEPTH:
            raise self.broken(at, f"nested over {MAX_DEPTH} levels deep")
        first = text[at : at + 1]
        if first == "{":
            return self._read_object(at, depth)
        if first == "[":
            return self._read_list(at, depth)
        if match := (_STRING if first == '"' else _WORD).match(text, at):
            return JsonNode(at, match.end(), json.loads(match.group()))
        raise self.broken(at, "a text without its end" if first == '"' else self._expected("a value", at))

    def _read_object(self, at: int, depth: int) -> JsonNode:
        text = self.text
        members: list[ObjectMember] = []
        place = skip_trivia(text, at + 1)
        while text[place : place + 1] != "}":
            match = _STRING.match(text, place)
            if match is None:
                raise self.broken(place, self._expected("a key in double quotes, or }", place))
            colon = skip_trivia(text, match.end())
            if text[colon : colon + 1] != ":":
                raise self.broken(colon, self._expected("a colon", colon))
            node = self.read_value(skip_trivia(text, colon + 1), depth + 1)
            place, comma = self._read_comma(node.end, "}")
            members.append(ObjectMember(json.loads(match.group()), match.start(), node, comma))
        return JsonNode(at, place + 1, {member.key: member.node.value for member in members}, tuple(members))

    def _read_list(self, at: int, depth: int) -> JsonNode:
        values = []
        place = skip_trivia(self.text, at + 1)
        while self.text[place : place + 1] != "]":
            node = self.read_value(place, depth + 1)
            values.append(node.value)
            place, _ = self._read_comma(node.end, "]")
        return JsonNode(at, place + 1, values)

    def _read_comma(self, at: int, closing: str) -> tuple[int, int | None]:
        """The positions of the next token after a value, and of the comma before it."""
        place = skip_trivia(self.text, at)
        if self.text[place : place + 1] == ",":
            return skip_trivia(self.text, place + 1), place
        if self.text[place : place + 1] == closing:
            return place, None
        raise self.broken(place, self._expected(f"a comma or {closing}", place))

    def _expected(self, what: str, at: int) -> str:
        char = self.text[at : at + 1]
        return f"{what} is missing before {char!r}" if char else f"{what} is missing before the end"


DEFAULT_INDENT = "  "

_MARK = "\ufeff"


def read_value(text: str, path: Sequence[str], where: str) -> Any:
    """The value at ``path``, None if absent. Raises InvalidSettingError for invalid syntax."""
    node = parse_tree(text, where)
    target_node = None if node is None else _walk(node, path)
    return None if target_node is None else target_node.value


def set_value(text: str, path: Sequence[str], value: Any, where: str) -> str:
    """The text with ``value`` at ``path``; missing objects on the path are added.

    Raises InvalidSettingError for invalid syntax and for a value on the path that is no object.
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


def copy_value(text: str, source: str, path: Sequence[str], where: str) -> str:
    """The text with the value at ``path`` of another text, as it is written there with its comments."""
    root = parse_tree(source, where)
    node = None if root is None else _walk(root, path)
    if node is None:
        return text
    edited = set_value(text, path, node.value, where)
    root = parse_tree(edited, where)
    place = None if root is None else _walk(root, path)
    assert place is not None, "set just now"
    return edited[: place.start] + source[node.start : node.end] + edited[place.end :]


def remove_value(text: str, path: Sequence[str], where: str) -> str:
    """The text without the value at ``path``; unchanged if absent."""
    # of a name that occurs twice, the first would take effect
    while (root := parse_tree(text, where)) is not None:
        parent = _walk(root, path[:-1])
        at = None if parent is None else parent.find(path[-1])
        if parent is None or at is None:
            break
        text = _remove_member(text, parent, at)
    return text


def render(value: Any, unit: str, base: str, newline: str) -> str:
    """Indented JSON with lists on one line; lines after the first start with ``base``."""
    if isinstance(value, dict) and value:
        inner = base + unit
        rows = [f"{inner}{_quote(key)}: {render(item, unit, inner, newline)}" for key, item in value.items()]
        return "{" + newline + f",{newline}".join(rows) + newline + base + "}"
    return _quote(value)


def find_newline(text: str) -> str:
    """The line end of the text's first line."""
    at = text.find("\n")
    return "\r\n" if at > 0 and text[at - 1] == "\r" else "\n"


def _walk(node: JsonNode, path: Sequence[str]) -> JsonNode | None:
    for key in path:
        at = node.find(key)
        if at is None or node.members is None:
            return None
        node = node.members[at].node
    return node


def _start_document(text: str, value: Any) -> str:
    """A text of space and comments with its first value appended."""
    newline = find_newline(text)
    fresh = render(value, DEFAULT_INDENT, "", newline) + newline
    if not text.strip(_MARK + " \t\r\n"):
        return text[: text.startswith(_MARK)] + fresh
    return text + ("" if text.endswith("\n") else newline) + fresh


def _insert(text: str, root: JsonNode, node: JsonNode, key: str, value: Any) -> str:
    """Append a member after the others."""
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


def _remove_member(text: str, node: JsonNode, at: int) -> str:
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
    """The position after the comments on the same line, or ``at`` if there is none."""
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
    """The position of the line break before ``at``; None if other text precedes it on its line."""
    indent = _own_line_indent(text, at)
    if indent is None:
        return None
    start = at - len(indent) - 1
    return start - 1 if text[:start].endswith("\r") else start


def _ends_line(text: str, at: int) -> bool:
    """Whether only space follows ``at`` on its line."""
    return not text[at:].split("\n", 1)[0].strip()


def _own_line_indent(text: str, at: int) -> str | None:
    """The space before ``at`` if nothing else precedes it on its line."""
    start = len(text[:at].rstrip(" \t"))
    return text[start:at] if text[:start].endswith("\n") else None


def _indent_of_line(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at].removeprefix(_MARK)
    return line[: len(line) - len(line.lstrip(" \t"))]


def _find_unit(text: str, root: JsonNode) -> str:
    """One level of the text's indentation."""
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
