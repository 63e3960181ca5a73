"""A JSON Schema becomes the Python type that its values have."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.stubs.generated import check_statements, make_skill, render, types_of

STRING = {"type": "string"}
NUMBER = {"type": "number"}
POINT = {"type": "object", "properties": {"x": NUMBER}, "required": ["x"]}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, "Any"),
        (False, "Never"),
        ({}, "Any"),
        ({"type": "integer"}, "int"),
        (NUMBER, "float"),
        ({"type": "boolean"}, "bool"),
        ({"type": "null"}, "None"),
        ({"type": "strange"}, "Any"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"type": "string", "nullable": True}, "str | None"),
        ({"type": []}, "Any"),
        ({"enum": ["a", 'b"', 1, True, None]}, 'Literal["a", "b\\"", 1, True] | None'),
        ({"enum": ["a", 0.5, [1]]}, 'Literal["a"] | float | list[Any]'),
        ({"enum": [{}, 1.5]}, "dict[str, Any] | float"),
        ({"enum": [f"v{n}" for n in range(501)]}, "str"),
        ({"const": -1}, "Literal[-1]"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "array", "items": STRING}, "list[str]"),
        ({"items": {"type": ["integer", "null"]}}, "list[int | None]"),
        ({"type": "array", "prefixItems": [STRING, NUMBER], "items": False}, "list[str | float]"),
        ({"type": "array", "prefixItems": [STRING, NUMBER], "maxItems": 2}, "list[str | float]"),
        ({"type": "array", "prefixItems": [STRING]}, "list[Any]"),
        ({"type": "array", "items": [STRING], "additionalItems": NUMBER}, "list[str | float]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": False}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": NUMBER}, "dict[str, float]"),
        ({"type": "object", "patternProperties": {"^a": NUMBER}}, "dict[str, float]"),
        (
            {"patternProperties": {"^a": NUMBER}, "additionalProperties": STRING},
            "dict[str, float | str]",
        ),
        ({"anyOf": [STRING, STRING, {"type": "null"}, NUMBER]}, "str | float | None"),
        ({"type": "string", "anyOf": [{"enum": ["a"]}, {"pattern": "^b"}]}, 'Literal["a"] | str'),
        ({"oneOf": [{"const": "a"}, {"const": "b"}]}, 'Literal["a", "b"]'),
        ({"allOf": [STRING, {"minLength": 3}]}, "str"),
        ({"allOf": [{"minLength": 3}, STRING]}, "str"),
        ({"allOf": ["broken", 3]}, "Any"),
        ({"$ref": "#/$defs/Name", "$defs": {"Name": STRING}}, "str"),
        ({"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": STRING}}, "str"),
        ({"$ref": "#/anyOf/0", "anyOf": [STRING]}, "str"),
        ({"$ref": "https://example.org/schema.json"}, "Any"),
        ({"$ref": "#/$defs/Missing"}, "Any"),
        ({"$ref": "#anchor"}, "Any"),
        ({"$ref": "#"}, "Any"),
        ({"anyOf": [{"$ref": "#"}, STRING]}, "Any"),
    ],
)
def test_a_schema_without_named_keys_is_one_expression(schema: Any, expected: str) -> None:
    assert types_of(schema) == [expected]


def test_an_object_is_a_typed_dict_with_its_descriptions() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The name\nof it"},
            "at": POINT,
            "others": {"type": "array", "items": POINT},
        },
        "required": ["name"],
    }
    assert types_of(schema) == [
        "class DoOutputAt(TypedDict):",
        "    x: float",
        "class DoOutputOthersItem(TypedDict):",
        "    x: float",
        "class DoOutput(TypedDict):",
        "    # The name of it",
        "    name: str",
        "    at: NotRequired[DoOutputAt]",
        "    others: NotRequired[list[DoOutputOthersItem]]",
        "DoOutput",
    ]


def test_a_field_that_no_class_can_have_makes_the_other_form() -> None:
    for name in ("a-b", "class", "__x", "ünicode", "2", "str", ""):
        schema = {"type": "object", "properties": {name: STRING}, "required": [name]}
        assert types_of(schema) == [
            'DoOutput = TypedDict("DoOutput", {',
            f'    "{name}": "str",',
            "})",
            "DoOutput",
        ]


def test_a_record_may_contain_itself() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "all": {"$ref": "#"}}}
    schema = {"type": "object", "properties": {"head": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}
    assert types_of(schema) == [
        "class DoOutputNode(TypedDict):",
        "    next: NotRequired[DoOutputNode]",
        "    all: NotRequired[DoOutput]",
        "class DoOutput(TypedDict):",
        "    head: NotRequired[DoOutputNode]",
        "DoOutput",
    ]
    root = {
        "$ref": "#/$defs/Node",
        "$defs": {"Node": {**node, "properties": {"next": {"$ref": "#/$defs/Node"}}}},
    }
    assert types_of(root)[-1] == "DoOutputNode"


def test_a_recursive_union_is_an_alias() -> None:
    json = {
        "anyOf": [
            STRING,
            {"type": "array", "items": {"$ref": "#/$defs/Json"}},
            {"type": "object", "additionalProperties": {"$ref": "#/$defs/Json"}},
        ]
    }
    assert types_of({"$ref": "#/$defs/Json", "$defs": {"Json": json}}) == [
        'DoOutputJson: TypeAlias = "str | list[DoOutputJson] | dict[str, DoOutputJson]"',
        "DoOutputJson",
    ]


def test_all_of_joins_the_keys_of_its_parts() -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"own": NUMBER}, "required": ["own"]}],
        "$defs": {"Base": {"type": "object", "properties": {"id": STRING}, "required": ["id"]}},
    }
    assert types_of(schema) == ["class DoOutput(TypedDict):", "    id: str", "    own: float", "DoOutput"]


def test_branches_get_what_stands_beside_them() -> None:
    schema = {
        "type": "object",
        "properties": {"kind": STRING},
        "required": ["kind"],
        "oneOf": [
            {"title": "Circle", "properties": {"radius": NUMBER}, "required": ["radius"]},
            {"properties": {"side": NUMBER}},
        ],
    }
    assert types_of(schema) == [
        "class DoOutputCircle(TypedDict):",
        "    radius: float",
        "    kind: str",
        "class DoOutput(TypedDict):",
        "    side: NotRequired[float]",
        "    kind: str",
        "DoOutputCircle | DoOutput",
    ]


def test_branches_that_only_require_keys_do_not_split_the_type() -> None:
    schema = {
        "type": "object",
        "properties": {"a": STRING, "b": STRING},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    assert types_of(schema)[-1] == "DoOutput"


def test_keys_of_a_condition_are_optional() -> None:
    schema = {
        "properties": {"a": STRING},
        "required": ["a"],
        "if": {"properties": {"a": {"const": "x"}}},
        "then": {"properties": {"b": NUMBER}, "required": ["b"]},
    }
    assert types_of(schema)[1:3] == ["    a: str", "    b: NotRequired[float]"]


def test_references_that_multiply_end() -> None:
    """Each definition doubles the next one: 2**40 places."""
    layers = {
        f"L{n}": {
            "allOf": [
                {"$ref": f"#/$defs/L{n + 1}"},
                {"$ref": f"#/$defs/L{n + 1}"},
                {"properties": {f"k{n}": {}}},
            ]
        }
        for n in range(40)
    }
    schema = {"$ref": "#/$defs/L0", "$defs": {**layers, "L40": POINT}}
    text = render(make_skill(input_schema=schema, output_schema=schema))
    check_statements(text)
    assert len(text) < 100_000


def test_a_long_type_has_a_name() -> None:
    values = [f"value-{n}" for n in range(9)]
    assert types_of({"enum": values}) == [
        'DoOutput: TypeAlias = "Literal[' + ", ".join(f'\\"{value}\\"' for value in values) + ']"',
        "DoOutput",
    ]


def test_deep_nesting_ends_as_any() -> None:
    schema: dict[str, Any] = {"type": "array", "items": STRING}
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    alias, name = types_of(schema)
    assert name == "DoOutput"
    assert alias.endswith(f'list[Any{"]" * 32}"')
