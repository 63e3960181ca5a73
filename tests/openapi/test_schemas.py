"""Schemas of OpenAPI as JSON Schema 2020-12."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.mesh.schema.checks import MAX_SCHEMA_BYTES, compile_schema
from retinue.openapi.codec.schema_keywords import BrokenSchemaError
from retinue.openapi.codec.schema_size import cut_schema, find_refusal
from retinue.openapi.codec.schemas import Direction, SchemaConverter


def _convert(
    schema: Any, *, is_30: bool = True, direction: Direction = "input", files: bool = False, **schemas: Any
) -> dict[str, Any]:
    """The converted schema with its definitions, which compiles."""
    converter = SchemaConverter(
        {"components": {"schemas": schemas}}, is_30=is_30, direction=direction, files=files
    )
    converted, definitions = converter.convert(schema)
    assert isinstance(converted, dict)
    found: dict[str, Any] = dict(converted)
    if definitions:
        found["$defs"] = definitions
    compile_schema(found, "test")
    return found


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        (
            {"type": "string", "nullable": True, "enum": ["a"]},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        ({"nullable": True, "enum": ["a", None]}, {"enum": ["a", None]}),
        (
            {"nullable": True, "allOf": [{"type": "object"}], "description": "d"},
            {"description": "d", "anyOf": [{"allOf": [{"type": "object"}]}, {"type": "null"}]},
        ),
        ({"nullable": True}, {}),
    ],
)
def test_nullable_allows_null(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    converted = _convert(schema)
    assert converted == expected
    assert compile_schema(converted, "test").is_valid(None) is (schema["nullable"] is True)


def test_boolean_bounds_become_numbers() -> None:
    converted = _convert({"minimum": 0, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False})
    assert converted == {"exclusiveMinimum": 0, "maximum": 9}
    assert _convert({"exclusiveMinimum": True, "type": "number"}) == {"type": "number"}
    assert _convert({"exclusiveMinimum": 3}, is_30=False) == {"exclusiveMinimum": 3}


def test_keywords_outside_json_schema_are_dropped_and_names_of_properties_are_not() -> None:
    converted = _convert(
        {
            "type": "object",
            "discriminator": {"propertyName": "x-kind"},
            "xml": {},
            "example": 1,
            "externalDocs": {},
            "x-mine": True,
            "$id": "https://example.com/",
            "properties": {"example": {"type": "string"}, "xml": {"x-a": 1}, "$ref": {"type": "integer"}},
        }
    )
    assert converted == {
        "type": "object",
        "properties": {"example": {"type": "string"}, "xml": {}, "$ref": {"type": "integer"}},
    }


def test_a_reference_stays_one_and_brings_what_it_reaches() -> None:
    pet = {"type": "object", "properties": {"owner": _ref("Owner")}}
    owner = {"type": "object", "properties": {"pets": {"type": "array", "items": _ref("Pet")}}}
    converted = _convert(_ref("Pet"), Pet=pet, Owner=owner, Unused={"type": "string"})
    assert converted["$ref"] == "#/$defs/Pet"
    assert list(converted["$defs"]) == ["Pet", "Owner"]
    check = compile_schema(converted, "test")
    assert check.is_valid({"owner": {"pets": [{"owner": {}}]}})
    assert not check.is_valid({"owner": {"pets": [{"owner": 1}]}})


def test_what_stands_beside_a_reference_counts_from_3_1_on() -> None:
    beside = {**_ref("A"), "description": "d"}
    assert _convert(beside, A={}) == {"$ref": "#/$defs/A", "$defs": {"A": {}}}
    assert _convert(beside, is_30=False, A={})["description"] == "d"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"items": [{"nullable": True}, {}]}, {"prefixItems": [{}, {}]}),
        ({"items": [], "allOf": [], "enum": [], "required": True}, {}),
        (
            {"maxLength": -1, "minLength": "1", "maxItems": 2.0, "minItems": 1.5, "multipleOf": 0},
            {"maxItems": 2},
        ),
        ({"minimum": "0", "uniqueItems": "yes", "pattern": 7, "title": None, "examples": {"a": 1}}, {}),
        ({"type": ["string", "string", "null"]}, {"type": ["string", "null"]}),
        ({"dependentRequired": {"a": ["b", "b", 1], "c": "d"}}, {"dependentRequired": {"a": ["b"]}}),
        ({"propertyNames": {"x-a": 1}, "not": {"example": 1}}, {"propertyNames": {}, "not": {}}),
    ],
)
def test_a_keyword_of_a_wrong_form_is_dropped_or_mended(
    schema: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert _convert(schema, is_30=False) == expected


def test_two_references_of_the_same_last_name_get_different_definitions() -> None:
    converter = SchemaConverter(
        {
            "components": {
                "schemas": {"id": {"type": "string"}, "Pet": {"properties": {"id": {"type": "integer"}}}}
            }
        },
        is_30=True,
        direction="input",
    )
    schema = {"anyOf": [_ref("id"), {"$ref": "#/components/schemas/Pet/properties/id"}]}
    converted, definitions = converter.convert(schema)
    assert converted == {"anyOf": [{"$ref": "#/$defs/id"}, {"$ref": "#/$defs/id_2"}]}
    assert definitions == {"id": {"type": "string"}, "id_2": {"type": "integer"}}


def test_a_recursive_reference_leads_to_its_component() -> None:
    tree = {
        "type": "object",
        "$recursiveAnchor": "no boolean",
        "properties": {"children": {"type": "array", "items": {"$recursiveRef": "#"}}},
    }
    converted = _convert(_ref("Tree"), is_30=False, Tree=tree)
    assert converted["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    dynamic = {"$dynamicAnchor": "node", "properties": {"next": {"$dynamicRef": "#node"}}}
    converted = _convert(_ref("Node"), is_30=False, Node=dynamic)
    assert converted["$defs"]["Node"] == {"properties": {"next": {"$ref": "#/$defs/Node"}}}


def test_definitions_inside_a_schema_are_found() -> None:
    converted = _convert({"$defs": {"A": {"type": "string"}}, "items": {"$ref": "#/$defs/A"}}, is_30=False)
    assert converted == {"items": {"type": "string"}}


def test_definitions_inside_a_schema_that_multiply_are_refused() -> None:
    definitions: dict[str, Any] = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 2} for n in range(10)}
    schema = {"$defs": {**definitions, "D10": {}}, "$ref": "#/$defs/D0"}
    with pytest.raises(BrokenSchemaError, match="over 200 times"):
        SchemaConverter({}, is_30=False, direction="input").convert(schema)


def test_definitions_beyond_any_use_accept_anything() -> None:
    schemas = {f"S{n}": {"const": "x" * 1000, "allOf": [_ref(f"S{n + 1}")]} for n in range(1000)}
    document = {"components": {"schemas": {**schemas, "S1000": {}}}}
    _, definitions = SchemaConverter(document, is_30=True, direction="input").convert(_ref("S0"))
    assert len(definitions) < 600
    assert list(definitions.values())[-1] is True


def test_an_input_leaves_out_what_is_only_read_and_an_output_what_is_only_written() -> None:
    schema = {
        "type": "object",
        "required": ["id", "secret", "name", "name"],
        "properties": {"id": _ref("Id"), "secret": {"writeOnly": True}, "name": {"type": "string"}},
    }
    converted = _convert(schema, Id={"type": "integer", "readOnly": True})
    assert (list(converted["properties"]), converted["required"]) == (["secret", "name"], ["secret", "name"])
    converted = _convert(schema, direction="output", Id={"type": "integer", "readOnly": True})
    assert (list(converted["properties"]), converted["required"]) == (["id", "name"], ["id", "name"])


def test_integers_over_64_bits_become_floats() -> None:
    big = 9223372036854776000000
    converted = _convert({"maximum": big, "minimum": -big, "default": [big], "enum": [big, 10**400]})
    assert converted["maximum"] == float(big)
    assert converted["default"] == [float(big)]


def test_a_pattern_that_the_compiler_refuses_is_dropped() -> None:
    assert _convert({"pattern": "^a+$"}) == {"pattern": "^a+$"}
    assert _convert({"type": "string", "pattern": "(?<=a)b"}) == {"type": "string"}
    assert _convert({"patternProperties": {"(?=a)": {}, "^b": {}}}, is_30=False) == {
        "patternProperties": {"^b": {}}
    }


def test_binary_text_is_a_file_where_files_are_sent() -> None:
    binary = {"type": "string", "format": "binary", "description": "The scan."}
    assert _convert(binary) == binary
    converted = _convert(binary, files=True)
    assert converted["description"] == "The scan."
    check = compile_schema(converted, "test")
    assert check.is_valid("aGk=")
    assert check.is_valid({"blob": "aGk=", "name": "a.txt"})
    assert not check.is_valid({"name": "a.txt"})
    raw = {"type": "string", "contentMediaType": "text/csv"}
    assert _convert(raw, is_30=False, files=True) == raw


@pytest.mark.parametrize(
    "schema",
    [
        7,
        {"type": "file"},
        {"type": []},
        {"oneOf": {"a": {}}},
        {"properties": []},
        {"items": "text"},
        {"enum": "a"},
        {"$ref": "#/components/schemas/Missing"},
        {"$ref": "other.yaml#/A"},
        {"$ref": 7},
        {"$ref": "#/components"},
        {"$dynamicRef": "#nowhere"},
        {"properties": {"a": {"allOf": [{"anyOf": [3]}]}}},
    ],
)
def test_a_broken_schema_is_said_to_be_broken(schema: Any) -> None:
    document = {"components": [1]}
    with pytest.raises(BrokenSchemaError):
        SchemaConverter(document, is_30=False, direction="input").convert(schema)


def test_a_schema_that_nests_without_references_is_refused_before_the_stack_ends() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"items": schema}
    with pytest.raises(BrokenSchemaError, match="nested deeper"):
        SchemaConverter({}, is_30=False, direction="input").convert(schema)


def test_a_broken_component_says_where_it_is_broken() -> None:
    with pytest.raises(BrokenSchemaError, match=r"components/schemas/A: properties\.x\.type"):
        _convert(_ref("A"), A={"properties": {"x": {"type": "any"}}})


def _large(count: int, text: str, content: str = "") -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/D0"}, "b": {"type": "string", "description": "short"}},
        "$defs": {
            f"D{n}": {
                "properties": {
                    "next": {"$ref": f"#/$defs/D{n + 1}"} if n + 1 < count else {},
                    f"description{n}": {"const": content, "description": text},
                }
            }
            for n in range(count)
        },
    }


def test_a_large_input_schema_loses_its_texts_first() -> None:
    schema = _large(20, "x" * 10_000)
    assert "over the limit" in (find_refusal(schema, {}) or "")
    converted, cut = cut_schema(schema)
    assert cut == "the texts of its parts"
    assert converted["properties"]["b"] == {"type": "string", "description": "short"}
    assert list(converted["$defs"]["D3"]["properties"]) == ["next", "description3"]
    assert find_refusal(converted, {}) is None


def test_a_larger_one_loses_the_definitions_that_are_farthest_from_its_top() -> None:
    converted, cut = cut_schema(_large(150, "x", "x" * 1000))
    assert "definitions" in cut
    assert converted["$defs"]["D0"]["properties"]["next"] == {"$ref": "#/$defs/D1"}
    assert converted["$defs"][list(converted["$defs"])[-1]] is True
    assert find_refusal(converted, {}) is None


def test_one_of_many_large_ones_loses_its_definitions_at_once() -> None:
    converted, cut = cut_schema(_large(150, "x", "x" * 1000), finely=False)
    assert cut == "the definitions of its parts"
    assert converted["properties"]["b"]["description"] == "short"
    assert converted["$defs"] == {"D0": True}
    assert find_refusal(converted, {}) is None


def test_the_largest_one_still_accepts_what_fits_its_top() -> None:
    properties = {f"p{n}": {"enum": ["x" * 1000] * n} for n in range(1, 60)}
    converted, cut = cut_schema({"type": "object", "properties": properties})
    assert "largest properties" in cut
    assert converted["properties"]["p59"] is True
    assert converted["properties"]["p1"] == properties["p1"]
    assert cut_schema({"enum": ["x" * MAX_SCHEMA_BYTES]}) == ({"type": "object"}, "everything but its type")


def test_a_schema_that_takes_exponential_time_is_found_before_it_is_used() -> None:
    definitions = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 2} for n in range(16)}
    schema = {"$ref": "#/$defs/D0", "$defs": {**definitions, "D16": {}}}
    assert "visit" in (find_refusal(schema, {}) or "")
