"""Pure: converts schemas of OpenAPI 3.0 and 3.1 to JSON Schema 2020-12 (3.0.4, 4.7.24; 3.1.1, 4.8.24).

A ``$ref`` stays a ``$ref``, to ``#/$defs/NAME``: a schema carries the definitions that it reaches, so a
recursive one needs no limit. Resolving instead took 12 s for a public document of 1.8 MB, and conversion
takes 0.02 s. Only keywords of the vocabulary are kept, each in the form that the specification gives it, so
that a converted schema compiles; anything else raises `BrokenSchemaError`, which costs that schema and not
the import.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import orjson

from retinue.core.json_values import name_shape
from retinue.openapi.codec.media_types import FILE, is_file
from retinue.openapi.codec.reader import BrokenReferenceError, resolve_pointer
from retinue.openapi.codec.schema_keywords import BrokenSchemaError, KeywordReader, make_nullable

Direction = Literal["input", "output"]

MAX_DEPTH = 24
"""Levels of one schema without its references, each two levels of JSON; the compiler accepts 64 of those."""

MAX_DEFINITIONS = 1_000
MAX_DEFINITIONS_BYTES = 512 * 1024
"""Bytes of the definitions that one schema brings; definitions beyond them accept anything."""

_MAX_WRITTEN_OUT = 200
"""Definitions inside a schema that are written out, each time that something refers to them."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


class SchemaConverter:
    """Converts the schemas of one document for one direction; a component is converted once.

    ``input`` omits read-only fields, ``output`` write-only ones. With ``files``, binary text is `FILE`, as in
    the fields of a multipart body.
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
        self._sizes: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._pointers: dict[str, str] = {}
        self._keywords = KeywordReader()
        self.too_large: dict[str, None] = {}
        """Definitions that alone are over the limit, in their order."""

    def convert(self, schema: Any) -> tuple[dict[str, Any] | bool, dict[str, Any]]:
        """The schema, and the ``$defs`` that it reaches, nearest first. Raises BrokenSchemaError."""
        refs: list[str] = []
        converted = _Conversion(self, schema, None, refs).convert(schema, "", 0)
        definitions: dict[str, Any] = {}
        waiting = list(dict.fromkeys(refs))
        size = 0
        while waiting:
            following: list[str] = []
            for pointer in waiting:
                name = self.name_of(pointer)
                if name in definitions:
                    continue
                definition = self._convert_definition(pointer)
                if self._sizes[pointer] > MAX_DEFINITIONS_BYTES:
                    self.too_large[pointer.removeprefix("#/")] = None
                    definitions[name] = True
                    continue
                size += self._sizes[pointer]
                if size > MAX_DEFINITIONS_BYTES or len(definitions) >= MAX_DEFINITIONS:
                    definitions[name] = True
                else:
                    definitions[name] = definition
                    following += self._reached[pointer]
            waiting = following
        return converted, definitions

    def resolve(self, schema: Any, root: Any, pointer: Any) -> Any:
        """The target of a ``$ref``; ``#/$defs`` may refer to the schema that contains the reference."""
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
        """The name in ``$defs`` of a pointer's target."""
        known = self._names.get(pointer)
        if known is None:
            stem = _UNSAFE.sub("_", pointer.rpartition("/")[2])[:80] or "root"
            known = stem
            while known in self._pointers:
                self._counts[stem] += 1
                known = f"{stem}_{self._counts[stem] + 1}"
            self._names[pointer] = known
            self._pointers[known] = pointer
        return known

    def is_hidden(self, schema: Any, root: Any) -> bool:
        """Whether this direction leaves out a property."""
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
    def keywords(self) -> KeywordReader:
        return self._keywords

    @property
    def files(self) -> bool:
        """Whether binary text is a file here."""
        return self._files

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
            self._sizes[pointer] = 0 if isinstance(known, BrokenSchemaError) else _measure(known)
        if isinstance(known, BrokenSchemaError):
            raise BrokenSchemaError("", str(known), known.remedy)
        return known


class _Conversion:
    """The conversion of one schema: a component, or a schema inside an operation.

    ``pointer`` is where a component stands, to which ``$recursiveRef`` leads back.
    """

    def __init__(self, converter: SchemaConverter, root: Any, pointer: str | None, refs: list[str]) -> None:
        self._converter = converter
        self._root = root
        self._pointer = pointer
        self._refs = refs
        self._following: list[str] = []
        self._written_out = 0

    def convert(self, schema: Any, where: str, depth: int) -> dict[str, Any] | bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise BrokenSchemaError(where, f"{name_shape(schema)}, not a schema")
        if depth > MAX_DEPTH:
            raise BrokenSchemaError(where, f"nested deeper than {MAX_DEPTH} levels")
        reference = self._find_reference(schema, where)
        if reference is not None and self._converter.is_30:
            return self._refer(reference, where, depth)  # OpenAPI 3.0 ignores the siblings of a $ref
        converted = self._refer(reference, where, depth) if reference is not None else {}
        if self._converter.files and is_file(schema):
            return {**FILE, **{k: schema[k] for k in ("description",) if isinstance(schema.get(k), str)}}
        kept = self._converter.keywords.read(
            schema, where, lambda inner, at: self.convert(inner, at, depth + 1)
        )
        converted.update(kept)
        if "properties" in converted:
            self._leave_out_hidden(schema, converted)
        return make_nullable(converted) if schema.get("nullable") is True else converted

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
        self._written_out += 1
        if self._written_out > _MAX_WRITTEN_OUT:
            raise BrokenSchemaError(where, f"it uses its own definitions over {_MAX_WRITTEN_OUT} times")
        self._following.append(pointer)
        converted = self.convert(target, where, depth + 1)
        self._following.pop()
        return {"allOf": [converted]} if isinstance(converted, bool) else dict(converted)

    def _leave_out_hidden(self, schema: Mapping[str, Any], converted: dict[str, Any]) -> None:
        properties = schema["properties"]
        hidden = {name for name, field in properties.items() if self._converter.is_hidden(field, self._root)}
        if hidden:
            converted["properties"] = {k: v for k, v in converted["properties"].items() if k not in hidden}
            converted["required"] = [name for name in converted.get("required", ()) if name not in hidden]


def _measure(schema: dict[str, Any] | bool) -> int:
    """The bytes of a definition as JSON."""
    try:
        return len(orjson.dumps(schema))
    except TypeError as error:
        raise BrokenSchemaError("", f"it is not JSON: {error}") from None
