"""Forms of JSON Schemas and the values that come back from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.dashboard.forms import MAX_FIELDS, WHOLE, FormField, has_problem, make_form, read_form

ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer", "default": 1}},
    "required": ["name"],
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {"Item": ITEM},
    "properties": {
        "item": {"$ref": "#/$defs/Item"},
        "speed": {"enum": ["slow", "fast"], "default": "slow"},
        "notes": {"type": "array", "items": {"type": "string"}},
        "gift": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None},
        "a/b": {"type": "number"},
        "extra": {"type": "object"},
    },
    "required": ["item"],
}


def list_fields(form: FormField) -> dict[str, FormField]:
    found = {form.name: form}
    for one in form.fields:
        found |= list_fields(one)
    return found


def test_each_part_of_a_schema_gets_its_kind_of_field() -> None:
    fields = list_fields(make_form(SCHEMA))
    kinds = {name: field.kind for name, field in fields.items()}
    assert kinds == {
        "": "group",
        "/item": "group",
        "/item/name": "text",
        "/item/count": "integer",
        "/speed": "choice",
        "/notes": "lines",
        "/gift": "boolean",
        "/a~1b": "number",
        "/extra": "json",
    }
    assert fields["/item/name"].required
    assert not fields["/gift"].required
    assert fields["/speed"].text == '"slow"'
    assert fields["/gift"].text == ""


def test_entries_become_the_value_and_empty_fields_are_left_out() -> None:
    entered = {
        "/item/name": "Tea",
        "/item/count": "2",
        "/speed": '"fast"',
        "/notes": "first\r\n\r\nsecond",
        "/gift": "",
        "/a~1b": "1.5",
        "/extra": '{"x": [1]}',
    }
    value, form = read_form(make_form(SCHEMA), entered)
    assert not has_problem(form)
    assert value == {
        "item": {"name": "Tea", "count": 2},
        "speed": "fast",
        "notes": ["first", "second"],
        "a/b": 1.5,
        "extra": {"x": [1]},
    }
    assert read_form(make_form(SCHEMA), {})[0] == {"item": {}}


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("/item/count", "two", "'two' is no whole number"),
        ("/a~1b", "1,5", "'1,5' is no number"),
        ("/extra", "{x: 1}", "this is not JSON; texts stand in double quotes"),
    ],
)
def test_an_entry_that_cannot_be_read_stays_in_its_field_with_the_reason(
    name: str, text: str, problem: str
) -> None:
    _, form = read_form(make_form(SCHEMA), {name: text})
    assert has_problem(form)
    field = list_fields(form)[name]
    assert (field.text, field.problem) == (text, problem)


def test_a_schema_without_properties_or_with_a_union_is_entered_as_json() -> None:
    for schema in (None, {}, {"oneOf": [ITEM, {"type": "string"}]}, {"type": "array"}):
        form = make_form(schema)
        assert form.kind == "json"
        assert read_form(form, {WHOLE: '{"a": 1}'})[0] == {"a": 1}


def test_a_default_of_more_than_64_bits_is_shown() -> None:
    assert make_form({"type": "object", "default": 2**70}).text == str(2**70)


def test_recursive_and_huge_schemas_end() -> None:
    node: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert len(list_fields(make_form(node))) < 10
    wide = {"type": "object", "properties": {f"p{n}": ITEM for n in range(150)}}
    assert len(list_fields(make_form(wide))) <= 2 * MAX_FIELDS
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert make_form(endless).kind == "json"


schemas = st.recursive(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "integer"},
            {"type": "boolean"},
            {"enum": [1, "a", None]},
            {},
            True,
            None,
        ]
    )
    | st.dictionaries(st.text(max_size=4), st.none() | st.integers() | st.text(max_size=5), max_size=3),
    lambda inner: st.fixed_dictionaries(
        {"type": st.sampled_from(["object", "array", ["object", "null"], 7])},
        optional={
            "properties": st.dictionaries(st.text(max_size=6), inner, max_size=4) | st.integers(),
            "items": inner,
            "anyOf": st.lists(inner, max_size=3),
            "required": st.lists(st.text(max_size=6), max_size=2) | st.integers(),
            "$ref": st.sampled_from(["#", "#/properties/a", "#/x", "http://a/b", 3]),
            "description": st.text(max_size=5) | st.integers(),
            "default": st.none() | st.integers() | st.lists(st.integers(), max_size=2),
        },
    ),
    max_leaves=12,
)


@given(schemas, st.text(max_size=10))
def test_any_schema_gives_a_form_that_can_be_read(schema: Any, text: str) -> None:
    form = make_form(schema if isinstance(schema, Mapping) else {})
    plain = [name for name, field in list_fields(form).items() if field.kind != "group"]
    _, shown = read_form(form, {name or WHOLE: text for name in plain})
    assert {list_fields(shown)[name].text for name in plain} <= {text.replace("\r\n", "\n")}
