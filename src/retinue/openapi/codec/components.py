"""Pure: prepares the JSON Schema of a skill for an OpenAPI document.

In a document a ``$ref`` that begins with ``#`` leads to the root of the document, so the definitions of a
schema move to ``components.schemas``. They keep their names, with the operation in front, because generators
of clients make class names of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from retinue.core.record import Schema

_DEFINITIONS = ("$defs", "definitions")
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", *_DEFINITIONS})
"""Keywords whose keys are names, not keywords."""

_DATA = frozenset({"const", "default", "enum", "example", "examples", "required", "dependentRequired"})
"""Keywords whose values are data, in which ``$ref`` is no reference."""

_IDS = frozenset({"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"})
"""Keywords that a part of a document cannot have: they change the base of references, or the dialect."""

_POINTER = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def embed_schema(schema: Schema, name: str, components: dict[str, Any]) -> Any:
    """The schema as it stands in a document; its definitions are added to ``components``.

    ``name`` begins the names of the components; it must be unique in the document. A reference to the schema
    itself, or into it, makes a component of the whole schema. A reference that leads out of the schema
    accepts anything.
    """
    return _Embedding(schema, name, components).embed()


class _Embedding:
    def __init__(self, schema: Schema, name: str, components: dict[str, Any]) -> None:
        self._schema = schema
        self._name = _UNSAFE.sub("_", name)
        self._components = components
        self._names: dict[tuple[str, str], str] = {}
        self._is_whole = False

    def embed(self) -> Any:
        for keyword in _DEFINITIONS:
            named = self._schema.get(keyword)
            for key in named if isinstance(named, Mapping) else ():
                self._names[keyword, key] = self._name_component(key)
        embedded = self._convert({key: v for key, v in self._schema.items() if key not in _DEFINITIONS})
        for (keyword, key), component in self._names.items():
            self._components[component] = self._convert(self._schema[keyword][key])
        if not self._is_whole:
            return embedded
        self._components[self._name] = embedded
        return {"$ref": f"#/components/schemas/{self._name}"}

    def _name_component(self, key: str) -> str:
        stem = f"{self._name}.{_UNSAFE.sub('_', key)}"
        name, number = stem, 2
        while name in self._names.values() or name in self._components:
            name, number = f"{stem}_{number}", number + 1
        return name

    def _convert(self, value: Any) -> Any:
        """A schema, or a list of schemas."""
        if isinstance(value, list):
            return [self._convert(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        converted: dict[str, Any] = {}
        for keyword, inner in value.items():
            if keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
                reference = self._refer(inner)
                if reference is not None:
                    converted["$ref"] = reference
            elif keyword in _NAMED:
                named = inner if isinstance(inner, Mapping) else {}
                converted[keyword] = {key: self._convert(item) for key, item in named.items()}
            elif keyword in _DATA:
                converted[keyword] = inner
            elif keyword not in _IDS:
                converted[keyword] = self._convert(inner)
        return converted

    def _refer(self, reference: Any) -> str | None:
        """The reference within the document; None for one that leads out of the schema."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        match = _POINTER.match(reference)
        if match is not None:
            key = unquote(match[1]).replace("~1", "/").replace("~0", "~")
            keyword = "$defs" if reference.startswith("#/$defs") else "definitions"
            component = self._names.get((keyword, key))
            return (
                None if component is None else f"#/components/schemas/{component}{reference[match.end() :]}"
            )
        if reference == "#" or reference.startswith("#/"):
            self._is_whole = True
            return f"#/components/schemas/{self._name}{reference[1:]}"
        return None
