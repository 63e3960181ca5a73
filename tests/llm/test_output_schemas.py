"""Schemas as the APIs of vendors accept them."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.llm.output_schemas import close_schema, is_expressible
from tests.strategies import json_values

_LEAVES: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer"},
        {"type": ["number", "null"]},
        {"enum": ["a", 1]},
        {"type": "array"},
        {"type": "object"},
        {},
    ]
)
schemas: st.SearchStrategy[dict[str, Any]] = st.recursive(
    _LEAVES,
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
        | st.builds(
            lambda a, b: {"type": "object", "properties": {"a": a, "b": b}, "required": ["a"]}, inner, inner
        )
        | st.builds(lambda a: {"type": "object", "additionalProperties": a}, inner)
    ),
    max_leaves=6,
)


@given(schemas, json_values)
def test_a_closed_schema_takes_the_same_objects(schema: dict[str, Any], value: Any) -> None:
    closed = close_schema(schema)
    for candidate in (value, {"a": value}, {"a": [value], "b": {}}, {}):
        if isinstance(candidate, dict):
            assert jsonschema_rs.is_valid(closed, candidate) == jsonschema_rs.is_valid(schema, candidate)


def test_what_vendors_want_is_added_at_every_level() -> None:
    schema = {
        "properties": {"names": {"type": "array"}, "of": {"anyOf": [{"type": "array"}, {"type": "null"}]}}
    }
    assert close_schema(schema) == {
        "type": "object",
        "properties": {
            "names": {"type": "array", "items": {}},
            "of": {"anyOf": [{"type": "array", "items": {}}, {"type": "null"}]},
        },
    }
    assert close_schema({}) == {"type": "object", "properties": {}}
    assert close_schema({"anyOf": [{"type": "object"}]}) == {"anyOf": [{"type": "object"}]}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}}, True),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}, True),
        ({"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}, True),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"const": 1}}}, True),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}, False),
        ({"type": "object"}, False),
        ({"type": "object", "properties": {"a": {}}}, False),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, False),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, False),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True}, False),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "patternProperties": {}}, False),
        (True, False),
    ],
)
def test_only_schemas_of_named_members_have_a_native_form(schema: Any, expected: bool) -> None:
    assert is_expressible(schema) is expected
