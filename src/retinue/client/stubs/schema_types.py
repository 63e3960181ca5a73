"""Python types of JSON Schemas: TypedDict classes, Literal, unions and aliases.

What Python's types cannot say is left out: patterns, bounds, and further keys beside named ones. A schema
that cannot be read is ``Any``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retinue.client.stubs.merged_schema import NOTES, Schema, SchemaReader
from retinue.client.stubs.source_text import as_type_name, render_string

ANY = "Any"
_NONE = "None"
_NEVER = "Never"
_LITERAL = "Literal["

_MAX_DEPTH = 32
_MAX_LITERALS = 500
_MAX_INLINE = 40
"""Characters of the type of a definition that has no name of its own in the module."""

_MAX_NAME = 40
_SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": _NONE}
_CHOICES = ("anyOf", "oneOf")


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a `Record`; ``name`` and ``description`` are foreign text."""

    name: str
    type: str
    is_required: bool
    description: str


@dataclass(frozen=True, slots=True)
class Record:
    """A TypedDict."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Alias:
    """A name for a type that is recursive or long."""

    name: str
    type: str


Declaration = Record | Alias


class TypeNames:
    """The names of one module, each given once."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def take(self, name: str) -> str:
        """The name, with a number if it is taken."""
        number, free = 2, name
        while free in self._taken:
            number, free = number + 1, f"{name}{number}"
        self._taken.add(free)
        return free

    def __contains__(self, name: str) -> bool:
        return name in self._taken


@dataclass(slots=True)
class _Definition:
    """The type of a schema that a reference names; ``is_open`` while it is made."""

    type: str
    nesting: int
    is_open: bool
    is_recursive: bool = False


@dataclass(slots=True)
class SchemaTypes:
    """Makes the types of one schema; ``prefix`` begins their names. ``declarations`` are the types made."""

    schemas: SchemaReader
    prefix: str
    names: TypeNames
    declarations: list[Declaration] = field(default_factory=list)
    _definitions: dict[str, _Definition] = field(default_factory=dict)
    _nesting: int = 0
    """The number of lists, mappings and records around the schema that is read."""

    @classmethod
    def of(cls, schema: Any, prefix: str, names: TypeNames) -> SchemaTypes:
        """The types of a schema, of which none is made yet."""
        return cls(SchemaReader(schema), prefix, names)

    def read_root(self) -> str:
        """The type of the whole schema."""
        return self._read_reference("#", self.prefix, 0)

    def _read(self, schema: Any, name: str, depth: int) -> tuple[str, ...]:
        """The members of the union that the type is; ``name`` is for a record."""
        if schema is False:
            return (_NEVER,)
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or self.schemas.is_exhausted():
            return (ANY,)
        schema = self.schemas.merge(schema)
        if isinstance(reference := schema.get("$ref"), str):
            return (self._read_reference(reference, name, depth),)
        members = tuple(self._read_forms(schema, name, depth))
        return (*members, _NONE) if schema.get("nullable") is True else members

    def _read_forms(self, schema: Schema, name: str, depth: int) -> Iterator[str]:
        if "const" in schema:
            yield from _render_literals([schema["const"]])
        elif isinstance(values := schema.get("enum"), list):
            yield from _render_literals(values)
        elif (choice := self._find_choice(schema)) is not None:
            yield from self._read_branches(schema, choice, name, depth)
        elif isinstance(kinds := schema.get("type"), list):
            for kind in kinds or [None]:
                yield self._read_kind(kind, schema, name, depth)
        else:
            yield self._read_kind(kinds, schema, name, depth)

    def _find_choice(self, schema: Schema) -> str | None:
        """The keyword whose branches are types, and do not only say which keys are required together."""
        for keyword in _CHOICES:
            branches = schema.get(keyword)
            if isinstance(branches, list) and branches:
                if "properties" not in schema:
                    return keyword
                if any("properties" in self.schemas.open(branch) for branch in branches):
                    return keyword
        return None

    def _read_branches(self, schema: Schema, choice: str, name: str, depth: int) -> Iterator[str]:
        """The branches of a union, each with what stands beside them."""
        beside = {key: value for key, value in schema.items() if key not in NOTES}
        del beside[choice]
        beside.pop("nullable", None)
        for branch in schema[choice]:
            title = branch.get("title") if isinstance(branch, Mapping) else None
            label = as_type_name(title)[:_MAX_NAME] if isinstance(title, str) else ""
            if "properties" in beside:
                branch = self.schemas.join([self.schemas.open(branch), beside])
            elif isinstance(branch, Mapping) and "type" in beside and "$ref" not in branch:
                branch = {"type": beside["type"], **branch}
            yield from self._read(branch, f"{name}{label}", depth + 1)

    def _read_kind(self, kind: Any, schema: Schema, name: str, depth: int) -> str:
        if kind is None:
            if any(key in schema for key in ("properties", "additionalProperties", "patternProperties")):
                kind = "object"
            elif "items" in schema or "prefixItems" in schema:
                kind = "array"
        if kind == "object":
            return self._read_object(schema, name, depth)
        if kind == "array":
            return f"list[{self._read_values(_list_items(schema), f'{name}Item', depth)}]"
        return _SCALARS.get(kind, ANY) if isinstance(kind, str) else ANY

    def _read_object(self, schema: Schema, name: str, depth: int) -> str:
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and properties:
            return self._make_record(schema, self.names.take(name), depth)
        kinds: list[Any] = []
        if isinstance(patterns := schema.get("patternProperties"), Mapping):
            kinds += patterns.values()
        if (others := schema.get("additionalProperties", not kinds)) is not False:
            kinds.append(others)
        return f"dict[str, {self._read_values(kinds or [True], f'{name}Value', depth)}]"

    def _read_values(self, kinds: Sequence[Any], name: str, depth: int) -> str:
        """The type of what a list or a mapping contains."""
        self._nesting += 1
        members = [member for kind in kinds for member in self._read(kind, name, depth + 1)]
        self._nesting -= 1
        return render_union(members)

    def _make_record(self, schema: Schema, name: str, depth: int) -> str:
        required = schema.get("required")
        required = required if isinstance(required, list) else ()
        fields = []
        for key, kind in schema["properties"].items():
            field_name = f"{name}{as_type_name(key)[:_MAX_NAME] or 'Field'}"
            about = kind.get("description") if isinstance(kind, Mapping) else None
            fields.append(
                Field(
                    key,
                    self._read_values([kind], field_name, depth),
                    key in required,
                    about if isinstance(about, str) else "",
                )
            )
        self.declarations.append(Record(name, tuple(fields)))
        return name

    def _read_reference(self, reference: str, name: str, depth: int) -> str:
        known = self._definitions.get(reference)
        if known is not None:
            return self._use(known, reference, name)
        schema = self.schemas.find(reference)
        if schema is None:
            return ANY
        name = self._name_definition(reference, name)
        merged = self.schemas.merge(schema) if isinstance(schema, Mapping) else {}
        if self._is_record(merged):
            name = self.names.take(name)
            # known before its fields are, because a record may contain itself
            self._definitions[reference] = _Definition(name, self._nesting, is_open=False)
            return self._make_record(merged, name, depth)
        definition = self._definitions[reference] = _Definition(name, self._nesting, is_open=True)
        text = render_union(self._read(schema, name, depth + 1))
        is_long = len(text) > _MAX_INLINE and not text.isidentifier()
        if is_long and not definition.is_recursive:
            definition.type = self.names.take(name)
        if is_long or definition.is_recursive:
            self.declarations.append(Alias(definition.type, text))
        else:
            definition.type = text
        definition.is_open = False
        return definition.type

    def _use(self, known: _Definition, reference: str, name: str) -> str:
        """The type of a definition that was read before, or is being read."""
        if not known.is_open:
            return known.type
        if known.nesting == self._nesting:
            return ANY  # the definition is a member of its own union
        if not known.is_recursive:
            known.type = self.names.take(self._name_definition(reference, name))
            known.is_recursive = True
        return known.type

    def _name_definition(self, reference: str, name: str) -> str:
        if reference == "#":
            return self.prefix
        return f"{self.prefix}{as_type_name(reference.rpartition('/')[2])[:_MAX_NAME] or name}"

    def _is_record(self, schema: Schema) -> bool:
        """Whether the type is one TypedDict, and no union."""
        properties = schema.get("properties")
        return (
            isinstance(properties, Mapping)
            and bool(properties)
            and schema.get("type", "object") in ("object", ["object"])
            and schema.get("nullable") is not True
            and not any(key in schema for key in ("const", "enum", "$ref"))
            and self._find_choice(schema) is None
        )


def render_union(members: Iterable[str]) -> str:
    """The union of the members, each once; their literals are one, and None is the last."""
    distinct = list(dict.fromkeys(members))
    if not distinct or ANY in distinct:
        return ANY
    if len(distinct) > 1 and _NEVER in distinct:
        distinct.remove(_NEVER)
    literals = [member[len(_LITERAL) : -1] for member in distinct if member.startswith(_LITERAL)]
    others = [member for member in distinct if not member.startswith(_LITERAL) and member != _NONE]
    parts = [f"{_LITERAL}{', '.join(literals)}]"] if literals else []
    return " | ".join([*parts, *others, *([_NONE] if _NONE in distinct else [])])


def _list_items(schema: Schema) -> list[Any]:
    """The schemas of the items of a list: those of places, and that of the others."""
    places, others = schema.get("prefixItems"), schema.get("items", True)
    if isinstance(others, list):
        places, others = others, schema.get("additionalItems", True)
    if not isinstance(places, list) or not places:
        return [others]
    most = schema.get("maxItems")
    is_closed = others is False or (isinstance(most, int) and most <= len(places))
    return places if is_closed else [*places, others]


def _render_literals(values: Sequence[Any]) -> Iterator[str]:
    """The values as members of a union; a value that Literal cannot hold is its type."""
    for value in values:
        if value is None:
            yield _NONE
        elif isinstance(value, list):
            yield "list[Any]"
        elif isinstance(value, Mapping):
            yield "dict[str, Any]"
        elif isinstance(value, float) or len(values) > _MAX_LITERALS:
            yield type(value).__name__
        else:
            yield f"{_LITERAL}{render_string(value) if isinstance(value, str) else value}]"
