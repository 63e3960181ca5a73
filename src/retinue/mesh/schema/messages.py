"""Renders stable error texts for values and formats; no text quotes a value.

Each text names the field, what the schema requires and the shape of the value:
``field 'l.1' must be integer or null; it is a string of 3 characters``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from math import isfinite
from typing import Any, cast
from uuid import UUID

import orjson
import pydantic
from jsonschema_rs import ValidationError

from retinue.core.errors import Problem
from retinue.core.json_values import find_reference
from retinue.core.text import suggest

MAX_QUOTED = 120
"""Maximum number of characters quoted from a schema: an enum, a pattern or a field name."""

Path = tuple[str | int, ...]

_TYPES: Mapping[str, type] = {
    "date": date,
    "date-time": datetime,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
    "decimal": Decimal,
}
_UNCHECKED = (
    *("email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri", "iri-reference"),
    *("json-pointer", "regex", "relative-json-pointer", "uri", "uri-reference", "uri-template"),
)
"""Formats that jsonschema-rs would check by rules of its own."""

_FORMATS: Mapping[str, str] = {
    "date": "be a date such as 2026-01-31",
    "date-time": "be a date and time such as 2026-01-31T12:30:00Z",
    "time": "be a time such as 12:30:00",
    "duration": "be a duration such as PT1H30M",
    "uuid": "be a UUID",
    "decimal": "be a number such as 9.99",
}
"""The requirement that a refused value breaks, by format."""


def explain(errors: Iterable[ValidationError], value: Any, schema: Any = None) -> list[Problem]:
    """The problems of one validation of ``value``: missing fields first (P-23).

    ``schema`` gives the names that an unknown field may have been meant for.
    """
    problems: dict[tuple[Path, str], tuple[Any, Problem]] = {}
    for error in errors:
        for keyword_error in _unfold(error):
            for rank, problem in _describe(keyword_error, value, schema):
                problems.setdefault((rank[1], problem.message), (_sort_key(rank), problem))
    return [problem for _, problem in sorted(problems.values(), key=lambda entry: entry[0])]


def _sort_key(rank: tuple[int, Path]) -> tuple[int, list[tuple[bool, int, str]]]:
    """Sort key: rank 0 before 1, then by path; indexes as numbers, before names."""
    late, path = rank
    return late, [(False, p, "") if isinstance(p, int) else (True, 0, p) for p in path]


def _unfold(error: ValidationError) -> Iterator[ValidationError]:
    """The errors of the only branch of ``anyOf`` that the value can be meant for, if there is just one.

    So a field that is missing inside an optional object is named, instead of "fits no form". No value other
    than null can be meant for the branch of an optional value that asks for null.
    """
    if error.kind.name in {"anyOf", "oneOf"} and hasattr(error.kind, "context"):
        here = len(error.instance_path)
        branches = [branch for branch in error.kind.context if branch]
        meant = [branch for branch in branches if not _is_other_form(branch, here)]
        if not meant and error.kind.name == "anyOf":
            meant = [branch for branch in branches if not _asks_for_null(branch, here)]
        if len(meant) == 1:
            for inner in meant[0]:
                yield from _unfold(inner)
            return
    yield error


def _asks_for_null(branch: list[ValidationError], depth: int) -> bool:
    """Whether this branch takes null only."""
    return any(
        error.kind.name == "type"
        and len(error.instance_path) == depth
        and list(error.kind.as_dict()["types"]) == ["null"]
        for error in branch
    )


def _is_other_form(branch: list[ValidationError], depth: int) -> bool:
    """Whether the value is of another type than this branch, or carries another tag."""
    return any(
        (e.kind.name == "type" and len(e.instance_path) == depth)
        or (e.kind.name in {"const", "enum"} and len(e.instance_path) <= depth + 1)
        for e in branch
    )


def _describe(error: ValidationError, value: Any, schema: Any) -> Iterator[tuple[tuple[int, Path], Problem]]:
    kind, keyword = error.kind, error.kind.name
    path: Path = tuple(error.instance_path)
    if keyword == "required":
        field = _dotted((*path, kind.as_dict()["property"]))
        yield (0, path), Problem(field, f"missing required field '{field}'")
    elif (unexpected := _find_unexpected(error, value)) is not None:
        known = _known_fields(schema, error.schema_path)
        for name in sorted(unexpected):
            field = _dotted((*path, name))
            hint = "" if known is None else _suggest_field(name, known, _at(value, path))
            yield (1, (*path, name)), Problem(field, f"unknown field '{field}'", hint)
    elif keyword == "falseSchema":
        field = _dotted(path)
        yield (1, path), Problem(field, f"unknown field '{field}'" if path else "no value is allowed")
    else:
        subject = f"field '{_dotted(path)}'" if path else "the value"
        text = f"{subject} must {_wanted(keyword, kind.as_dict())}; it is {describe_shape(_at(value, path))}"
        yield (1, path), Problem(_dotted(path), text)


def _find_unexpected(error: ValidationError, value: Any) -> list[str] | None:
    """The fields that are not allowed; None when the error is another one."""
    if error.kind.name in {"additionalProperties", "unevaluatedProperties"}:
        return cast(list[str], error.kind.as_dict()["unexpected"])
    if error.kind.name == "falseSchema" and error.schema_path[-1:] == ["additionalProperties"]:
        # Reported at the object instead of the field where a schema allows no fields at all.
        return list(_at(value, tuple(error.instance_path)))
    return None


def _known_fields(schema: Any, schema_path: Iterable[Any]) -> list[str] | None:
    """The fields of the object schema that this keyword belongs to; None where they are not to be found."""
    target = schema
    for part in list(schema_path)[:-1]:
        if part == "$ref" and isinstance(target, dict):
            target = find_reference(schema, target.get("$ref"))
        elif isinstance(target, dict) or (isinstance(target, list) and isinstance(part, int)):
            try:
                target = target[part]
            except (KeyError, IndexError):
                return None
        else:
            return None
    if not isinstance(target, dict):
        return None
    properties = target.get("properties", {})
    return list(properties) if isinstance(properties, dict) else None


def _suggest_field(name: str, known: list[str], value: Any) -> str:
    """The field that an unknown one was probably meant for and that is not given yet, else all fields."""
    if not known:
        return "there are no fields"
    free = [field for field in known if not (isinstance(value, dict) and field in value)]
    if near := suggest(name, free or known, limit=1):
        return f"did you mean '{_clip(near[0])}'?"
    return _clip("there are: " + ", ".join(known))


def describe_shape(value: Any) -> str:
    """The type and size of a JSON value, never the value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number" if isfinite(value) else f"{value}, which is not JSON"
        case str():
            return f"a string of {_count(len(value), 'character')}"
        case list() | tuple():
            return f"an array of {_count(len(value), 'item')}"
        case dict():
            return f"an object of {_count(len(value), 'field')}"
    return f"a {type(value).__name__}"


def _wanted(keyword: str, facts: Mapping[str, Any]) -> str:
    words = _WANTED.get(keyword)
    return words(facts) if words else f"satisfy '{keyword}' of the schema"


_WANTED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "type": lambda f: "be " + " or ".join(sorted(f["types"], key=lambda t: (t == "null", t))),
    "enum": lambda f: "be one of " + _quote(f["options"])[1:-1],
    "const": lambda f: "be " + _quote(f["expected_value"]),
    "anyOf": lambda f: f"fit one of the {len(f['context'])} allowed forms",
    "oneOf": lambda f: f"fit exactly one of the {len(f['context'])} allowed forms",
    "not": lambda f: "not have the form that the schema excludes",
    "minimum": lambda f: f"be at least {f['limit']}",
    "maximum": lambda f: f"be at most {f['limit']}",
    "exclusiveMinimum": lambda f: f"be more than {f['limit']}",
    "exclusiveMaximum": lambda f: f"be less than {f['limit']}",
    "multipleOf": lambda f: f"be a multiple of {f['multiple_of']}",
    "minLength": lambda f: f"have at least {_count(f['limit'], 'character')}",
    "maxLength": lambda f: f"have at most {_count(f['limit'], 'character')}",
    "pattern": lambda f: f"match the pattern {_clip(f['pattern'])}",
    "format": lambda f: _FORMATS.get(f["format"], f"have the format {_clip(f['format'])}"),
    "minItems": lambda f: f"have at least {_count(f['limit'], 'item')}",
    "maxItems": lambda f: f"have at most {_count(f['limit'], 'item')}",
    "additionalItems": lambda f: f"have at most {_count(f['limit'], 'item')}",
    "unevaluatedItems": lambda f: "have no further items",
    "uniqueItems": lambda f: "hold no item twice",
    "contains": lambda f: "hold an item of the form that the schema asks for",
    "minProperties": lambda f: f"have at least {_count(f['limit'], 'field')}",
    "maxProperties": lambda f: f"have at most {_count(f['limit'], 'field')}",
    "propertyNames": lambda f: "have only field names that the schema allows",
    "contentEncoding": lambda f: f"be encoded as {_clip(f['content_encoding'])}",
    "contentMediaType": lambda f: f"hold {_clip(f['content_media_type'])}",
}


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _dotted(path: Path) -> str:
    return _clip(".".join(map(str, path)))


def _quote(words: Any) -> str:
    text = orjson.dumps(words).decode()
    if len(text) > MAX_QUOTED and isinstance(words, list):
        kept = [word for word in words[:10] if len(orjson.dumps(word)) < MAX_QUOTED // 4]
        text = f"{orjson.dumps(kept).decode()[:-1]}, … {len(words)} in all]"
    return _clip(text.replace('","', '", "'), MAX_QUOTED * 2)


def _clip(text: str, limit: int = MAX_QUOTED) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


@cache
def format_checks() -> dict[str, Callable[[str], bool]]:
    """The check of each format; strings that pydantic reads in another spelling are right as well."""
    checks: dict[str, Callable[[str], bool]] = {name: lambda text: True for name in _UNCHECKED}
    return checks | {name: _reads(pydantic.TypeAdapter(kind)) for name, kind in _TYPES.items()}


def _reads(adapter: pydantic.TypeAdapter[object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            adapter.validate_python(text)
        except pydantic.ValidationError:
            return False
        return True

    return check
