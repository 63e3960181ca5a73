"""Pure: reads an OpenAPI document, JSON or YAML, under caps, and resolves its ``$ref``.

A text that begins with a brace is read as JSON. YAML is composed by ruamel.yaml and its values are built
from the nodes, as for workflow definitions: each alias is the node of its anchor, so a "billion laughs"
composes in milliseconds and fails the cap on values. Keys are text, so the status ``200:`` needs no quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import orjson

from retinue.core.errors import InvalidSettingError, TooLargeError
from retinue.core.json_values import is_nested_deeper, name_shape

MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
MAX_YAML_BYTES = 4 * 1024 * 1024
"""YAML is parsed in Python at about 0.5 MB a second; the same document as JSON takes milliseconds."""

MAX_VALUES = 1_000_000
"""Values of a YAML document, aliases written out."""

MAX_DEPTH = 128
MAX_REF_STEPS = 32
"""References that lead to references."""

JSON_REMEDY = "check that the url or file is an OpenAPI document in JSON or YAML"
BUNDLE_REMEDY = "bundle the document into one file, for example: npx @redocly/cli bundle FILE -o bundled.json"

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_WORDS = _NULL | _TRUE | _FALSE
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")
_INDEX = re.compile(r"0|[1-9][0-9]{0,6}")


class BrokenReferenceError(Exception):
    """A ``$ref`` that cannot be followed; ``remedy`` says what to do. It stays within this folder."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLimits:
    """The largest document that is read; YAML has limits of its own, because reading it is slow."""

    document_bytes: int = MAX_DOCUMENT_BYTES
    yaml_bytes: int = MAX_YAML_BYTES
    yaml_values: int = MAX_VALUES


_LIMITS = DocumentLimits()


def read_document(content: bytes, source: str, limits: DocumentLimits = _LIMITS) -> dict[str, Any]:
    """The top object of a document; ``source`` names it in errors.

    Raises TooLargeError, and InvalidSettingError for text that is neither JSON nor YAML.
    """
    _check_size(content, limits.document_bytes, f"the document {source}")
    text = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    value = _read_json(text, source) if text.startswith(b"{") else _read_yaml(text, source, limits)
    if not isinstance(value, dict):
        raise InvalidSettingError(source, f"{name_shape(value)}, not an object", remedy=JSON_REMEDY)
    return value


def follow(document: Mapping[str, Any], value: Any) -> Any:
    """``value``, or what its ``$ref`` leads to in the end. Raises BrokenReferenceError."""
    for _ in range(MAX_REF_STEPS):
        if not isinstance(value, dict) or value.get("$ref") is None:
            return value
        value = resolve_pointer(document, value["$ref"])
    raise BrokenReferenceError("a $ref leads in a circle", "mend the document")


def resolve_pointer(document: Mapping[str, Any], reference: Any) -> Any:
    """The target of a ``$ref`` of the form ``#/…`` in the document. Raises BrokenReferenceError."""
    if not isinstance(reference, str):
        raise BrokenReferenceError(f"$ref is {name_shape(reference)}, not a string", "mend the document")
    if not reference.startswith("#"):
        raise BrokenReferenceError(f"$ref {reference[:200]!r} points to another file", BUNDLE_REMEDY)
    target: Any = document
    pointer = unquote(reference[1:], errors="replace")
    if pointer and not pointer.startswith("/"):
        raise BrokenReferenceError(f"$ref {reference[:200]!r} leads nowhere", "mend the document")
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and _INDEX.fullmatch(key) and int(key) < len(target):
            target = target[int(key)]
        else:
            raise BrokenReferenceError(f"$ref {reference[:200]!r} leads nowhere", "mend the document")
    return target


def _check_size(content: bytes, limit: int, what: str) -> None:
    if len(content) > limit:
        error = TooLargeError(what, limit)
        error.remedy = f"import a document of at most {limit:,} bytes: leave out paths, or give JSON for YAML"
        raise error


def _read_json(text: bytes, source: str) -> Any:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidSettingError(source, f"no JSON: {error}", remedy=JSON_REMEDY) from None
    if is_nested_deeper(text, value, MAX_DEPTH):
        raise TooLargeError(f"the nesting of {source}", MAX_DEPTH, "levels")
    return value


def _read_yaml(content: bytes, source: str, limits: DocumentLimits) -> Any:
    # imported here, because a JSON document does not need it
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import MaxDepthExceededError
    from ruamel.yaml.error import YAMLError

    _check_size(content, limits.yaml_bytes, f"the YAML document {source}")
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth = MAX_DEPTH + 1  # a scalar counts as a level
    yaml.composer.warn_double_anchors = False
    try:
        root = yaml.compose(content.decode("utf-8"))
    except MaxDepthExceededError:
        raise TooLargeError(f"the nesting of {source}", MAX_DEPTH, "levels") from None
    except (YAMLError, UnicodeDecodeError, ValueError) as error:
        problem = " ".join(str(error).split())[:300]
        raise InvalidSettingError(source, f"no YAML: {problem}", remedy=JSON_REMEDY) from None
    value = None if root is None else _Builder(source, limits.yaml_values).build(root, 0)
    # An alias brings the depth of its anchor with it.
    if isinstance(value, dict | list) and is_nested_deeper(b"{" * (MAX_DEPTH + 1), value, MAX_DEPTH):
        raise TooLargeError(f"the nesting of {source}", MAX_DEPTH, "levels")
    return value


class _Builder:
    """Values from YAML nodes, counted while they are built; an aliased value is built once and shared."""

    def __init__(self, source: str, max_values: int) -> None:
        self._source = source
        self._max_values = max_values
        self._built: dict[int, tuple[Any, int]] = {}
        self._open: set[int] = set()
        self._values = 0

    def build(self, node: Any, depth: int) -> Any:
        """The value of ``node``. Raises InvalidSettingError and TooLargeError."""
        if id(node) in self._open:
            raise self._fault(node, "an alias stands inside its own anchor", "write the value out")
        if id(node) in self._built:
            value, size = self._built[id(node)]
            self._count(size)
            return value
        before = self._values
        self._count(1)
        if isinstance(node.value, str):
            value = self._read_scalar(node)
        else:
            if depth >= MAX_DEPTH:
                raise TooLargeError(f"the nesting of {self._source}", MAX_DEPTH, "levels")
            self._open.add(id(node))
            value = self._build_entries(node, depth + 1)
            self._open.remove(id(node))
        self._built[id(node)] = (value, self._values - before)
        return value

    def _build_entries(self, node: Any, depth: int) -> dict[str, Any] | list[Any]:
        if not node.value or not isinstance(node.value[0], tuple):
            entries = [self.build(item, depth) for item in node.value]
            return entries if node.id == "sequence" else {}
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key.value, str):
                raise self._fault(key, "a key that is no text", "write a plain word as the key")
            value = self.build(item, depth)
            if key.value == "<<" and key.style is None:
                for source in value if isinstance(value, list) else [value]:
                    merged = {**source, **merged} if isinstance(source, dict) else merged
                self._count(len(merged))
            else:
                own[self._check_text(key)] = value
        return {**merged, **own} if merged else own

    def _read_scalar(self, node: Any) -> Any:
        """A plain scalar by the core schema of YAML 1.2; what that does not know is text."""
        text = self._check_text(node)
        if node.style is not None or (text.isalpha() and text not in _WORDS):
            return text
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text) and abs(number := float(text)) != float("inf"):
            return number
        return text

    def _check_text(self, node: Any) -> str:
        text: str = node.value
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise self._fault(node, "half of a surrogate pair", "write the character out") from None
        return text

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > self._max_values:
            raise TooLargeError(
                f"the document {self._source}, aliases written out", self._max_values, "values"
            )

    def _fault(self, node: Any, problem: str, remedy: str) -> InvalidSettingError:
        line = node.start_mark.line + 1
        return InvalidSettingError(f"{self._source}:{line}", problem, remedy=remedy)
