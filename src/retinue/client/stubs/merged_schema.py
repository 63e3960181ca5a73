"""Reads the places of a JSON Schema, with what ``allOf``, ``$ref`` and conditions add to each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

Schema = Mapping[str, Any]

NOTES = frozenset(("$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated")) | {
    "description",
    "examples",
    "title",
}
"""Keywords that say nothing about the type."""

_MAX_DEPTH = 32
_MAX_PARTS = 5_000
"""Parts that are read. A schema of 64 kB has fewer, unless its references multiply."""


class SchemaReader:
    """Reads one schema. After `_MAX_PARTS` parts it is exhausted, and adds nothing more."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._parts = 0
        self._depth = 0

    def is_exhausted(self) -> bool:
        """Count one part; whether there were too many."""
        self._parts += 1
        return self._parts > _MAX_PARTS

    def find(self, reference: str) -> Any:
        """The place that a reference names; None for another document, an anchor, or no place."""
        if reference == "#":
            return self._root
        if not reference.startswith("#/"):
            return None
        place: Any = self._root
        for step in reference[2:].split("/"):
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(place, Mapping):
                place = place.get(key)
            elif isinstance(place, list) and key.isascii() and key.isdecimal():
                place = place[int(key[:6])] if int(key[:6]) < len(place) else None
            else:
                return None
        return place

    def open(self, schema: Any) -> Schema:
        """The schema that a reference names, merged; the merged schema itself without one."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, Mapping):
                break
            merged = self.merge(schema)
            if not isinstance(reference := merged.get("$ref"), str):
                return merged
            schema = self.find(reference)
        return {}

    def merge(self, schema: Schema) -> Schema:
        """The schema with what its ``allOf``, a ``$ref`` beside other keywords, and its conditions add.

        A ``$ref`` alone is kept.
        """
        own = {key: value for key, value in schema.items() if key not in NOTES}
        parts: list[Any] = []
        if isinstance(own.get("$ref"), str):
            reference = {"$ref": own.pop("$ref")}
            if not own.keys() - {"type"}:
                return reference
            parts.append(reference)
        if isinstance(every := own.pop("allOf", None), list):
            parts += every
        if "if" in own:
            for condition in (own.pop("then", None), own.pop("else", None)):
                if isinstance(condition, Mapping):
                    parts.append({"properties": condition.get("properties")})
        if not parts:
            return schema
        if not own and len(parts) == 1:
            return self.merge(parts[0]) if isinstance(parts[0], Mapping) else {}
        return self.join([own, *parts])

    def join(self, parts: Sequence[Any]) -> Schema:
        """One schema for a value that fits all parts: the keys of all, else the first word."""
        joined: dict[str, Any] = {}
        properties: dict[str, Any] = {}
        required: list[Any] = []
        self._depth += 1
        for part in parts:
            if self._depth > _MAX_DEPTH or self.is_exhausted():
                break
            part = self.open(part)
            if isinstance(fields := part.get("properties"), Mapping):
                properties |= {key: kind for key, kind in fields.items() if key not in properties}
            if isinstance(names := part.get("required"), list):
                required += names
            joined |= {key: value for key, value in part.items() if key not in joined}
        self._depth -= 1
        if properties:
            joined["properties"] = properties
        if required:
            joined["required"] = required
        return joined
