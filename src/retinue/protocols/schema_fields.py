"""Pure: what a JSON Schema asks for, as a flat list of fields and as an example.

For people who read, not for checks (``mesh/schema`` does those): whatever cannot be said in a row is
left out, a reference is followed inside its own document only, and nothing is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 6
"""Levels that are told; what lies deeper is told by its type alone."""

MAX_STEPS = 5_000
"""Sub-schemas that are looked at: references to one another could make a small schema endless."""

MAX_CHOICES = 12

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One place in a value: ``a.b`` inside an object, ``a[].b`` inside a list, ``a.*`` for any key.

    ``default`` is ``...`` when there is none, as None is one.
    """

    path: str
    type: str
    required: bool
    default: Any = ...
    description: str = ""


class SchemaReader:
    """Reads one schema; makes no more than ``MAX_STEPS`` looks in its life."""

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._steps_left = MAX_STEPS

    def list_fields(self) -> Iterator[Field]:
        """Every field, outer ones first, in the order of their declaration."""
        yield from self._walk(self._root, "", 0)

    def say_type(self) -> str:
        """The type in words: ``string``, ``list of integer``, ``"a" or "b"``; "any" for none."""
        return self._say(self._root, 0)

    def make_example(self) -> Any:
        """A value of the shape that is asked for, with its required fields only."""
        return self._make(self._root, 0)

    def _walk(self, schema: Any, prefix: str, depth: int) -> Iterator[Field]:
        if depth >= MAX_DEPTH:
            return
        inside = f"{prefix}." if prefix else ""
        for shape in self._shapes(schema):
            required = _list(shape.get("required"))
            for name, field in _mapping(shape.get("properties")).items():
                yield from self._tell(field, f"{inside}{name}", name in required, depth)
            extra = shape.get("additionalProperties")
            if isinstance(extra, Mapping) and extra:
                yield from self._tell(extra, f"{inside}*", False, depth)
            if isinstance(shape.get("items"), Mapping):
                yield from self._walk(shape["items"], f"{prefix}[]", depth + 1)

    def _tell(self, schema: Any, path: str, required: bool, depth: int) -> Iterator[Field]:
        meant = {**self._follow(schema), **_mapping(schema)}
        description = meant.get("description")
        said = description if isinstance(description, str) else ""
        yield Field(path, self._say(schema, 0), required, meant.get("default", ...), said)
        yield from self._walk(schema, path, depth + 1)

    def _shapes(self, schema: Any) -> list[Schema]:
        """The schema itself, and the alternatives or parts of which it is made."""
        meant = self._follow(schema)
        parts = [part for word in ("allOf", "anyOf", "oneOf") for part in _list(meant.get(word))]
        return [meant, *(self._follow(part) for part in parts[:MAX_CHOICES])]

    def _say(self, schema: Any, depth: int) -> str:
        meant = self._follow(schema)
        if depth >= MAX_DEPTH:
            return "any"
        choices = _list(meant.get("enum")) or ([meant["const"]] if "const" in meant else [])
        if choices:
            said = [f'"{one}"' if isinstance(one, str) else str(one) for one in choices[:MAX_CHOICES]]
            return " or ".join([*said, "…"] if len(choices) > MAX_CHOICES else said)
        if parts := _list(meant.get("anyOf")) or _list(meant.get("oneOf")):
            return " or ".join(dict.fromkeys(self._say(part, depth + 1) for part in parts[:MAX_CHOICES]))
        kind = meant.get("type", "object" if "properties" in meant else None)
        if isinstance(kind, list):
            return " or ".join(one for one in kind if isinstance(one, str)) or "any"
        if kind == "array":
            items = meant.get("items")
            return f"list of {self._say(items, depth + 1)}" if items else "list"
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
            if given := _list(meant.get(key)):
                return given[0]
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
        """What a schema's ``$ref`` points at, within the document; the schema itself when at nothing."""
        found = _mapping(schema)
        for _ in range(MAX_DEPTH):
            if self._steps_left <= 0:
                return {}
            self._steps_left -= 1
            ref = found.get("$ref")
            if not isinstance(ref, str) or not ref.startswith("#/"):
                return found
            place: Any = self._root
            for part in ref[2:].split("/"):
                place = _mapping(place).get(part.replace("~1", "/").replace("~0", "~"))
            if not isinstance(place, Mapping):
                return found
            found = place
        return found


def _mapping(value: Any) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
