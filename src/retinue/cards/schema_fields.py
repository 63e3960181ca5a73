"""Renders a JSON Schema as a flat list of fields and as an example value.

For validation see ``mesh/schema``. Keywords without a row are left out, references are resolved inside the
schema only, and no schema is rejected. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 6
"""Levels that are listed; deeper values are described by their type only."""

MAX_STEPS = 5_000
"""Subschemas that are visited, because references to each other could make a small schema endless."""

MAX_CHOICES = 12

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a value: ``a.b`` in an object, ``a[].b`` in a list, ``a.*`` for any key.

    ``default`` is ``...`` when there is none, since None is a default.
    """

    path: str
    type: str
    required: bool
    default: Any = ...
    description: str = ""


class SchemaReader:
    """Reads one schema; visits at most ``MAX_STEPS`` subschemas in total."""

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._steps_left = MAX_STEPS

    def list_fields(self) -> Iterator[SchemaField]:
        """All fields, outer ones first, in the order of their declaration."""
        yield from self._walk(self._root, "", 0)

    def type_text(self) -> str:
        """The type as text: ``string``, ``list of integer``, ``"a" or "b"``; "any" for no type."""
        return self._type_text(self._root, 0)

    def make_example(self) -> Any:
        """An example value with the required fields only."""
        return self._make(self._root, 0)

    def _walk(self, schema: Any, prefix: str, depth: int) -> Iterator[SchemaField]:
        if depth >= MAX_DEPTH:
            return
        inside = f"{prefix}." if prefix else ""
        for shape in self._shapes(schema):
            required = _list(shape.get("required"))
            for name, field in _mapping(shape.get("properties")).items():
                yield from self._field(field, f"{inside}{name}", name in required, depth)
            extra = shape.get("additionalProperties")
            if isinstance(extra, Mapping) and extra:
                yield from self._field(extra, f"{inside}*", False, depth)
            if isinstance(shape.get("items"), Mapping):
                yield from self._walk(shape["items"], f"{prefix}[]", depth + 1)

    def _field(self, schema: Any, path: str, required: bool, depth: int) -> Iterator[SchemaField]:
        meant = {**self._follow(schema), **_mapping(schema)}
        description = meant.get("description")
        text = description if isinstance(description, str) else ""
        yield SchemaField(path, self._type_text(schema, 0), required, meant.get("default", ...), text)
        yield from self._walk(schema, path, depth + 1)

    def _shapes(self, schema: Any) -> list[Schema]:
        """The schema itself, and the alternatives or parts that it consists of."""
        meant = self._follow(schema)
        parts = [part for word in ("allOf", "anyOf", "oneOf") for part in _list(meant.get(word))]
        return [meant, *(self._follow(part) for part in parts[:MAX_CHOICES])]

    def _type_text(self, schema: Any, depth: int) -> str:
        meant = self._follow(schema)
        if depth >= MAX_DEPTH:
            return "any"
        choices = _list(meant.get("enum")) or ([meant["const"]] if "const" in meant else [])
        if choices:
            texts = [
                f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in choices[:MAX_CHOICES]
            ]
            return " or ".join([*texts, "…"] if len(choices) > MAX_CHOICES else texts)
        if parts := _list(meant.get("anyOf")) or _list(meant.get("oneOf")):
            return " or ".join(
                dict.fromkeys(self._type_text(part, depth + 1) for part in parts[:MAX_CHOICES])
            )
        kind = meant.get("type", "object" if "properties" in meant else None)
        if isinstance(kind, list):
            return " or ".join(name for name in kind if isinstance(name, str)) or "any"
        if kind == "array":
            items = meant.get("items")
            return f"list of {self._type_text(items, depth + 1)}" if items else "list"
        form = meant.get("format")
        if not isinstance(kind, str):
            return "any"
        return f"{kind} ({form})" if isinstance(form, str) else kind

    def _make(self, schema: Any, depth: int) -> Any:
        meant = {**self._follow(schema), **_mapping(schema)}
        for key in ("default", "const"):
            if key in meant:
                return meant[key]
        for key in ("examples", "enum"):
            if values := _list(meant.get(key)):
                return values[0]
        if depth >= MAX_DEPTH:
            return None
        if parts := _list(meant.get("anyOf")) or _list(meant.get("oneOf")):
            return self._make(parts[0], depth + 1)
        kind = meant.get("type", "object" if "properties" in meant else "string")
        kind = kind[0] if isinstance(kind, list) and kind else kind
        if kind == "object":
            required, fields = _list(meant.get("required")), _mapping(meant.get("properties"))
            return {name: self._make(field, depth + 1) for name, field in fields.items() if name in required}
        if kind in ("integer", "number"):
            least = meant.get("minimum")
            return least if isinstance(least, int | float) else 1
        return {"array": [], "boolean": True, "null": None}.get(kind, "…") if isinstance(kind, str) else "…"

    def _follow(self, schema: Any) -> Schema:
        """The target of the schema's ``$ref`` within the document; the schema itself without a target."""
        target = _mapping(schema)
        for _ in range(MAX_DEPTH):
            if self._steps_left <= 0:
                return {}
            self._steps_left -= 1
            ref = target.get("$ref")
            if not isinstance(ref, str) or not ref.startswith("#/"):
                return target
            place: Any = self._root
            for part in ref[2:].split("/"):
                place = _mapping(place).get(part.replace("~1", "/").replace("~0", "~"))
            if not isinstance(place, Mapping):
                return target
            target = place
        return target


def _mapping(value: Any) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
