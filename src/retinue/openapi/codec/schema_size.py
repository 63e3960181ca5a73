"""Pure: reduces schemas to the limits of the schema compiler.

The compiler refuses a schema over 64 kB, or one whose check could take exponential time, and compiles at the
first call. So both are measured at import: a skill whose schema is refused could never be called. An input
schema is cut until it fits; a cut part accepts anything, and the API checks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from retinue.core.errors import SchemaRefusedError
from retinue.mesh.schema.checks import MAX_SCHEMA_BYTES
from retinue.mesh.schema.cost import check_cost

_HARMLESS_BYTES = 3_000
"""Without references, so short a schema has too few branches to be refused; most have no references."""

_SHORT = 300
_TEXTS = frozenset({"title", "description", "examples", "default"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs"})
_CONTENT = frozenset({"const", "enum"})


def find_refusal(schema: Mapping[str, Any], known: dict[bytes, str | None]) -> str | None:
    """Why the compiler would refuse a converted schema; None when it fits.

    ``known`` remembers the answers: half of the larger schemas of a document are equal to another.
    """
    try:
        encoded = orjson.dumps(schema)
    except TypeError as error:
        return f"it is not JSON ({error})"
    if len(encoded) > MAX_SCHEMA_BYTES:
        return f"it has {len(encoded):,} bytes, over the limit of {MAX_SCHEMA_BYTES:,}"
    if len(encoded) < _HARMLESS_BYTES and b'"$ref"' not in encoded:
        return None
    if encoded not in known:
        try:
            check_cost(schema, "")
            known[encoded] = None
        except SchemaRefusedError as error:
            known[encoded] = error.message.partition("refused: ")[2]
    return known[encoded]


def cut_schema(schema: Mapping[str, Any], *, finely: bool = True) -> tuple[dict[str, Any], str]:
    """The schema within the limits, and the cut parts.

    Texts go first, then the definitions that are farthest from the top, at last the properties. With
    ``finely`` false all definitions go at once, which takes a tenth of the time.
    """
    for candidate, cut in _list_cuts(schema, finely):
        if find_refusal(candidate, {}) is None:
            return candidate, cut
    return {"type": "object"}, "everything but its type"


def _list_cuts(schema: Mapping[str, Any], finely: bool) -> Iterator[tuple[dict[str, Any], str]]:
    if not finely:
        schema = _without_unreached({**schema, "$defs": dict.fromkeys(schema.get("$defs", ()), True)})
        yield dict(schema), "the definitions of its parts"
    bare = _without_texts(schema)
    yield {**bare, **_top_texts(schema)}, "the texts of its parts"
    yield bare, "its texts"
    definitions: dict[str, Any] = bare.get("$defs", {})
    kept = len(definitions)
    while kept:
        kept //= 2
        # Nearest first: what is cut last is what the caller writes at the top.
        nearest = {
            name: definition if at < kept else True
            for at, (name, definition) in enumerate(definitions.items())
        }
        yield (
            _without_unreached({**bare, "$defs": nearest}),
            "its texts and the definitions of its inner parts",
        )
    properties = dict(bare.get("properties", {}))
    for name in sorted(
        properties, key=lambda property_name: len(orjson.dumps(properties[property_name])), reverse=True
    ):
        properties[name] = True
        trimmed = {**bare, "properties": properties, "$defs": dict.fromkeys(definitions, True)}
        yield _without_unreached(trimmed), "its texts and the schemas of its largest properties"


def _top_texts(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties of the top level with their own descriptions, as far as they are short."""
    fields = {}
    bare = _without_texts(schema)["properties"] if "properties" in schema else {}
    for name, field in schema.get("properties", {}).items():
        text = field.get("description") if isinstance(field, dict) else None
        short = isinstance(text, str) and len(text) <= _SHORT
        fields[name] = {**bare[name], "description": text} if short else bare[name]
    return {"properties": fields} if fields else {}


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_texts(inner) for inner in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            kept[key] = {name: _without_texts(inner) for name, inner in value.items()}
        elif key in _CONTENT:
            kept[key] = value
        elif key not in _TEXTS:
            kept[key] = _without_texts(value)
    return kept


def _without_unreached(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with only those definitions that a ``$ref`` still names."""
    definitions: dict[str, Any] = schema["$defs"]
    reached: dict[str, None] = {}
    waiting = [value for key, value in schema.items() if key != "$defs"]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            name = value["$ref"].removeprefix("#/$defs/") if isinstance(value.get("$ref"), str) else None
            if name in definitions and name not in reached:
                reached[name] = None
                waiting.append(definitions[name])
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    kept = {name: definition for name, definition in definitions.items() if name in reached}
    return {**schema, "$defs": kept} if kept else {k: v for k, v in schema.items() if k != "$defs"}
