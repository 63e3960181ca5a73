"""Pure: edits a TOML text without changing any other byte.

A library that writes TOML rewrites the whole document; here only the lines of one table change. Each
result is parsed again, and an edit is refused if the result differs from the wanted document.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.core.errors import InvalidSettingError

_MARK = "\ufeff"
_AT = re.compile(r"\(at (line \d+, column \d+|end of document)\)")
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[^\[\]{}"\'#\n]+|.',
    re.DOTALL,
)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class _Line:
    """One statement with its lines and line end; ``table`` is the path of the table that it is in."""

    start: int
    end: int
    table: tuple[str, ...]
    key: str | None
    """The first key of a ``key = value``; None for the ``[header]`` itself, space and comments."""

    is_header: bool = False


def read_value(text: str, path: Sequence[str], where: str) -> Any:
    """The value at ``path``, None if absent. Raises InvalidSettingError for invalid syntax."""
    value: Any = _parse(text, where)
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def set_table(
    text: str, path: Sequence[str], entry: dict[str, Any], replaced: frozenset[str], where: str
) -> str:
    """The text in which the table at ``path`` has the keys of ``entry``.

    Keys in ``replaced`` that the entry lacks are removed, all others stay. Values are strings, lists and
    tables of strings. Raises InvalidSettingError for invalid syntax and for a table in a form that is not
    supported here.
    """
    before = _parse(text, where)
    old = read_value(text, path, where)
    kept = {key: value for key, value in old.items() if key not in replaced} if isinstance(old, dict) else {}
    wanted = kept | entry
    if old == wanted:
        return text
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = list(_read_lines(text))
    header = next((line for line in lines if line.is_header and line.table == tuple(path)), None)
    rows = "".join(f"{_key(key)} = {_render(value)}{newline}" for key, value in entry.items())
    if header is None:
        block = f"[{'.'.join(map(_key, path))}]{newline}{rows}"
        edited = _append(_without(text, lines, path), block, newline)
    else:
        old_lines = [line for line in lines if _is_one_of(line, path, replaced | set(entry))]
        rest = _cut(text, old_lines)[header.end :]
        # the header may be the last line and have no end
        head = text[: header.end].removesuffix("\n").removesuffix("\r") + newline
        edited = head + rows + rest
        if not text.endswith("\n"):
            edited = edited.removesuffix(newline)
    return _check(edited, _with(before, path, wanted), path, where)


def remove_table(text: str, path: Sequence[str], where: str) -> str:
    """The text without the table at ``path``; unchanged if absent."""
    before = _parse(text, where)
    if read_value(text, path, where) is None:
        return text
    edited = _without(text, list(_read_lines(text)), path)
    return _check(edited, _with(before, path, None), path, where)


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix(_MARK))
    except tomllib.TOMLDecodeError as error:
        place = _AT.search(str(error))
        problem = _AT.sub("", str(error)).strip()
        at = place[1] if place else "some place"
        raise InvalidSettingError(
            where, f"no TOML at {at}: {problem}", remedy="mend it in an editor; nothing was changed"
        ) from None


def _read_lines(text: str) -> Iterator[_Line]:
    """The statements of a text that tomllib accepts, in order, covering every byte."""
    start = len(_MARK) if text.startswith(_MARK) else 0
    depth, table = 0, tuple[str, ...]()
    for match in _TOKEN.finditer(text, start):
        piece = match.group()
        depth += (piece in ("[", "{")) - (piece in ("]", "}"))
        if depth or (piece != "\n" and match.end() != len(text)):
            continue
        statement = text[start : match.end()].strip()
        if statement.startswith("["):
            table = tuple(_names(tomllib.loads(statement)))
            yield _Line(start, match.end(), table, None, is_header=True)
        elif not statement or statement.startswith("#"):
            yield _Line(start, match.end(), table, None)
        else:
            yield _Line(start, match.end(), table, next(iter(tomllib.loads(statement))))
        start = match.end()


def _names(value: Any) -> Iterator[str]:
    """The path in a parsed header: nested tables of one key, the last one empty."""
    while value:
        value = value[0] if isinstance(value, list) else value
        if not value:
            return
        name, value = next(iter(value.items()))
        yield name


def _is_one_of(line: _Line, path: Sequence[str], keys: frozenset[str] | set[str]) -> bool:
    """Whether a line sets one of these keys of the table at ``path``, by itself or in a table below."""
    return any(_is_below(line, (*path, key)) for key in keys)


def _is_below(line: _Line, path: Sequence[str]) -> bool:
    """Whether a statement belongs to the value at ``path``."""
    place = line.table if line.key is None else (*line.table, line.key)
    return (line.is_header or line.key is not None) and place[: len(path)] == tuple(path)


def _without(text: str, lines: list[_Line], path: Sequence[str]) -> str:
    """The text without the statements of ``path`` and the empty line before its header."""
    drop = [line for line in lines if _is_below(line, path)]
    if not drop:
        return text
    gap = next((line for line in lines if line.end == drop[0].start), None)
    if gap is not None and drop[0].is_header and not text[gap.start : gap.end].strip():
        drop.append(gap)
    edited = _cut(text, drop)
    if not text.endswith("\n"):
        # an entry appended to a text without final line end has none either
        edited = edited.removesuffix("\n").removesuffix("\r")
    return edited


def _append(text: str, block: str, newline: str) -> str:
    if not text.strip(_MARK):
        return text + block
    if text.endswith("\n"):
        return text + newline + block
    return text + newline + newline + block.removesuffix(newline)


def _cut(text: str, lines: list[_Line]) -> str:
    for line in sorted(lines, key=lambda line: -line.start):
        text = text[: line.start] + text[line.end :]
    return text


def _with(document: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of the document with this value at ``path``, or without it if None."""
    copy = dict(document)
    head, rest = path[0], path[1:]
    if rest:
        inner = copy.get(head)
        copy[head] = _with(inner if isinstance(inner, dict) else {}, rest, value)
        if value is None and not copy[head]:
            del copy[head]
    elif value is None:
        copy.pop(head, None)
    else:
        copy[head] = value
    return copy


def _check(edited: str, wanted: dict[str, Any], path: Sequence[str], where: str) -> str:
    """Return the edited text if it parses to the wanted document."""
    try:
        entry = tomllib.loads(edited.removeprefix(_MARK))
    except tomllib.TOMLDecodeError:
        entry = None
    head = path[0]
    if entry is not None and entry.get(head) == {}:
        # keep an empty [table] of the user's own
        wanted = {head: {}} | wanted
    if entry != wanted:
        raise InvalidSettingError(
            where,
            f"{'.'.join(path)} is written in a way that cannot be edited here",
            remedy=f"write it as [{'.'.join(map(_key, path))}], or edit it by hand: --print shows what",
        )
    return edited


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _render(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_render(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_render, value)) + "]"
    # a basic string of TOML has the escapes of JSON; DEL alone must be escaped as well
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
