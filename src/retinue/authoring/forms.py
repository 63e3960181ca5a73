"""Asks questions as forms: JSON Schemas, or types whose answers arrive as values of the type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.json_schema import GenerateJsonSchema

from retinue.core.errors import InputRefusedError, InvalidSettingError


class PlainSchema(GenerateJsonSchema):
    """Omits the titles that pydantic makes from names, which add nothing to a card or form but size.

    A text in the place of a decimal number is marked as such.
    """

    # a default such as a sentinel object is left out without a word
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012  # as pydantic declares it

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        rendered = super().decimal_schema(schema)
        for form in rendered.get("anyOf", ()):
            if form.get("type") == "string":
                form["format"] = "decimal"
        return rendered


def make_form(shape: Any) -> tuple[Mapping[str, Any], Callable[[Any], Any]]:
    """The JSON Schema of a question, and the converter of its answer.

    ``shape`` is a JSON Schema, or a type: ``str``, ``int``, ``bool``, a ``Literal``, an Enum, or a dataclass
    or pydantic model of such fields. Raises InvalidSettingError.
    """
    if isinstance(shape, Mapping):
        return shape, lambda answer: answer
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(shape)
        schema = adapter.json_schema(schema_generator=PlainSchema)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise InvalidSettingError(
            "ctx.elicit",
            f"{getattr(shape, '__qualname__', shape)} is no type of an answer",
            remedy="ask for str, int, float, bool, a Literal, an Enum, a dataclass, or a JSON Schema",
        ) from error

    def read(answer: Any) -> Any:
        try:
            return adapter.validate_python(answer)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            at = ".".join(str(part) for part in first["loc"])
            problem = f"'{at}': {first['msg']}" if at else first["msg"]
            raise InputRefusedError(f"the answer does not fit the question: {problem}") from error

    return _flatten(schema, schema.get("$defs", {})), read


def _flatten(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """The schema as clients show forms: fields of plain types, without references and null."""
    if depth > 4:
        raise InvalidSettingError(
            "ctx.elicit", "the type refers to itself", remedy="ask for a dataclass of plain fields"
        )
    pointer = schema.get("$ref")
    if isinstance(pointer, str):
        target = definitions[pointer.rpartition("/")[2]]
        # the title of a definition is the name of its class
        schema = {key: value for key, value in {**target, "title": None, **schema}.items() if key != "$ref"}
    forms = schema.get("anyOf")
    if isinstance(forms, list):
        not_null = [form for form in forms if form.get("type") != "null"]
        if len(not_null) == 1 and len(not_null) < len(forms):
            rest = {k: v for k, v in schema.items() if k != "anyOf" and not (k == "default" and v is None)}
            schema = {**not_null[0], **rest}
            return _flatten(schema, definitions, depth + 1)
    is_named = depth > 0 and schema.get("title") is not None and "properties" not in schema
    flat = {key: value for key, value in schema.items() if key != "$defs" and (is_named or key != "title")}
    if isinstance(flat.get("properties"), Mapping):
        flat["properties"] = {
            name: _flatten(field, definitions, depth + 1) for name, field in flat["properties"].items()
        }
    return flat
