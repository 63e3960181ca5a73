"""Pure: schemas of OpenAPI 3.0 and 3.1 as JSON Schema 2020-12 (OpenAPI 3.0.4, 4.7.24; 3.1.1, 4.8.24).

A ``$ref`` stays a ``$ref``, to ``#/$defs/NAME``: a schema carries the definitions that it reaches, so a
recursive one needs no limit. Resolving instead took 12 s for a public document of 1.8 MB, and conversion
takes 0.02 s. Only keywords of the vocabulary are kept, each in the form that the specification gives it, so
that a converted schema compiles; anything else raises `BrokenSchemaError`, which costs that schema and not
the import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jsonschema_rs

from retinue.core.json_values import name_shape
from retinue.openapi.codec.media_types import FILE, is_file
from retinue.openapi.codec.reader import BrokenReferenceError, resolve_pointer

Direction = Literal["input", "output"]

MAX_DEPTH = 24
"""Levels of one schema without its references, each two levels of JSON; the compiler accepts 64 of those."""

_MAX_VALUE_DEPTH = 8
"""Levels of JSON in ``const``, ``default``, ``enum`` and ``examples``."""

_INTEGERS = range(-(2**63), 2**64)
_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")

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


class SchemaConverter:
    """Converts the schemas of one document for one direction; a component is converted once.

    ``input`` leaves out what is only read, ``output`` what is only written. With ``files``, binary text is
    `FILE`, as in the fields of a multipart body.
    """

    def __init__(
        self, document: Mapping[str, Any], *, is_30: bool, direction: Direction, files: bool = False
    ) -> None:
        self._document = document
        self._is_30 = is_30
        self._files = files
        self._hidden = "readOnly" if direction == "input" else "writeOnly"
        self._definitions: dict[str, dict[str, Any] | bool | BrokenSchemaError] = {}
        self._reached: dict[str, tuple[str, ...]] = {}
        self._names: dict[str, str] = {}
        self._pointers: dict[str, str] = {}
        self._patterns: dict[str, bool] = {}

    def convert(self, schema: Any) -> tuple[dict[str, Any] | bool, dict[str, Any]]:
        """The schema, and the ``$defs`` that it reaches, nearest first. Raises BrokenSchemaError."""
        refs: list[str] = []
        converted = _Conversion(self, schema, None, refs).convert(schema, "", 0)
        definitions: dict[str, Any] = {}
        waiting = list(dict.fromkeys(refs))
        while waiting:
            following: list[str] = []
            for pointer in waiting:
                name = self.name_of(pointer)
                if name not in definitions:
                    definitions[name] = self._convert_definition(pointer)
                    following += self._reached[pointer]
            waiting = following
        return converted, definitions

    def resolve(self, schema: Any, root: Any, pointer: Any) -> Any:
        """What a ``$ref`` names; one to ``#/$defs`` may mean the schema in which it stands."""
        try:
            return resolve_pointer(self._document, pointer)
        except BrokenReferenceError as error:
            if isinstance(pointer, str) and pointer.startswith(("#/$defs/", "#/definitions/")):
                try:
                    return resolve_pointer(root if isinstance(root, dict) else {}, pointer)
                except BrokenReferenceError:
                    pass
            raise BrokenSchemaError("", error.problem, error.remedy) from None

    def name_of(self, pointer: str) -> str:
        """The name in ``$defs`` of what a pointer names."""
        known = self._names.get(pointer)
        if known is None:
            stem = _UNSAFE.sub("_", pointer.rpartition("/")[2])[:80] or "root"
            known, number = stem, 2
            while known in self._pointers:
                known, number = f"{stem}_{number}", number + 1
            self._names[pointer] = known
            self._pointers[known] = pointer
        return known

    def is_hidden(self, schema: Any, root: Any) -> bool:
        """Whether a property is one that this direction leaves out."""
        if isinstance(schema, dict) and isinstance(schema.get("$ref"), str) and self._hidden not in schema:
            try:
                schema = self.resolve(schema, root, schema["$ref"])
            except BrokenSchemaError:
                return False
        return isinstance(schema, dict) and schema.get(self._hidden) is True

    @property
    def is_30(self) -> bool:
        """Whether the document is of OpenAPI 3.0."""
        return self._is_30

    @property
    def files(self) -> bool:
        """Whether binary text is a file here."""
        return self._files

    def is_pattern(self, pattern: str) -> bool:
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

    def _convert_definition(self, pointer: str) -> dict[str, Any] | bool:
        known = self._definitions.get(pointer)
        if known is None:
            refs: list[str] = []
            try:
                schema = self.resolve(None, None, pointer)
                known = _Conversion(self, schema, pointer, refs).convert(schema, "", 0)
            except BrokenSchemaError as error:
                known = BrokenSchemaError(pointer.removeprefix("#/"), str(error), error.remedy)
            self._definitions[pointer] = known
            self._reached[pointer] = tuple(dict.fromkeys(refs))
        if isinstance(known, BrokenSchemaError):
            raise BrokenSchemaError("", str(known), known.remedy)
        return known


class _Conversion:
    """The conversion of one schema: a component, or what stands in an operation.

    ``pointer`` is where a component stands, to which ``$recursiveRef`` leads back.
    """

    def __init__(self, converter: SchemaConverter, root: Any, pointer: str | None, refs: list[str]) -> None:
        self._converter = converter
        self._root = root
        self._pointer = pointer
        self._refs = refs
        self._following: list[str] = []

    def convert(self, schema: Any, where: str, depth: int) -> dict[str, Any] | bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise BrokenSchemaError(where, f"{name_shape(schema)}, not a schema")
        if depth > MAX_DEPTH:
            raise BrokenSchemaError(where, f"nested deeper than {MAX_DEPTH} levels")
        reference = self._find_reference(schema, where)
        if reference is not None and self._converter.is_30:
            return self._refer(reference, where, depth)  # OpenAPI 3.0 ignores what stands beside a $ref
        found = self._refer(reference, where, depth) if reference is not None else {}
        if self._converter.files and is_file(schema):
            return {**FILE, **{k: schema[k] for k in ("description",) if isinstance(schema.get(k), str)}}
        for keyword in schema:
            reader = _READERS.get(keyword)
            if reader is not None:
                for name, value in reader(self, schema, keyword, f"{where}.{keyword}".lstrip("."), depth):
                    found[name] = value
        if "properties" in found:
            self._leave_out_hidden(schema, found)
        _place_bounds(found)
        return _make_nullable(found) if schema.get("nullable") is True else found

    def _find_reference(self, schema: Mapping[str, Any], where: str) -> Any:
        """The pointer of ``$ref``, or of the recursive forms of 2019-09 and 2020-12."""
        if "$ref" in schema and not isinstance(schema["$ref"], dict):
            return schema["$ref"]
        dynamic = schema.get("$recursiveRef", schema.get("$dynamicRef"))
        if not isinstance(dynamic, str):
            return None
        anchor = self._root.get("$dynamicAnchor") if isinstance(self._root, dict) else None
        if self._pointer is not None and dynamic in ("#", f"#{anchor}"):
            return self._pointer
        raise BrokenSchemaError(where, f"the recursive reference {dynamic[:200]!r} leads nowhere")

    def _refer(self, pointer: Any, where: str, depth: int) -> dict[str, Any]:
        target = self._converter.resolve(None, self._root, pointer)
        if isinstance(pointer, str) and pointer.startswith(("#/$defs/", "#/definitions/")):
            try:
                self._converter.resolve(None, None, pointer)
            except BrokenSchemaError:
                return self._inline(target, pointer, where, depth)
        if not isinstance(target, dict | bool):
            raise BrokenSchemaError(where, f"$ref {str(pointer)[:200]!r} leads to {name_shape(target)}")
        self._refs.append(pointer)
        return {"$ref": f"#/$defs/{self._converter.name_of(pointer)}"}

    def _inline(self, target: Any, pointer: str, where: str, depth: int) -> dict[str, Any]:
        """A definition of the schema itself, which has no pointer in the document: written out."""
        if pointer in self._following:
            raise BrokenSchemaError(where, f"$ref {pointer[:200]!r} leads back to itself")
        self._following.append(pointer)
        converted = self.convert(target, where, depth + 1)
        self._following.pop()
        return {"allOf": [converted]} if isinstance(converted, bool) else dict(converted)

    def _leave_out_hidden(self, schema: Mapping[str, Any], found: dict[str, Any]) -> None:
        properties = schema["properties"]
        hidden = {name for name, one in properties.items() if self._converter.is_hidden(one, self._root)}
        if hidden:
            found["properties"] = {k: v for k, v in found["properties"].items() if k not in hidden}
            found["required"] = [name for name in found.get("required", ()) if name not in hidden]

    # Readers of keywords: each yields what is kept.

    def read_schema(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        if key == "items" and isinstance(schema[key], list):
            yield "prefixItems", [self.convert(one, where, depth + 1) for one in schema[key]]
        else:
            yield key, self.convert(schema[key], where, depth + 1)

    def read_list(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        if not isinstance(schema[key], list):
            raise BrokenSchemaError(where, f"{name_shape(schema[key])}, not a list")
        if schema[key]:  # an empty list is not allowed, and says nothing
            yield key, [self.convert(one, f"{where}[{i}]", depth + 1) for i, one in enumerate(schema[key])]

    def read_named(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        named = schema[key]
        if not isinstance(named, dict):
            raise BrokenSchemaError(where, f"{name_shape(named)}, not an object")
        yield (
            key,
            {
                name: self.convert(one, f"{where}.{name}", depth + 1)
                for name, one in named.items()
                if key != "patternProperties" or self._converter.is_pattern(name)
            },
        )

    def read_type(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        value = schema[key]
        names = value if isinstance(value, list) else [value]
        if not all(isinstance(name, str) and name in _TYPES for name in names) or not names:
            raise BrokenSchemaError(where, "not one of " + ", ".join(sorted(_TYPES)))
        yield key, value if isinstance(value, str) else list(dict.fromkeys(names))

    def read_enum(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        if not isinstance(schema[key], list):
            raise BrokenSchemaError(where, f"{name_shape(schema[key])}, not a list")
        if schema[key]:
            yield key, [_bounded(one) for one in schema[key]]

    def read_required(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        # ``required: true`` on a property is of Swagger 2 and means nothing here.
        if isinstance(schema[key], list):
            yield key, list(dict.fromkeys(name for name in schema[key] if isinstance(name, str)))

    def read_dependent(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        if isinstance(schema[key], dict):
            yield (
                key,
                {
                    name: list(dict.fromkeys(one for one in names if isinstance(one, str)))
                    for name, names in schema[key].items()
                    if isinstance(names, list)
                },
            )

    def read_text(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        if isinstance(schema[key], str):
            yield key, schema[key]

    def read_pattern(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        # A pattern that the compiler refuses (look-around, ECMA syntax) would refuse the whole schema.
        if isinstance(schema[key], str) and self._converter.is_pattern(schema[key]):
            yield key, schema[key]

    def read_count(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        value = schema[key]
        if _is_number(value) and value == int(value) and value >= 0:
            yield key, int(min(value, 2**63 - 1))

    def read_number(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        if _is_number(schema[key]):
            yield key, _bounded(schema[key])
        elif schema[key] is True and key.startswith("exclusive"):
            yield key, True  # the form of 3.0, see `_place_bounds`

    def read_multiple(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        if _is_number(schema[key]) and schema[key] > 0:
            yield key, _bounded(schema[key])

    def read_flag(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        if schema[key] is True:
            yield key, True

    def read_value(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        yield key, _bounded(schema[key])

    def read_examples(self, schema: Mapping[str, Any], key: str, where: str, depth: int) -> _Kept:
        if isinstance(schema[key], list):
            yield key, _bounded(schema[key])


_Kept = Iterator[tuple[str, Any]]
_Reader = Callable[[_Conversion, Mapping[str, Any], str, str, int], _Kept]

_READERS: Mapping[str, _Reader] = {
    **dict.fromkeys(_SUBSCHEMA, _Conversion.read_schema),
    **dict.fromkeys(_LISTS, _Conversion.read_list),
    **dict.fromkeys(_NAMED, _Conversion.read_named),
    **dict.fromkeys(_TEXTS, _Conversion.read_text),
    **dict.fromkeys(_COUNTS, _Conversion.read_count),
    **dict.fromkeys(_NUMBERS, _Conversion.read_number),
    **dict.fromkeys(_FLAGS, _Conversion.read_flag),
    **dict.fromkeys(_VALUES, _Conversion.read_value),
    "type": _Conversion.read_type,
    "enum": _Conversion.read_enum,
    "required": _Conversion.read_required,
    "dependentRequired": _Conversion.read_dependent,
    "pattern": _Conversion.read_pattern,
    "multipleOf": _Conversion.read_multiple,
    "examples": _Conversion.read_examples,
}
"""Keyword → its reader. Dropped: ``discriminator``, ``xml``, ``example``, ``x-…``, ids, and unknown ones."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def _place_bounds(found: dict[str, Any]) -> None:
    """The boolean bounds of 3.0 as the numbers of 2020-12."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if found.get(exclusive) is True:
            del found[exclusive]
            if bound in found:
                found[exclusive] = found.pop(bound)


def _make_nullable(found: dict[str, Any]) -> dict[str, Any]:
    """The schema with null allowed; what accepts anything accepts null already."""
    if any(keyword in found for keyword in _COMBINING):
        notes: dict[str, Any] = {
            key: found.pop(key) for key in ("title", "description", "default") if key in found
        }
        return {**notes, "anyOf": [found, {"type": "null"}]}
    if "type" in found:
        types = found["type"] if isinstance(found["type"], list) else [found["type"]]
        found["type"] = [*types, *({"null"} - {*types})]
    if "enum" in found and None not in found["enum"]:
        found["enum"] = [*found["enum"], None]
    if "const" in found and found["const"] is not None:
        found["enum"] = [found.pop("const"), None]
    return found


def _bounded(value: Any, depth: int = 0) -> Any:
    """A JSON value with integers over 64 bits as floats, which the encoder of JSON requires."""
    if isinstance(value, int) and not isinstance(value, bool) and value not in _INTEGERS:
        return float(value) if abs(value) < 10**300 else 1e300
    if isinstance(value, list | dict) and depth >= _MAX_VALUE_DEPTH:
        raise BrokenSchemaError("", f"a value is nested deeper than {_MAX_VALUE_DEPTH} levels")
    if isinstance(value, dict):
        return {key: _bounded(one, depth + 1) for key, one in value.items()}
    return [_bounded(one, depth + 1) for one in value] if isinstance(value, list) else value
