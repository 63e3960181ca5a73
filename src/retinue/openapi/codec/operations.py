"""Pure: reads operations of an API; parameters and body become arguments of a skill.

Every parameter is an argument of its own name; the request body is the argument ``body``. Names that stand in
two places get the place as a prefix (``query_id``). The models' providers accept argument names of
``[A-Za-z0-9_.-]{1,64}`` only, so other names are replaced and the original is in the description.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.core.record import Skill
from retinue.openapi.codec.media_types import FILE, PREFERENCE, BodyKind, is_json_type, kind_of
from retinue.openapi.codec.parameters import STYLES, Parameter, Place
from retinue.openapi.codec.reader import BrokenReferenceError, follow
from retinue.openapi.codec.schema_keywords import BrokenSchemaError
from retinue.openapi.codec.schemas import SchemaConverter
from retinue.openapi.codec.security import Alternatives

BODY = "body"

MAX_PARAMETERS = 500
_MAX_ARGUMENT_LENGTH = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_VARIABLE = re.compile(r"\{([^{}/]+)\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SIGNS = {"<": "_lt", ">": "_gt", "=": "_eq", "!": "_not"}
"""Signs that distinguish filters, such as ``DateCreated<`` and ``DateCreated>``."""

_OWN_HEADERS = frozenset({"accept", "content-type", "authorization"})
"""A parameter of such a name is ignored (OpenAPI 3.1.1, 4.8.12.1)."""

_TRANSPORT_HEADERS = frozenset(
    {"connection", "content-length", "cookie", "expect", "host", "keep-alive", "te", "trailer",
     "transfer-encoding", "upgrade", "proxy-authorization", "proxy-connection"}
)  # fmt: skip
"""Headers that frame or route the request: no argument may set them."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How one field of a form is sent; ``style`` None = JSON text for objects, repeated fields for arrays."""

    content_type: str | None = None
    style: str | None = None
    explode: bool = True
    allow_reserved: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """The request body of an operation; ``files`` are the fields of a multipart body that hold files."""

    media_type: str
    kind: BodyKind
    required: bool = False
    files: frozenset[str] = frozenset()
    encodings: Mapping[str, Encoding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of an API and the skill that it becomes.

    ``server`` is an absolute url without a slash at its end. ``statuses`` are the described ones.
    """

    skill: Skill
    method: str
    path: str
    server: str
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    security: Alternatives = ()
    statuses: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """Method and path, as people name an operation."""
        return f"{self.method} {self.path}"


class LeftOutError(Exception):
    """An operation that cannot be imported; it stays within this folder."""


class InputReader:
    """Reads parameters and bodies of one document as an input schema, and notes the dropped parts."""

    def __init__(self, document: Mapping[str, Any], plain: SchemaConverter, files: SchemaConverter) -> None:
        self._document = document
        self._plain = plain
        self._files = files
        self.notes: list[str] = []

    def read(
        self, path: str, item: Mapping[str, Any], operation: Mapping[str, Any]
    ) -> tuple[tuple[Parameter, ...], Body | None, dict[str, Any]]:
        """Parameters, body and input schema. Raises LeftOutError; `notes` are then of this operation."""
        self.notes = []
        stated = self._list_parameters(path, item, operation)
        chosen = self._choose_body(operation)
        converter = (
            self._files if chosen is not None and chosen[0].kind in ("multipart", "bytes") else self._plain
        )
        names = _name_arguments([(name, place) for name, place, _ in stated], has_body=chosen is not None)
        properties: dict[str, Any] = {}
        required: list[str] = []
        definitions: dict[str, Any] = {}
        parameters: list[Parameter] = []
        for argument, (name, place, value) in zip(names, stated, strict=True):
            parameter, schema = _read_parameter(argument, name, place, value)
            parameters.append(parameter)
            if parameter.required:
                required.append(argument)
            converted = self._convert(converter, schema, argument, definitions)
            properties[argument] = _describe(converted, _describe_parameter(parameter, value))
        body = None
        if chosen is not None:
            body, media = chosen
            converted = self._convert_body(converter, body, media, definitions)
            if body.kind == "multipart":
                body = _with_files(body, converted, definitions)
            properties[BODY] = converted
            if body.required:
                required.append(BODY)
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = required
        if definitions:
            schema["$defs"] = definitions
        return tuple(parameters), body, schema

    def _list_parameters(
        self, path: str, item: Mapping[str, Any], operation: Mapping[str, Any]
    ) -> list[tuple[str, Place, dict[str, Any]]]:
        """Name, place and object of each parameter; those of the operation replace the path's."""
        parameters: dict[tuple[str, str], dict[str, Any]] = {}
        for owner in (item, operation):
            listed = owner.get("parameters")
            for value in listed if isinstance(listed, list) else ():
                parameter = self._follow(value, "a parameter")
                name, place = parameter.get("name"), parameter.get("in")
                if not isinstance(name, str) or not name or place not in [*STYLES]:
                    raise LeftOutError("a parameter has no name, or is in no known place")
                parameters[name, str(place)] = parameter
        variables = list(dict.fromkeys(_VARIABLE.findall(path)))
        if len(parameters) + len(variables) > MAX_PARAMETERS:
            raise LeftOutError(f"it has over {MAX_PARAMETERS} parameters")
        for variable in variables:
            parameters.setdefault((variable, "path"), {"schema": {"type": "string"}})
        kept: list[tuple[str, Place, dict[str, Any]]] = []
        for (name, place), parameter in parameters.items():
            reason = _reason_to_drop(name, place, variables)
            if reason is None:
                kept.append((name, place, parameter))  # type: ignore[arg-type]
            elif reason and parameter.get("required") is True and place != "path":
                raise LeftOutError(f"its required {place} parameter {name[:80]!r} {reason}")
            elif reason:
                self.notes.append(f"{place} parameter {name[:80]!r} left out: it {reason}")
        return kept

    def _choose_body(self, operation: Mapping[str, Any]) -> tuple[Body, dict[str, Any]] | None:
        if operation.get("requestBody") is None:
            return None
        value = self._follow(operation["requestBody"], "the request body")
        content = value.get("content")
        choices = [
            (kind, media_type, media if isinstance(media, dict) else {})
            for media_type, media in (content.items() if isinstance(content, dict) else ())
            if (kind := kind_of(media_type)) is not None
        ]
        if not choices:
            return None
        kind, media_type, media = min(choices, key=lambda choice: PREFERENCE.index(choice[0]))
        encodings = {
            name: _read_encoding(stated)
            for name, stated in (media["encoding"].items() if isinstance(media.get("encoding"), dict) else ())
            if isinstance(stated, dict)
        }
        sent_as = "application/json" if "*" in media_type else media_type
        return Body(sent_as, kind, value.get("required") is True, encodings=encodings), {**value, **media}

    def _convert_body(
        self, converter: SchemaConverter, body: Body, media: Mapping[str, Any], definitions: dict[str, Any]
    ) -> Any:
        text = media.get("description")
        description = text if isinstance(text, str) else ""
        if body.kind == "bytes":
            return {
                **FILE,
                **({"description": f"{description} {FILE['description']}"} if description else {}),
            }
        if body.kind == "text":
            hint = f"Text of the type {body.media_type}."
            return {"type": "string", "description": f"{description} {hint}".strip()}
        return _describe(self._convert(converter, media.get("schema", True), BODY, definitions), description)

    def _convert(
        self, converter: SchemaConverter, schema: Any, argument: str, definitions: dict[str, Any]
    ) -> Any:
        """The converted schema, its definitions added; a broken schema becomes a schema that accepts
        anything."""
        try:
            converted, reached = converter.convert(schema)
        except BrokenSchemaError as error:
            self.notes.append(
                f"argument {argument} accepts anything: its schema is broken: {error}; {error.remedy}"
            )
            return {}
        definitions.update(reached)
        return converted

    def _follow(self, value: Any, what: str) -> dict[str, Any]:
        try:
            target = follow(self._document, value)
        except BrokenReferenceError as error:
            raise LeftOutError(f"{what}: {error.problem}; {error.remedy}") from None
        if not isinstance(target, dict):
            raise LeftOutError(f"{what} is no object")
        return target


def _reason_to_drop(name: str, place: str, variables: list[str]) -> str | None:
    """None to keep a parameter; "" to drop it silently, as the specification says."""
    if place == "path":
        return None if name in variables else "does not stand in the path"
    if place == "header":
        if name.lower() in _OWN_HEADERS:
            return ""
        if name.lower() in _TRANSPORT_HEADERS or name.lower().startswith("sec-"):
            return "would set a header of the connection"
    if place in ("header", "cookie") and not _HEADER_NAME.fullmatch(name):
        return "has a name that cannot be sent"
    return None


def _read_parameter(
    argument: str, name: str, place: Place, value: Mapping[str, Any]
) -> tuple[Parameter, Any]:
    content = value.get("content")
    if isinstance(content, dict) and content:
        media_type, media = next(iter(content.items()))
        schema = media.get("schema", True) if isinstance(media, dict) else True
        as_json = is_json_type(media_type)
        return Parameter(
            argument, name, place, _is_required(place, value), STYLES[place][0], as_json=as_json
        ), schema
    style = value.get("style")
    if style not in STYLES[place]:
        style = STYLES[place][0]
    explode = value.get("explode")
    if not isinstance(explode, bool):
        explode = style in ("form", "deepObject")
    parameter = Parameter(
        argument,
        name,
        place,
        _is_required(place, value),
        style,
        explode,
        allow_reserved=value.get("allowReserved") is True and place == "query",
    )
    return parameter, value.get("schema", True)


def _is_required(place: Place, value: Mapping[str, Any]) -> bool:
    return place == "path" or value.get("required") is True


def _read_encoding(value: Mapping[str, Any]) -> Encoding:
    content_type, style, explode = value.get("contentType"), value.get("style"), value.get("explode")
    stated = style if style in STYLES["query"] else None
    if stated is None and (isinstance(explode, bool) or value.get("allowReserved") is True):
        stated = "form"
    return Encoding(
        content_type if isinstance(content_type, str) else None,
        stated,
        explode if isinstance(explode, bool) else stated in (None, "form", "deepObject"),
        value.get("allowReserved") is True,
    )


def _describe_parameter(parameter: Parameter, value: Mapping[str, Any]) -> str:
    text = value.get("description")
    parts = [text] if isinstance(text, str) and text else []
    if value.get("deprecated") is True:
        parts.append("Deprecated.")
    if parameter.argument != parameter.name:
        parts.append(f"Sent as the {parameter.place} parameter {parameter.name}.")
    return " ".join(parts)


def _describe(converted: Any, description: str) -> Any:
    """The schema with this description, which is more specific than that of a shared component."""
    if not description or converted is False:
        return converted
    return {**(converted if isinstance(converted, dict) else {}), "description": description}


def _with_files(body: Body, converted: Any, definitions: Mapping[str, Any]) -> Body:
    fields: set[str] = set()
    for schema in _same_place(converted, definitions):
        fields |= {
            name
            for name, property_schema in schema.get("properties", {}).items()
            if _holds_file(property_schema, definitions)
        }
    return Body(body.media_type, body.kind, body.required, frozenset(fields), body.encodings)


def _holds_file(schema: Any, definitions: Mapping[str, Any]) -> bool:
    alternatives = _same_place(schema, definitions)
    items = [
        inner for alternative in alternatives for inner in _same_place(alternative.get("items"), definitions)
    ]
    return any(place.get("anyOf") is FILE["anyOf"] for place in (*alternatives, *items))


def _same_place(schema: Any, definitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The schema and all that apply to the same value, through references."""
    places: dict[int, dict[str, Any]] = {}
    waiting = [schema]
    while waiting:
        place = waiting.pop()
        if not isinstance(place, dict) or id(place) in places:
            continue
        places[id(place)] = place
        if isinstance(place.get("$ref"), str):
            waiting.append(definitions.get(place["$ref"].removeprefix("#/$defs/")))
        if place.get("anyOf") is not FILE["anyOf"]:
            waiting += [inner for key in ("allOf", "anyOf", "oneOf") for inner in place.get(key, ())]
    return list(places.values())


def _name_arguments(parameters: Iterable[tuple[str, str]], *, has_body: bool) -> list[str]:
    """One safe, unique name for each parameter; the same whatever other parameters are added later on."""
    parameters = list(parameters)
    count = Counter(name for name, _ in parameters)
    taken = {BODY} if has_body else set()
    names: list[str] = []
    for name, place in parameters:
        twice = count[name] > 1 or (has_body and name == BODY)
        spelled = "".join(_SIGNS.get(sign, sign) for sign in name)
        stem = _UNSAFE.sub("_", f"{place}_{spelled}" if twice else spelled).strip("_")[:_MAX_ARGUMENT_LENGTH]
        unique, number = stem or place, 2
        while unique in taken:
            suffix = f"_{number}"
            unique, number = f"{(stem or place)[: _MAX_ARGUMENT_LENGTH - len(suffix)]}{suffix}", number + 1
        taken.add(unique)
        names.append(unique)
    return names
