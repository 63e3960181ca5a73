"""Reads YAML and JSON texts as plain values with line numbers, under caps.

ruamel.yaml composes the nodes (YAML 1.2): each alias is the node of its anchor, so nothing is multiplied
yet and a "billion laughs" composes in milliseconds. The values are built from the nodes under caps on
size, count, nesting and aliases. Only JSON values are accepted: no tags, no dates, keys are text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode
from ruamel.yaml.scanner import Scanner, ScannerError

from retinue.core.errors import DefinitionError

MAX_TEXT_BYTES = 256 * 1024
MAX_VALUES = 50_000
MAX_DEPTH = 64
MAX_ALIASES = 100
MAX_MARKS = 15_000
"""Line breaks, commas and opening brackets of a YAML text: more values than that take seconds to compose."""

Path = tuple[str | int, ...]

_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp", "merge", "value")
)
"""The tags that the resolver gives to nodes without one."""

_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_PROBLEMS = {
    _TOO_DEEP: (_TOO_DEEP, "make it flatter"),
    "but found another document": ("a second document", "write one workflow in each file"),
}
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_OTHER_BASE = re.compile(r"0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")


class Place(NamedTuple):
    """A place in a text, counted from 1; zeros when unknown."""

    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed text: its value, and the place at which the value of each path begins.

    The place of a mapping's entry is that of its key.
    """

    value: Any
    source: str
    places: dict[Path, Place] = field(default_factory=dict)

    def place_of(self, path: Path) -> Place:
        """The place of a path, or of the nearest thing around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place())

    def fault(self, path: Path, problem: str, remedy: str) -> DefinitionError:
        """The error that this document has at ``path``."""
        where = render_path(path)
        text = f"{where}: {problem}" if where else problem
        line, column = self.place_of(path)
        return DefinitionError(text, source=self.source, line=line, column=column, path=path, remedy=remedy)


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
    if _count_marks(text) > MAX_MARKS:
        # Without lines, which are read as YAML.
        if sum(1 for _ in _iterate_values(value)) > MAX_VALUES:
            raise DefinitionError(f"more than {MAX_VALUES:,} values", source=source, remedy="make it smaller")
        return document_of(value, source)
    try:
        places = _read_yaml(text, source).places
    except DefinitionError as error:
        if "nested" in error.message or "values" in error.message:
            raise
        places = {}
    return Document(value, source, places)


def _iterate_values(value: Any) -> Iterator[Any]:
    stack = [value]
    while stack:
        item = stack.pop()
        yield item
        if isinstance(item, (dict, list)):
            stack.extend(item.values() if isinstance(item, dict) else item)


def _count_marks(text: str) -> int:
    return sum(map(text.count, "\n\r\x85\u2028\u2029,[{"))


def _read_yaml(text: str, source: str) -> Document:
    if (marks := _count_marks(text)) > MAX_MARKS:
        problem = f"{marks:,} lines, commas and brackets; at most {MAX_MARKS:,} in YAML"
        raise DefinitionError(
            problem, source=source, remedy="make it smaller, or split it into several workflows"
        )
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MAX_DEPTH + 1  # a scalar counts as a level
    yaml.composer.warn_double_anchors = False
    yaml.Scanner = _LimitedScanner
    try:
        root = yaml.compose(text)
    except MaxDepthExceededError as error:
        raise _too_deep(source, error.problem_mark.line + 1) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        problem = (error.problem or error.context or "no YAML").strip()
        problem, remedy = _PROBLEMS.get(problem, (problem, _yaml_remedy(text, line)))
        raise DefinitionError(problem, source=source, line=line, column=column, remedy=remedy) from None
    except YAMLError as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else "no YAML"
        raise DefinitionError(line, source=source, remedy="mend the YAML") from None
    builder = _Builder(source)
    value = None if root is None else builder.build(root, (), _place_of(root))
    return Document(value, source, builder.places)


class _LimitedScanner(Scanner):
    """Stops at a bracket too many: it looks through all open ones for each further token."""

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803 - its name
        if len(self.flow_context) > MAX_DEPTH:
            raise ScannerError(None, None, _TOO_DEEP, self.reader.get_mark())
        super().fetch_flow_collection_start(TokenClass, to_push)


def _yaml_remedy(text: str, line: int) -> str:
    near = text.splitlines()[max(0, line - 2) : line]
    if any("{{" in part for part in near):
        return 'put quotes around it: "${{ … }}"'
    return "mend the YAML"


class _Builder:
    """Values from nodes, counted while they are built; an aliased value is built once and shared."""

    def __init__(self, source: str) -> None:
        self.places: dict[Path, Place] = {}
        self._source = source
        self._built: dict[Node, tuple[Any, int]] = {}
        self._open: set[Node] = set()
        self._values = 0
        self._aliases = 0

    def build(self, node: Node, path: Path, place: Place) -> Any:
        """The value of ``node``; ``place`` is that of its key, or of the collection around an alias."""
        self.places[path] = place
        line = place.line
        if node in self._open:
            raise self._fault(f"alias *{node.anchor} stands for nothing yet", line, "write the value out")
        if node in self._built:
            self._aliases += 1
            if self._aliases > MAX_ALIASES:
                raise self._fault(f"more than {MAX_ALIASES} aliases", line, "write the values out")
            value, size = self._built[node]
            self._count(size, line)
            return value
        self._refuse_tag(node)
        before = self._values
        self._count(1, line)
        if isinstance(node, ScalarNode):
            value = _read_scalar(node.value) if node.style is None else node.value
        else:
            if len(path) >= MAX_DEPTH:
                raise _too_deep(self._source, line)
            self._open.add(node)
            value = self._build_entries(node, path, place)
            self._open.remove(node)
        self._built[node] = (value, self._values - before)
        return value

    def _build_entries(self, node: Node, path: Path, place: Place) -> dict[str, Any] | list[Any]:
        if not isinstance(node, MappingNode):
            return [
                self.build(item, (*path, index), place if item in self._built else _place_of(item))
                for index, item in enumerate(node.value)
            ]
        values: dict[str, Any] = {}
        for key, item in node.value:
            key_place = _place_of(key)
            key_line = key_place.line
            if key in self._built:
                raise self._fault("an alias as a key", place.line, "write the key out")
            self._refuse_tag(key)
            if not isinstance(key, ScalarNode):
                raise self._fault("a key that is no text", key_line, "write a plain word as the key")
            if key.value in values:
                first = self.places[(*path, key.value)].line
                problem = f"key {key.value!r} stands twice (first in line {first})"
                raise self._fault(problem, key_line, "remove one of them")
            values[key.value] = self.build(item, (*path, key.value), key_place)
        return values

    def _refuse_tag(self, node: Node) -> None:
        if node.ctag.handle is not None or node.tag not in _TAGS:
            line = node.start_mark.line + 1
            raise self._fault(f"tag {node.tag}", line, "write plain values; tags are not read")

    def _count(self, values: int, line: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise self._fault(
                f"more than {MAX_VALUES:,} values, aliases written out", line, "make it smaller"
            )

    def _fault(self, problem: str, line: int, remedy: str) -> DefinitionError:
        return DefinitionError(problem, source=self._source, line=line, remedy=remedy)


def _place_of(node: Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _read_scalar(text: str) -> Any:
    """A plain scalar by the core schema of YAML 1.2; any other plain value is text."""
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


def _too_deep(source: str, line: int = 0) -> DefinitionError:
    return DefinitionError(_TOO_DEEP, source=source, line=line, remedy="make it flatter")


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
