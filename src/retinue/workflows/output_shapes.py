"""The shape of a value by its JSON Schema: keys that it does not have, and its form for a person to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from retinue.core.json_values import find_reference
from retinue.core.record import Schema


@dataclass(frozen=True, slots=True)
class MissingKey:
    """The first key of a path that a schema lacks; ``known`` are the keys there.

    ``is_closed`` = the schema allows no other keys; else a value may have the key although nothing says so.
    """

    path: tuple[str, ...]
    known: tuple[str, ...]
    is_closed: bool

    @property
    def key(self) -> str:
        return self.path[-1]

    def place(self, root: str) -> str:
        """The key as expressions write it, below ``root``."""
        return ".".join((root, *self.path))


def find_missing_key(schema: Schema | None, keys: Sequence[str]) -> MissingKey | None:
    """The first of ``keys`` that the schema lacks; None where it has all, or does not say."""
    here: Any = schema
    for depth, key in enumerate(keys):
        if not isinstance(here, Mapping):
            return None
        here = resolve_reference(here, schema or {})
        if any(word in here for word in ("anyOf", "oneOf", "allOf", "$ref", "patternProperties", "if")):
            return None
        kind = here.get("type", "object")
        if isinstance(kind, str) and kind != "object":
            return MissingKey(tuple(keys[: depth + 1]), (), True)
        properties = here.get("properties")
        others = here.get("additionalProperties")
        if isinstance(properties, Mapping) and key in properties:
            here = properties[key]
        elif others is False or (others is None and properties):
            return MissingKey(tuple(keys[: depth + 1]), tuple(properties or ()), others is False)
        else:
            return None
    return None


def literal_shape(value: Any) -> Schema | None:
    """The schema of a value with templates: the keys of objects; None for what only the run shows."""
    if not isinstance(value, Mapping):
        return None
    properties = {key: literal_shape(inner) or {} for key, inner in value.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def describe_form(schema: Schema | None) -> str:
    """The form of a value as a person writes it, such as ``{"ok": true|false, "why": TEXT}``; "" for any."""
    if not schema:
        return ""
    here = resolve_reference(schema, schema)
    if "const" in here:
        return orjson.dumps(here["const"]).decode()
    if isinstance(here.get("enum"), list):
        return "|".join(orjson.dumps(choice).decode() for choice in here["enum"])[:_FORM_CHARACTERS]
    properties = here.get("properties")
    if isinstance(properties, Mapping) and properties:
        required = here.get("required", ())
        parts = [
            f'"{key}": {_describe_part(inner)}' + ("" if key in required else "?")
            for key, inner in properties.items()
        ]
        return f"{{{', '.join(parts)}}}"[:_FORM_CHARACTERS]
    return _FORMS.get(str(here.get("type", "")), "")


def _describe_part(schema: Any) -> str:
    return (describe_form(schema) if isinstance(schema, Mapping) else "") or "…"


_FORM_CHARACTERS = 300

_FORMS: Mapping[str, str] = {
    "boolean": "true|false",
    "string": "TEXT",
    "integer": "NUMBER",
    "number": "NUMBER",
    "array": "[…]",
    "object": "{…}",
    "null": "null",
}


def resolve_reference(schema: Schema, root: Schema) -> Schema:
    """The schema that a ``$ref`` within the same document leads to, else the schema itself."""
    target = find_reference(root, schema.get("$ref"))
    return target if isinstance(target, Mapping) else schema
