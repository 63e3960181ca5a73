"""Where things stand in a JSONC text; pure. JSON with comments and trailing commas, nothing of JSON5 beyond.

pyjson5 reads values but not their places, and writing a whole document anew would lose its comments.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from retinue.core.errors import InvalidSettingError

MAX_DEPTH = 200

_TRIVIA = re.compile(r"(?:[ \t\r\n]|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_WORD = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])|(?:true|false|null)(?!\w)")


@dataclass(frozen=True, slots=True)
class Node:
    """One value and its place: ``text[start:end]``; ``members`` is None for everything but an object."""

    start: int
    end: int
    value: Any = field(compare=False)
    members: tuple[Member, ...] | None = None

    def find(self, key: str) -> int | None:
        """The index of the member of that name; the last one counts, as for every reader of JSON."""
        found = [at for at, member in enumerate(self.members or ()) if member.key == key]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class Member:
    """``"key": value`` of an object, from the key's quote on, and where the comma behind it stands."""

    key: str
    start: int
    node: Node
    comma: int | None


def parse_tree(text: str, where: str) -> Node | None:
    """The value of a document, or None where nothing but space and comments stands in it.

    Raises InvalidSettingError that names ``where`` and the line and column at which the text breaks.
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
    """Where the next thing stands that is neither space nor a comment."""
    found = _TRIVIA.match(text, at)
    return found.end() if found else at


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

    def read_value(self, at: int, depth: int) -> Node:
        text = self.text
        if depth > MAX_DEPTH:
            raise self.broken(at, f"nested over {MAX_DEPTH} levels deep")
        first = text[at : at + 1]
        if first == "{":
            return self._read_object(at, depth)
        if first == "[":
            return self._read_list(at, depth)
        if found := (_STRING if first == '"' else _WORD).match(text, at):
            return Node(at, found.end(), json.loads(found.group()))
        raise self.broken(at, "a text without its end" if first == '"' else self._expected("a value", at))

    def _read_object(self, at: int, depth: int) -> Node:
        text = self.text
        members: list[Member] = []
        place = skip_trivia(text, at + 1)
        while text[place : place + 1] != "}":
            found = _STRING.match(text, place)
            if found is None:
                raise self.broken(place, self._expected("a key in double quotes, or }", place))
            colon = skip_trivia(text, found.end())
            if text[colon : colon + 1] != ":":
                raise self.broken(colon, self._expected("a colon", colon))
            node = self.read_value(skip_trivia(text, colon + 1), depth + 1)
            place, comma = self._read_comma(node.end, "}")
            members.append(Member(json.loads(found.group()), found.start(), node, comma))
        return Node(at, place + 1, {member.key: member.node.value for member in members}, tuple(members))

    def _read_list(self, at: int, depth: int) -> Node:
        values = []
        place = skip_trivia(self.text, at + 1)
        while self.text[place : place + 1] != "]":
            node = self.read_value(place, depth + 1)
            values.append(node.value)
            place, _ = self._read_comma(node.end, "]")
        return Node(at, place + 1, values)

    def _read_comma(self, at: int, closing: str) -> tuple[int, int | None]:
        """What comes behind a value: the place of the next thing, and of the comma before it."""
        place = skip_trivia(self.text, at)
        if self.text[place : place + 1] == ",":
            return skip_trivia(self.text, place + 1), place
        if self.text[place : place + 1] == closing:
            return place, None
        raise self.broken(place, self._expected(f"a comma or {closing}", place))

    def _expected(self, what: str, at: int) -> str:
        found = self.text[at : at + 1]
        return f"{what} is missing before {found!r}" if found else f"{what} is missing before the end"
