"""Pure: converts keywords of OpenAPI schemas to JSON Schema 2020-12."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema_rs

from retinue.core.json_values import name_shape

Convert = Callable[[Any, str], dict[str, Any] | bool]
"""Converts a subschema, given with its place."""

_Kept = Iterator[tuple[str, Any]]

_MAX_VALUE_DEPTH = 8
"""Levels of JSON in ``const``, ``default``, ``enum`` and ``examples``."""

_INTEGERS = range(-(2**63), 2**64)
_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})

_SUBSCHEMA = ("not", "if", "then", "else", "contains", "propertyNames", "items", "additionalProperties",
              "unevaluatedItems", "unevaluatedProperties", "contentSchema")  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "dependentSchemas")
_TEXTS = ("title", "description", "format", "contentEncoding", "contentMediaType")
_COUNTS = ("maxLength", "minLength", "maxItems", "minItems", "maxContains", "minContains", "maxProperties",
           "minProperties")  # fmt: skip
_NUMBERS = ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum")
_FLAGS = ("deprecated", "readOnly", "writeOnly", "uniqueItems")
_VALUES = ("const", "default")
_COMBINING = ("allOf", "anyOf", "oneOf", "$ref", "not", "if")


class BrokenSchemaError(Exception):
    """A schema that cannot be converted; it stays within this folder."""

    def __init__(self, where: str, problem: str, remedy: str = "mend the document") -> None:
        super().__init__(f"{where}: {problem}" if where else problem)
        self.remedy = remedy


class KeywordReader:
    """Reads the keywords of the schemas of one document; remembers which patterns the compiler accepts."""

    def __init__(self) -> None:
        self._patterns: dict[str, bool] = {}

    def read(self, schema: Mapping[str, Any], where: str, convert: Convert) -> dict[str, Any]:
        """The kept keywords of a schema without its references. Raises BrokenSchemaError."""
        kept: dict[str, Any] = {}
        for keyword in schema:
            reader = _READERS.get(keyword)
            if reader is not None:
                kept.update(reader(self, schema, keyword, f"{where}.{keyword}".lstrip("."), convert))
        _place_bounds(kept)
        return kept

    def _is_pattern(self, pattern: str) -> bool:
        """Whether the compiler of schemas accepts a regular expression."""
        known = self._patterns.get(pattern)
        if known is None:
            try:
                jsonschema_rs.Draft202012Validator(
                    {"pattern": pattern}, pattern_options=jsonschema_rs.RegexOptions()
                )
                known = True
            except (jsonschema_rs.ValidationError, ValueError):
                known = False
            self._patterns[pattern] = known
        return known

    # Each yields what is kept of one keyword.

    def _read_schema(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        if key == "items" and isinstance(schema[key], list):
            if schema[key]:
                yield "prefixItems", [convert(item, where) for item in schema[key]]
        else:
            yield key, convert(schema[key], where)

    def _read_list(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        if not isinstance(schema[key], list):
            raise BrokenSchemaError(where, f"{name_shape(schema[key])}, not a list")
        if schema[key]:  # an empty list is not allowed, and says nothing
            yield key, [convert(inner, f"{where}[{i}]") for i, inner in enumerate(schema[key])]

    def _read_named(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        named = schema[key]
        if not isinstance(named, dict):
            raise BrokenSchemaError(where, f"{name_shape(named)}, not an object")
        yield (
            key,
            {
                name: convert(inner, f"{where}.{name}")
                for name, inner in named.items()
                if key != "patternProperties" or self._is_pattern(name)
            },
        )

    def _read_type(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        value = schema[key]
        names = value if isinstance(value, list) else [value]
        if not all(isinstance(name, str) and name in _TYPES for name in names) or not names:
            raise BrokenSchemaError(where, "not one of " + ", ".join(sorted(_TYPES)))
        yield key, value if isinstance(value, str) else list(dict.fromkeys(names))

    def _read_enum(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        if not isinstance(schema[key], list):
            raise BrokenSchemaError(where, f"{name_shape(schema[key])}, not a list")
        if schema[key]:
            yield key, [_bounded(choice) for choice in schema[key]]

    def _read_required(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        # ``required: true`` on a property is of Swagger 2 and means nothing here.
        if isinstance(schema[key], list):
            yield key, list(dict.fromkeys(name for name in schema[key] if isinstance(name, str)))

    def _read_dependent(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        if isinstance(schema[key], dict):
            yield (
                key,
                {
                    name: list(
                        dict.fromkeys(dependency for dependency in names if isinstance(dependency, str))
                    )
                    for name, names in schema[key].items()
                    if isinstance(names, list)
                },
            )

    def _read_text(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        if isinstance(schema[key], str):
            yield key, schema[key]

    def _read_pattern(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        # A pattern that the compiler refuses (look-around, ECMA syntax) would refuse the whole schema.
        if isinstance(schema[key], str) and self._is_pattern(schema[key]):
            yield key, schema[key]

    def _read_count(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        value = schema[key]
        if _is_number(value) and value == int(value) and value >= 0:
            yield key, int(min(value, 2**63 - 1))

    def _read_number(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        if _is_number(schema[key]):
            yield key, _bounded(schema[key])
        elif schema[key] is True and key.startswith("exclusive"):
            yield key, True  # the form of 3.0, see `_place_bounds`

    def _read_multiple(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        if _is_number(schema[key]) and schema[key] > 0:
            yield key, _bounded(schema[key])

    def _read_flag(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        if schema[key] is True:
            yield key, True

    def _read_value(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        yield key, _bounded(schema[key])

    def _read_examples(self, schema: Mapping[str, Any], key: str, where: str, convert: Convert) -> _Kept:
        if isinstance(schema[key], list):
            yield key, _bounded(schema[key])


_Reader = Callable[[KeywordReader, Mapping[str, Any], str, str, Convert], _Kept]

_READERS: Mapping[str, _Reader] = {
    **dict.fromkeys(_SUBSCHEMA, KeywordReader._read_schema),
    **dict.fromkeys(_LISTS, KeywordReader._read_list),
    **dict.fromkeys(_NAMED, KeywordReader._read_named),
    **dict.fromkeys(_TEXTS, KeywordReader._read_text),
    **dict.fromkeys(_COUNTS, KeywordReader._read_count),
    **dict.fromkeys(_NUMBERS, KeywordReader._read_number),
    **dict.fromkeys(_FLAGS, KeywordReader._read_flag),
    **dict.fromkeys(_VALUES, KeywordReader._read_value),
    "type": KeywordReader._read_type,
    "enum": KeywordReader._read_enum,
    "required": KeywordReader._read_required,
    "dependentRequired": KeywordReader._read_dependent,
    "pattern": KeywordReader._read_pattern,
    "multipleOf": KeywordReader._read_multiple,
    "examples": KeywordReader._read_examples,
}
"""Keyword → its reader. Dropped: ``discriminator``, ``xml``, ``example``, ``x-…``, ids, and unknown ones."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _place_bounds(kept: dict[str, Any]) -> None:
    """The boolean bounds of 3.0 as the numbers of 2020-12."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if kept.get(exclusive) is True:
            del kept[exclusive]
            if bound in kept:
                kept[exclusive] = kept.pop(bound)


def make_nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with null allowed; what accepts anything accepts null already."""
    if any(keyword in schema for keyword in _COMBINING):
        notes: dict[str, Any] = {
            key: schema.pop(key) for key in ("title", "description", "default") if key in schema
        }
        return {**notes, "anyOf": [schema, {"type": "null"}]}
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema["type"] = [*types, *({"null"} - {*types})]
    if "enum" in schema and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if "const" in schema and schema["const"] is not None:
        schema["enum"] = [schema.pop("const"), None]
    return schema


def _bounded(value: Any, depth: int = 0) -> Any:
    """A JSON value with integers over 64 bits as floats, which the encoder of JSON requires."""
    if isinstance(value, int) and not isinstance(value, bool) and value not in _INTEGERS:
        return float(value) if abs(value) < 10**300 else 1e300
    if isinstance(value, list | dict) and depth >= _MAX_VALUE_DEPTH:
        raise BrokenSchemaError("", f"a value is nested deeper than {_MAX_VALUE_DEPTH} levels")
    if isinstance(value, dict):
        return {key: _bounded(inner, depth + 1) for key, inner in value.items()}
    return [_bounded(inner, depth + 1) for inner in value] if isinstance(value, list) else value
