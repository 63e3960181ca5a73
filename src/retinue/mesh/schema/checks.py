"""Checks JSON Schemas of skills, compiles each once, and validates with stable error texts.

jsonschema-rs validates about a hundred times faster than the pure Python libraries and never fetches a
``$ref`` in offline mode (specification 13.3). Its messages quote values and change between releases, so the
texts are our own (specification 2, doubt 3, and 7.8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any, Literal

import jsonschema_rs
import orjson
from cachetools import LRUCache

from retinue.core.call import Call
from retinue.core.errors import (
    InvalidParametersError,
    OutputInvalidError,
    Problem,
    SchemaRefusedError,
)
from retinue.core.record import Schema, Skill
from retinue.mesh.schema.cost import measure_schema
from retinue.mesh.schema.messages import explain, format_checks

MAX_SCHEMA_BYTES = 64 * 1024

MAX_PROBLEMS = 100
"""Maximum number of problems reported for one value; ten times as many are sorted to find the first ones."""


CACHE_SIZE = 1024

_DRAFTS: Mapping[str, type[jsonschema_rs.Validator]] = {
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
}
"""Any other ``$schema``, or none, is read as draft 2020-12."""

_compiling = Lock()
_by_content: LRUCache[bytes, SchemaCheck] = LRUCache(CACHE_SIZE)
_by_identity: dict[int, tuple[Schema | bool, SchemaCheck]] = {}
"""Holds each schema with its check, so that its identity is not reused by another object.

A plain dict, first in, first out: every call reads it twice, from any thread. A read takes 44 ns here, 180 ns
in an LRUCache, which would need the lock as well.
"""


class SchemaCheck:
    """One compiled schema; made by `compile_schema`."""

    __slots__ = ("_checks_formats", "_max_depth", "_validator")

    def __init__(
        self,
        validator: jsonschema_rs.Validator,
        max_depth: int | None,
        checks_formats: Callable[[], jsonschema_rs.Validator] | None = None,
    ) -> None:
        self._validator = validator
        self._max_depth = max_depth
        self._checks_formats = checks_formats

    def is_valid(self, value: Any) -> bool:
        """Whether ``value`` fits the schema; takes microseconds."""
        if self._max_depth is not None and _is_deeper(value, self._max_depth):
            return False
        try:
            return self._validator.is_valid(value)
        except ValueError:
            return False

    def problems(self, value: Any, schema: Schema | bool | None = None) -> list[Problem]:
        """The problems of ``value``; empty when it fits.

        With ``schema``, that of this check, an unknown field gets the nearest name as its hint.

        Missing fields come first, in the order of ``required`` and then by path; other problems follow by
        path (P-23; specification 7.2). No message quotes a value.
        """
        return [] if self.is_valid(value) else self.explain(value, schema)

    def explain(self, value: Any, schema: Schema | bool | None = None) -> list[Problem]:
        """As `problems`, and texts that are no date, time, duration or UUID where ``format`` asks for one.

        A ``format`` alone refuses nothing, as JSON Schema has it; but a caller who corrects a call needs all
        its problems.
        """
        if self._max_depth is not None and _is_deeper(value, self._max_depth):
            limit = f"the value is nested deeper than {self._max_depth} levels, the limit of this schema"
            return [Problem("", limit)]
        try:
            errors = list(islice(self._validator.iter_errors(value), MAX_PROBLEMS * 10))
            if self._checks_formats is not None:
                errors += islice(self._checks_formats().iter_errors(value), MAX_PROBLEMS * 10)
        except ValueError:
            return [Problem("", "the value is not JSON")]
        return explain(errors, value, schema)[:MAX_PROBLEMS]


def compile_schema(schema: Schema | bool, where: str) -> SchemaCheck:
    """The compiled check of ``schema``; equal schemas share one.

    ``where`` names the schema in errors, for example ``create_plan.input_schema``. Do not modify a schema
    object after passing it. Raises SchemaRefusedError as `check_schema` does.
    """
    known = find_compiled(schema)
    if known is not None:
        return known
    encoded = _encode(schema, where)
    with _compiling:
        check = _by_content.get(encoded)
        if check is None:
            check = _by_content[encoded] = _compile(encoded, where)
        _by_identity[id(schema)] = (schema, check)
        if len(_by_identity) > CACHE_SIZE:
            del _by_identity[next(iter(_by_identity))]
    return check


def find_compiled(schema: Schema | bool) -> SchemaCheck | None:
    """The check of a schema object that was compiled recently; None otherwise."""
    known = _by_identity.get(id(schema))
    return None if known is None else known[1]


def check_schema(schema: Schema | bool, where: str) -> None:
    """Reject an unusable schema before it is used.

    Raises SchemaRefusedError when it is not a JSON Schema, is larger than 64 kB or nested too deeply, refers
    outside itself, or could take exponential time (decision 0013).
    """
    compile_schema(schema, where)


def check_skill(skill: Skill) -> None:
    """Reject a skill with an unusable schema; raises SchemaRefusedError as `check_schema` does."""
    for schema, side in ((skill.input_schema, "input"), (skill.output_schema, "output")):
        if schema is not None:
            compile_schema(schema, f"{side} of {skill.id}")


def _encode(schema: Schema | bool, where: str) -> bytes:
    try:
        encoded = orjson.dumps(schema, default=_plain)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise SchemaRefusedError(where, f"it is not JSON ({error})") from error
    if len(encoded) > MAX_SCHEMA_BYTES:
        raise SchemaRefusedError(where, f"it is larger than {MAX_SCHEMA_BYTES:,} bytes")
    return encoded


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _compile(encoded: bytes, where: str) -> SchemaCheck:
    document = orjson.loads(encoded)
    if not isinstance(document, dict | bool):
        raise SchemaRefusedError(where, "a JSON Schema is an object, true or false")
    max_depth = measure_schema(document, where)
    draft = document.get("$schema") if isinstance(document, dict) else None
    validator: type[jsonschema_rs.Validator] = jsonschema_rs.Draft202012Validator
    if isinstance(draft, str):
        validator = _DRAFTS.get(draft.rstrip("#"), jsonschema_rs.Draft202012Validator)
    make = partial(
        validator, document, offline=True, pattern_options=jsonschema_rs.RegexOptions(), mask="the value"
    )
    try:
        compiled = make()
    except jsonschema_rs.ValidationError as error:
        at = ".".join(map(str, error.instance_path)) or "its top"
        if error.instance_path[-1:] == ["pattern"]:
            problem = "the pattern is no regular expression, or uses look-around or back-references"
        else:
            problem = error.message
        raise SchemaRefusedError(where, f"at {at}: {problem}") from error
    except ValueError as error:
        raise SchemaRefusedError(where, str(error)) from error
    if b'"format"' not in encoded:
        return SchemaCheck(compiled, max_depth)
    return SchemaCheck(compiled, max_depth, lambda: make(validate_formats=True, formats=format_checks()))


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether ``value`` nests containers deeper than ``levels``; goes no deeper than that."""
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


def check_input(skill: Skill, call: Call) -> None:
    """Raise InvalidParametersError where the arguments do not fit the skill's input schema."""
    problems = _find_problems(skill.input_schema, "input", skill, call.arguments)
    if problems:
        raise InvalidParametersError(problems)


def check_output(skill: Skill, value: Any) -> None:
    """Raise OutputInvalidError where the value does not fit the skill's output schema."""
    problems = find_output_problems(skill, value)
    if problems:
        raise OutputInvalidError(skill.id, problems)


def find_output_problems(skill: Skill, value: Any) -> list[Problem]:
    """Where the value does not fit the skill's output schema; [] where it does."""
    return _find_problems(skill.output_schema, "output", skill, value)


def _find_problems(
    schema: Mapping[str, Any] | None, side: Literal["input", "output"], skill: Skill, value: Any
) -> list[Problem]:
    if schema is None:
        return []
    check = find_compiled(schema) or compile_schema(schema, f"{side} of {skill.id}")
    return [] if check.is_valid(value) else check.problems(value, schema)
