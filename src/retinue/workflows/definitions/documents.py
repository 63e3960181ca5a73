"""YAML and JSON texts → plain values and the line of each, under caps.

ruamel.yaml parses (YAML 1.2); the values are built here from its events, because the caps must hold
while the text is read: on size, count, nesting and aliases, which multiply values (the "billion
laughs"). Only what JSON can say is accepted: no tags, no dates, keys are text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import orjson
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
)

from retinue.core.errors import DefinitionError

MAX_TEXT_BYTES = 256 * 1024
MAX_VALUES = 50_000
MAX_DEPTH = 64
MAX_ALIASES = 100

Path = tuple[str | int, ...]

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_OTHER_BASE = re.compile(r"0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed text: its value, and the 1-based line at which the value of each path begins.

    The line of a mapping's entry is that of its key.
    """

    value: Any
    source: str
    lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int:
        """The line of a path, or of the nearest thing around it; 0 when unknown."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def fault(self, path: Path, problem: str, remedy: str) -> DefinitionError:
        """The error that this document has at ``path``."""
        where = render_path(path)
        text = f"{where}: {problem}" if where else problem
        return DefinitionError(text, source=self.source, line=self.line_of(path), remedy=remedy)


def document_of(value: Any, source: str) -> Document:
    """The document of a value that somebody sent inline; copied, so that no caller can change it.

    Raises DefinitionError unless it is JSON within the caps.
    """
    try:
        encoded = orjson.dumps(value)
    except TypeError as error:
        if "Recursion limit" in str(error):
            raise _too_deep(source) from None
        raise DefinitionError(f"no JSON: {error}", source=source, remedy="send JSON values") from None
    if len(encoded) > MAX_TEXT_BYTES:
        raise _too_large(source)
    if _is_deeper(value, MAX_DEPTH):
        raise _too_deep(source)
    return Document(orjson.loads(encoded), source)


def render_path(path: Path) -> str:
    """A path as a person writes it: ``steps[2].retry.attempts``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")


def read_text(text: str, source: str) -> Document:
    """The document of a YAML or JSON text; raises DefinitionError with the line."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise _too_large(source)
    if text.lstrip().startswith("{"):
        return _read_json(text, source)
    return _read_yaml(text, source)


def _read_json(text: str, source: str) -> Document:
    try:
        value = json.loads(text, object_pairs_hook=_refuse_repeated_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        # A YAML text may begin with a brace too; what it is then, the other reader says better.
        return _read_yaml(text, source)
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DefinitionError(problem, source=source, remedy="mend the JSON") from None
    try:
        lines = _read_yaml(text, source).lines
    except DefinitionError as error:
        if "nested" in error.message or "values" in error.message:
            raise
        lines = {}
    return Document(value, source, lines)


def _read_yaml(text: str, source: str) -> Document:
    builder = _Builder(source)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            builder.take(event)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        problem = (error.problem or error.context or "no YAML").strip()
        raise DefinitionError(problem, source=source, line=line, remedy=_yaml_remedy(text, line)) from None
    except YAMLError as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else "no YAML"
        raise DefinitionError(line, source=source, remedy="mend the YAML") from None
    return Document(builder.value, source, builder.lines)


def _yaml_remedy(text: str, line: int) -> str:
    near = text.splitlines()[max(0, line - 2) : line]
    if any("{{" in part for part in near):
        return 'put quotes around it: "${{ … }}"'
    return "mend the YAML"


@dataclass(slots=True)
class _Open:
    """A collection whose end has not come yet."""

    value: dict[str, Any] | list[Any]
    path: Path
    anchor: str | None
    size: int = 1
    key: str | None = None


class _Builder:
    """Values from parse events, counted while they come."""

    def __init__(self, source: str) -> None:
        self.value: Any = None
        self.lines: dict[Path, int] = {}
        self._source = source
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0
        self._aliases = 0
        self._documents = 0

    def take(self, event: Event) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._fault("a second document", line, "write one workflow in each file")
        elif isinstance(event, AliasEvent):
            self._take_alias(event.anchor, line)
        elif isinstance(event, ScalarEvent):
            self._take_scalar(event, line)
        elif isinstance(event, CollectionStartEvent):
            self._open(event, line)
        elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
            self._close(line)

    def _take_scalar(self, event: ScalarEvent, line: int) -> None:
        self._refuse_tag(event.tag, line)
        plain = event.implicit[0]
        value = _read_scalar(event.value) if plain else event.value
        if self._awaits_key():
            self._take_key(event.value, line)
            return
        if event.anchor:
            self._anchors[event.anchor] = (value, 1)
        self._add(value, 1, line)

    def _take_key(self, key: str, line: int) -> None:
        top = self._stack[-1]
        if key in top.value:
            first = self.lines.get((*top.path, key), 0)
            raise self._fault(f"key {key!r} stands twice (first in line {first})", line, "remove one of them")
        top.key = key
        self.lines[(*top.path, key)] = line

    def _take_alias(self, anchor: str, line: int) -> None:
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            raise self._fault(f"more than {MAX_ALIASES} aliases", line, "write the values out")
        if self._awaits_key():
            raise self._fault("an alias as a key", line, "write the key out")
        if anchor not in self._anchors:
            raise self._fault(f"alias *{anchor} stands for nothing yet", line, "write the value out")
        value, size = self._anchors[anchor]
        self._add(value, size, line)

    def _open(self, event: CollectionStartEvent, line: int) -> None:
        self._refuse_tag(event.tag, line)
        if self._awaits_key():
            raise self._fault("a key that is no text", line, "write a plain word as the key")
        if len(self._stack) >= MAX_DEPTH:
            raise self._fault(f"nested deeper than {MAX_DEPTH} levels", line, "make it flatter")
        path = self._next_path()
        self.lines.setdefault(path, line)
        value: dict[str, Any] | list[Any] = {} if isinstance(event, MappingStartEvent) else []
        self._stack.append(_Open(value, path, event.anchor))

    def _close(self, line: int) -> None:
        done = self._stack.pop()
        if done.anchor:
            self._anchors[done.anchor] = (done.value, done.size)
        self._values -= done.size - 1  # counted once more below, as one value with its parts
        self._add(done.value, done.size, line, keep_line=True)

    def _add(self, value: Any, size: int, line: int, *, keep_line: bool = False) -> None:
        self._values += size
        if self._values > MAX_VALUES:
            raise self._fault(
                f"more than {MAX_VALUES:,} values, aliases written out", line, "make it smaller"
            )
        if not self._stack:
            self.value = value
            return
        top = self._stack[-1]
        if not keep_line:
            self.lines.setdefault(self._next_path(), line)
        top.size += size
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is not None:
            top.value[top.key] = value
            top.key = None

    def _awaits_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].value, dict) and self._stack[-1].key is None

    def _next_path(self) -> Path:
        if not self._stack:
            return ()
        top = self._stack[-1]
        if isinstance(top.value, list):
            return (*top.path, len(top.value))
        return (*top.path, top.key or "")

    def _refuse_tag(self, tag: Any, line: int) -> None:
        if tag is not None:
            raise self._fault(f"tag {tag}", line, "write plain values; tags are not read")

    def _fault(self, problem: str, line: int, remedy: str) -> DefinitionError:
        return DefinitionError(problem, source=self._source, line=line, remedy=remedy)


def _read_scalar(text: str) -> Any:
    """A plain scalar by the core schema of YAML 1.2; what it does not know is text."""
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text) and not _is_infinite(text):
        return float(text)
    return text


def _is_infinite(text: str) -> bool:
    return float(text) in (float("inf"), float("-inf"))


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r} stands twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _too_large(source: str) -> DefinitionError:
    return DefinitionError(
        f"larger than {MAX_TEXT_BYTES // 1024} kB", source=source, remedy="split it into several workflows"
    )


def _too_deep(source: str) -> DefinitionError:
    return DefinitionError(f"nested deeper than {MAX_DEPTH} levels", source=source, remedy="make it flatter")


def _is_deeper(value: Any, levels: int) -> bool:
    here = [value]
    for _ in range(levels):
        here = [
            inner
            for item in here
            if isinstance(item, (dict, list))
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not here:
            return False
    return True
