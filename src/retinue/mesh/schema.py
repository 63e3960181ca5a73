"""JSON Schemas of skills: refused when unsafe, compiled once, and reported in stable words.

jsonschema-rs checks values some hundred times faster than the pure Python libraries and never
fetches a ``$ref`` in offline mode (FACTS 4.1); its messages quote values and change between
releases, so that the texts here are our own (SPEC 2 doubt 3, SPEC 7 P-23).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

import jsonschema_rs
import orjson

from retinue.core.errors import Problem, SchemaRefusedError
from retinue.core.record import Schema, Skill
from retinue.mesh.schema_cost import measure_schema
from retinue.mesh.schema_words import explain

MAX_SCHEMA_BYTES = 64 * 1024
MAX_PROBLEMS = 100
"""Most problems reported for one value; ten times as many are looked at, to put them in order."""

CACHE_SIZE = 1024

K = TypeVar("K")
V = TypeVar("V")

_DRAFTS: Mapping[str, type[jsonschema_rs.Validator]] = {
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
}
"""Any other ``$schema``, and none, is read as draft 2020-12."""


class SchemaCheck:
    """One compiled schema; made by `compile_schema`."""

    __slots__ = ("_max_depth", "_validator")

    def __init__(self, validator: jsonschema_rs.Validator, max_depth: int | None) -> None:
        self._validator = validator
        self._max_depth = max_depth

    def is_valid(self, value: Any) -> bool:
        """Whether ``value`` fits; no more than that, and in microseconds."""
        if self._max_depth is not None and _is_deeper(value, self._max_depth):
            return False
        try:
            return self._validator.is_valid(value)
        except ValueError:
            return False

    def problems(self, value: Any) -> list[Problem]:
        """What is wrong with ``value``, first things first; empty when it fits.

        Missing fields come first, in the order of ``required`` and then by path; everything else
        follows by path (SPEC 7, P-23). No message quotes a value.
        """
        if self.is_valid(value):
            return []
        if self._max_depth is not None and _is_deeper(value, self._max_depth):
            limit = f"the value is nested deeper than {self._max_depth} levels, the limit of this schema"
            return [Problem("", limit)]
        try:
            found = list(islice(self._validator.iter_errors(value), MAX_PROBLEMS * 10))
        except ValueError:
            return [Problem("", "the value is no JSON")]
        return explain(found, value)[:MAX_PROBLEMS]


def compile_schema(schema: Schema | bool, where: str) -> SchemaCheck:
    """The compiled check of ``schema``; equal schemas share one.

    ``where`` names the schema in errors, as in ``create_plan.input_schema``. A schema object must
    not be changed after it was handed in. Raises SchemaRefusedError as `check_schema` does.
    """
    known = find_compiled(schema)
    if known is not None:
        return known
    encoded = _encode(schema, where)
    check = _by_content.find(encoded)
    if check is None:
        check = _compile(encoded, where)
        _by_content.put(encoded, check)
    _by_identity.put(id(schema), (schema, check))
    return check


def find_compiled(schema: Schema | bool) -> SchemaCheck | None:
    """The check of a schema that was compiled lately."""
    known = _by_identity.find(id(schema))
    return None if known is None else known[1]


def check_schema(schema: Schema | bool, where: str) -> None:
    """Refuse an unusable schema before anybody meets it.

    Raises SchemaRefusedError when it is no JSON Schema, larger than 64 kB, nested too deeply,
    points outside itself, or could take exponential time (FACTS 4.1).
    """
    compile_schema(schema, where)


def check_skill(skill: Skill) -> None:
    """Refuse a skill with an unusable schema; raises SchemaRefusedError as `check_schema` does."""
    for schema, side in ((skill.input_schema, "input"), (skill.output_schema, "output")):
        if schema is not None:
            compile_schema(schema, f"{side} of {skill.id}")


def _encode(schema: Schema | bool, where: str) -> bytes:
    try:
        encoded = orjson.dumps(schema, default=_plain)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise SchemaRefusedError(where, f"it is no JSON ({error})") from error
    if len(encoded) > MAX_SCHEMA_BYTES:
        raise SchemaRefusedError(where, f"it is larger than {MAX_SCHEMA_BYTES:,} bytes")
    return encoded


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON type")


def _compile(encoded: bytes, where: str) -> SchemaCheck:
    document = orjson.loads(encoded)
    if not isinstance(document, dict | bool):
        raise SchemaRefusedError(where, "a JSON Schema is an object, or true or false")
    max_depth = measure_schema(document, where)
    draft = document.get("$schema") if isinstance(document, dict) else None
    validator: type[jsonschema_rs.Validator] = jsonschema_rs.Draft202012Validator
    if isinstance(draft, str):
        validator = _DRAFTS.get(draft.rstrip("#"), jsonschema_rs.Draft202012Validator)
    try:
        compiled = validator(
            document, offline=True, pattern_options=jsonschema_rs.RegexOptions(), mask="the value"
        )
    except jsonschema_rs.ValidationError as error:
        at = ".".join(map(str, error.instance_path)) or "its top"
        if error.instance_path[-1:] == ["pattern"]:
            problem = "the pattern is no regular expression, or uses look-around or back-references"
        else:
            problem = error.message
        raise SchemaRefusedError(where, f"at {at}: {problem}") from error
    except ValueError as error:
        raise SchemaRefusedError(where, str(error)) from error
    return SchemaCheck(compiled, max_depth)


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether ``value`` nests containers deeper than ``levels``; looks no deeper than that."""
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            child
            for container in layer
            if isinstance(container, dict | list)
            for child in (container.values() if isinstance(container, dict) else container)
        ]
        if not layer:
            return False
    return True


class _RecentlyUsed(Generic[K, V]):
    """A bounded map that forgets what was not used for longest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: dict[K, V] = {}

    def find(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._entries[key] = entry
        return entry

    def put(self, key: K, value: V) -> None:
        self._entries[key] = value
        if len(self._entries) > self._size:
            del self._entries[next(iter(self._entries))]


_by_content: _RecentlyUsed[bytes, SchemaCheck] = _RecentlyUsed(CACHE_SIZE)
_by_identity: _RecentlyUsed[int, tuple[Schema | bool, SchemaCheck]] = _RecentlyUsed(CACHE_SIZE)
"""Holds the schema beside its check, so that its identity is not given to another object meanwhile."""
