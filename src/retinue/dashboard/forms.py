"""Makes forms from JSON Schemas, and reads the entered values.

Objects become groups of fields, enums choices, lists of plain values one line for each. Values without a
field of their own (unions, lists of objects, deep nesting) are entered as JSON. An empty field is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

Kind = Literal["group", "text", "long", "number", "integer", "boolean", "choice", "lines", "json"]
Schema = Mapping[str, Any]

WHOLE = "json"
"""The name of the one field of a form that is no group; the names of all others begin with a slash."""

MAX_TEXT = 10_000
"""Characters of a default, of all choices of a field, and of a name; longer ones are entered as JSON."""

MAX_DEPTH = 4
MAX_FIELDS = 200
_CHOICES_PER_FIELD = 10
_LONG = frozenset({"prompt", "text", "code", "plan", "requirements", "body", "content", "message"})
_PLAIN = ("string", "integer", "number")


@dataclass(frozen=True, slots=True)
class FormField:
    """One field; ``name`` is a JSON pointer, ``text`` the entry, ``problem`` the error in it."""

    kind: Kind
    name: str
    label: str
    description: str = ""
    required: bool = False
    options: Sequence[tuple[str, str]] = ()
    """The JSON text of each choice with its label."""
    items: str = "string"
    """The type of the entries of ``lines``."""
    fields: Sequence[FormField] = ()
    text: str = ""
    problem: str = ""

    @property
    def key(self) -> str:
        """The last part of the pointer."""
        return _unescape(self.name.rpartition("/")[2])

    @property
    def element(self) -> str:
        """An id for the field's element."""
        return "f" + self.name.replace("/", "-").replace("~", "-")


def make_form(schema: Schema | None, entered: Any = None) -> FormField:
    """The fields for a value of the schema, filled with a value that is ``entered``.

    The outermost field is a group, or one of kind "json" for a schema without declared properties.
    """
    made = make_field(schema, "")
    if made.kind == "json" and _takes_nothing(schema):
        made = replace(made, kind="group", text="")
    elif made.kind != "group":
        made = replace(made, kind="json", label="arguments", required=False)
    return made if entered is None else _fill(made, entered)


def make_field(schema: Schema | None, label: str) -> FormField:
    """The field, or the group of fields, for a value of the schema; its kind follows from the schema."""
    shown = schema or {}
    return _make("", label, shown, _Root(shown), required=True, depth=0)


def read_field(form: FormField, entered: Mapping[str, str]) -> tuple[Any, FormField]:
    """As `read_form`; where nothing was entered, the value is one for which `is_entered` is false."""
    return _read(form, entered)


def is_entered(value: Any) -> bool:
    """Whether a value of `read_field` was entered."""
    return value is not _NOTHING


def read_form(form: FormField, entered: Mapping[str, str]) -> tuple[Any, FormField]:
    """The entered value, and the form with the entries and their problems."""
    value, filled = _read(form, entered)
    return (value if value is not _NOTHING else {}), filled


def has_problem(form: FormField) -> bool:
    """Whether a field of the form, or one below it, has an entry that cannot be read."""
    return bool(form.problem) or any(map(has_problem, form.fields))


@dataclass(slots=True)
class _Root:
    """The schema that references point into, and how many fields it may still become."""

    schema: Schema
    left: int = field(default=MAX_FIELDS)

    def resolve(self, schema: Any) -> Schema:
        for _ in range(8):
            if not isinstance(schema, Mapping):
                return {}
            target = schema.get("$ref")
            if not isinstance(target, str) or not target.startswith("#/"):
                break
            shape: Any = self.schema
            for part in target[2:].split("/"):
                shape = shape.get(_unescape(part)) if isinstance(shape, Mapping) else None
            own = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**shape, **own} if isinstance(shape, Mapping) else own
        return schema if isinstance(schema, Mapping) else {}


def _make(name: str, label: str, schema: Schema, root: _Root, *, required: bool, depth: int) -> FormField:
    schema = _without_null(root.resolve(schema), root)
    root.left -= 1
    text = schema.get("description")
    made = FormField(
        "json",
        name,
        str(schema.get("title") or label),
        text if isinstance(text, str) else "",
        required,
        text=_bounded(_render(schema["default"])) if "default" in schema else "",
    )
    choices = _list_choices(schema)
    if choices and sum(len(value) + len(shown) for value, shown in choices) <= MAX_TEXT:
        root.left -= len(choices) // _CHOICES_PER_FIELD
        return replace(made, kind="choice", options=choices)
    properties, kind = schema.get("properties"), schema.get("type")
    fits = isinstance(properties, Mapping) and sum(map(len, properties)) <= MAX_TEXT and depth < MAX_DEPTH
    if isinstance(properties, Mapping) and properties and fits and root.left > len(properties):
        wanted = schema.get("required")
        needed = set(wanted) if isinstance(wanted, list) else set()
        fields = [
            _make(f"{name}/{_escape(key)}", key, part, root, required=key in needed, depth=depth + 1)
            for key, part in properties.items()
        ]
        return replace(made, kind="group", fields=tuple(fields), text="")
    if kind == "boolean":
        return replace(made, kind="boolean")
    if kind == "string":
        return replace(
            made, kind="long" if label in _LONG else "text", text=_bounded(str(schema.get("default", "")))
        )
    if kind in ("integer", "number"):
        return replace(made, kind=kind)
    inner = root.resolve(schema.get("items", {}))
    if kind == "array" and inner.get("type") in _PLAIN and not _list_choices(inner):
        return replace(
            made, kind="lines", items=inner["type"], text=_bounded(_render_lines(schema.get("default")))
        )
    return made


def _bounded(text: str) -> str:
    """A default, left out where it is too long for a page, because the agent applies it itself."""
    return text if len(text) <= MAX_TEXT else ""


def _without_null(schema: Schema, root: _Root) -> Schema:
    """The one alternative to null of a schema, which is an optional field."""
    kinds = schema.get("type")
    if isinstance(kinds, list) and "null" in kinds and len(kinds) == 2:
        return {**schema, "type": next(kind for kind in kinds if kind != "null")}
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list) and len(options) == 2:
            others = [option for option in map(root.resolve, options) if option.get("type") != "null"]
            if len(others) == 1:
                rest = {name: value for name, value in schema.items() if name != key}
                if rest.get("default", 0) is None:
                    del rest["default"]
                return {**others[0], **rest}
    return schema


def _list_choices(schema: Schema) -> list[tuple[str, str]]:
    if "const" in schema:
        return [(_render(schema["const"]), str(schema["const"]))]
    values = schema.get("enum")
    if isinstance(values, list) and 0 < len(values) <= MAX_FIELDS:
        return [(_render(value), str(value)) for value in values if value is not None]
    titled = schema.get("oneOf")
    if (
        isinstance(titled, list)
        and titled
        and all(isinstance(option, Mapping) and "const" in option for option in titled)
    ):
        return [(_render(option["const"]), str(option.get("title", option["const"]))) for option in titled]
    return []


def _fill(form: FormField, value: Any) -> FormField:
    if form.kind == "group" and isinstance(value, Mapping):
        fields = [_fill(field, value[field.key]) if field.key in value else field for field in form.fields]
        return replace(form, fields=tuple(fields))
    if form.kind in ("text", "long") and isinstance(value, str):
        return replace(form, text=value)
    if form.kind == "lines" and isinstance(value, list):
        return replace(form, text=_render_lines(value))
    return replace(form, text=_render(value))


def _takes_nothing(schema: Schema | None) -> bool:
    """Whether it is the schema of a skill without parameters: an object of which nothing else is said."""
    shown = schema or {}
    is_plain = shown.keys() <= {
        "type",
        "properties",
        "title",
        "description",
        "additionalProperties",
        "$schema",
    }
    return is_plain and shown.get("type") == "object" and shown.get("additionalProperties") in (None, False)


class _Nothing:
    """Stands for a field that was left empty."""


_NOTHING = _Nothing()


def _read(form: FormField, entered: Mapping[str, str]) -> tuple[Any, FormField]:
    if form.kind == "group":
        values = [_read(field, entered) for field in form.fields]
        value = {field.key: part for part, field in values if part is not _NOTHING}
        shown = replace(form, fields=tuple(field for _, field in values))
        return (value if value or (form.required and form.name) else _NOTHING), shown
    text = entered.get(form.name or WHOLE, "").replace("\r\n", "\n")
    shown = replace(form, text=text)
    if not text.strip():
        return _NOTHING, shown
    try:
        return _parse(form, text), shown
    except ValueError as error:
        return _NOTHING, replace(shown, problem=str(error))


def _parse(form: FormField, text: str) -> Any:
    if form.kind in ("text", "long"):
        return text
    if form.kind == "lines":
        return [_parse_plain(form.items, line.strip()) for line in text.split("\n") if line.strip()]
    if form.kind in ("integer", "number"):
        return _parse_plain(form.kind, text.strip())
    try:
        return orjson.loads(text)
    except ValueError:
        raise ValueError("this is not JSON; texts stand in double quotes") from None


def _parse_plain(kind: str, text: str) -> Any:
    if kind == "string":
        return text
    try:
        return int(text) if kind == "integer" else float(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no {'whole number' if kind == 'integer' else 'number'}") from None


def _render(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # orjson refuses integers of more than 64 bits


def _render_lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else ""


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
