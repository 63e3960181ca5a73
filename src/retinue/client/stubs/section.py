"""The section of one skill in a generated module: its types, and the function that calls it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.client.stubs.schema_types import Alias, Declaration, Field, Record, SchemaTypes, TypeNames
from retinue.client.stubs.source_text import (
    digest_of,
    is_identifier,
    render_comment,
    render_docstring,
    render_string,
)

RESERVED = frozenset(
    (
        "Any",
        "CallLimits",
        "Literal",
        "MeshConnection",
        "Never",
        "NotRequired",
        "SyncMeshConnection",
        "TYPE_CHECKING",
    )
) | {"TypeAlias", "TypedDict", "Unpack", "annotations", "bool", "cast", "dict", "float", "int", "list", "str"}
"""Names that a generated module uses itself."""

_OPTIONS = {
    "agent": "str | None",
    "version": "str | None",
    "key": "str | None",
    "timeout_s": "float | None",
    "budget": "int | dict[str, float] | None",
}
"""The options of each function, as those of `MeshConnection.call`."""

_MARK_DIGITS = 12
_DIGEST_DIGITS = 64
_ANY_MAPPING = "dict[str, Any]"
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class StubSkill:
    """A skill for which a function is made.

    ``agent`` is the only agent that the function calls; None where every agent that offers the skill has the
    same schemas. ``name`` is the name of the function before it is an identifier.
    """

    id: str
    agent: str | None
    name: str
    description: str
    input_schema: Any
    output_schema: Any

    @property
    def digest(self) -> str:
        """The digest of everything that the function is made of."""
        facts = [self.id, self.agent, self.description, self.input_schema, self.output_schema]
        return digest_of(json.dumps(facts), _DIGEST_DIGITS)

    @property
    def mark(self) -> str:
        """The comment before the function, by which two modules are compared."""
        return f"# skill {self.label}: {self.digest[:_MARK_DIGITS]}"

    @property
    def label(self) -> str:
        """The skill and its agent on one line, as string literals."""
        return render_string(self.id) + ("" if self.agent is None else f" of {render_string(self.agent)}")


@dataclass(frozen=True, slots=True)
class Section:
    """The types of a skill and its function.

    ``arguments`` is the record of the parameters, None where they are not named keys.
    """

    skill: StubSkill
    function: str
    declarations: tuple[Declaration, ...]
    arguments: Record | None
    argument_type: str
    result_type: str
    is_sync: bool

    def render(self) -> Iterator[str]:
        """The lines of the section."""
        yield self.skill.mark
        for declaration in self.declarations:
            # the docstring of the function describes the parameters
            yield from _render_declaration(declaration, has_comments=declaration is not self.arguments)
            yield ""
        yield from self._render_function()

    def _render_function(self) -> Iterator[str]:
        skill = self.skill
        options = {name: kind for name, kind in _OPTIONS.items() if name != "agent" or skill.agent is None}
        mesh, keywords = name_mesh_type(self.is_sync), self._keyword_type(options)
        takes_mapping, awaits = keywords is None, "" if self.is_sync else "await "
        yield f"{'' if self.is_sync else 'async '}def {self.function}("
        if takes_mapping and self.arguments is None:
            yield f"    mesh: {mesh}, arguments: {self.argument_type} | None = None, /, *,"
        elif takes_mapping:
            yield f"    mesh: {mesh}, arguments: {self.argument_type}, /, *,"
        else:
            yield f"    mesh: {mesh}, /, *,"
        yield "    " + " ".join(f"{name}: {kind} = None," for name, kind in options.items())
        if keywords:
            yield f"    **arguments: {keywords},"
        yield f") -> {self.result_type}:"
        fields = () if self.arguments is None else self.arguments.fields
        for line in render_docstring(
            skill.description, ((field.name, field.description) for field in fields)
        ):
            yield f"    {line}".rstrip()
        chosen = {} if skill.agent is None else {"agent": render_string(skill.agent)}
        chosen |= {name: name for name in options}
        yield f"    value = {awaits}mesh.call("
        yield f"        {render_string(skill.id)}, {'arguments' if takes_mapping or keywords else '{}'},"
        yield "        " + ", ".join(f"{name}={value}" for name, value in chosen.items()) + ","
        yield "    )"
        yield f"    return cast({render_string(self.result_type)}, value)"

    def _keyword_type(self, options: Mapping[str, str]) -> str | None:
        """The type of the keywords; "" for no parameters, None where the arguments are a mapping."""
        if self.arguments is None:
            return "" if _takes_nothing(self.skill.input_schema) else None
        names = [field.name for field in self.arguments.fields]
        if all(is_identifier(name) and name not in options for name in names):
            return f"Unpack[{self.arguments.name}]"
        return None


def make_section(skill: StubSkill, function: str, prefix: str, names: TypeNames, *, is_sync: bool) -> Section:
    """The section of a skill; ``prefix`` begins the names of its types, which are taken from ``names``."""
    declarations: list[Declaration] = []
    argument_type, result_type = _ANY_MAPPING, "Any"
    if skill.input_schema is not None:
        types = SchemaTypes.of(skill.input_schema, f"{prefix}Input", names)
        argument_type = types.read_root()
        declarations += types.declarations
    by_name = {declaration.name: declaration for declaration in declarations}
    if not _is_mapping_type(argument_type, by_name):
        argument_type = _ANY_MAPPING  # arguments are an object, whatever the schema says
    if skill.output_schema is not None:
        types = SchemaTypes.of(skill.output_schema, f"{prefix}Output", names)
        result_type = types.read_root()
        declarations += types.declarations
    arguments = by_name.get(argument_type)
    return Section(
        skill,
        function,
        tuple(declarations),
        arguments if isinstance(arguments, Record) else None,
        argument_type,
        result_type,
        is_sync,
    )


def name_mesh_type(is_sync: bool) -> str:
    """The class of the mesh that a function takes."""
    return "SyncMeshConnection" if is_sync else "MeshConnection"


def _is_mapping_type(text: str, by_name: Mapping[str, Declaration]) -> bool:
    """Whether each member of the type is a record, or a mapping of any values."""
    declaration = by_name.get(text)
    if isinstance(declaration, Alias):
        text = declaration.type
    return all(
        member == _ANY_MAPPING or isinstance(by_name.get(member), Record) for member in text.split(" | ")
    )


def _takes_nothing(schema: Any) -> bool:
    return (
        isinstance(schema, Mapping)
        and not schema.get("properties", True)
        and not schema.get("additionalProperties")
    )


def _render_declaration(declaration: Declaration, *, has_comments: bool) -> Iterator[str]:
    if isinstance(declaration, Alias):
        yield f"{declaration.name}: TypeAlias = {render_string(declaration.type)}"
        return
    fields = declaration.fields
    is_class = _can_be_class(fields)
    if is_class:
        yield f"class {declaration.name}(TypedDict):"
    else:
        yield f"{declaration.name} = TypedDict({render_string(declaration.name)}, {{"
    for field in fields:
        if has_comments and (comment := render_comment(field.description)):
            yield f"    # {comment}"
        kind = field.type if field.is_required else f"NotRequired[{field.type}]"
        yield (
            f"    {field.name}: {kind}"
            if is_class
            else f"    {render_string(field.name)}: {render_string(kind)},"
        )
    if not is_class:
        yield "})"


def _can_be_class(fields: Sequence[Field]) -> bool:
    """Whether the fields can be written in a class, where a field hides a type of the same name."""
    types = {"NotRequired", *(word for field in fields for word in _WORD.findall(field.type))}
    return all(
        is_identifier(field.name) and not field.name.startswith("__") and field.name not in types
        for field in fields
    )
