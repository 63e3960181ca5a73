"""Fields that policies name are masked wherever they are, and values that cannot be masked are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.guards.fields import FieldMasks, read_pointer


def mask(value: Any, *pointers: str) -> Any:
    return FieldMasks([read_pointer(pointer) for pointer in pointers]).mask(value)[0]


def test_fields_are_masked_in_lists_and_at_any_depth_and_keep_their_types() -> None:
    people: list[dict[str, Any]] = [
        {"name": "Ann Lee", "age": 40, "home": {"city": "Bern", "is_own": True}},
        {"name": None},
    ]
    value = {"people": people, "count": 2}
    masked = {"people": [{**people[0], "name": "[redacted]"}, {"name": None}], "count": 2}
    assert mask(value, "/people/*/name") == masked
    assert mask(value, "/**/name") == masked
    assert mask(value, "/people/0/home")["people"][0]["home"] == {"city": "[redacted]", "is_own": False}
    assert mask(value, "/people/0/age")["people"][0]["age"] == 0
    assert mask([value], "/*/people/**")[0]["people"][1] == {"name": None}
    assert mask({"a/b": {"~": "Ann Lee"}}, "/a~1b/~0") == {"a/b": {"~": "[redacted]"}}
    assert mask({"mail": "ann@example.org"}, "/mail") == {"mail": "redacted@example.invalid"}


def test_a_masked_text_is_masked_where_it_is_repeated() -> None:
    fields = FieldMasks([read_pointer("/name")])
    assert fields.mask("a note before it") == ("[withheld]", True)  # it may hold the field
    value, _ = fields.mask({"name": "Ann Lee", "summary": "we met Ann Lee", "city": "Bern"})
    assert value == {"name": "[redacted]", "summary": "we met [redacted]", "city": "Bern"}
    assert fields.mask("Ann Lee called") == ("[redacted] called", True)
    assert json.loads(fields.mask('{"name": "Bob Day"}')[0]) == {"name": "[redacted]"}
    assert fields.mask("Bob Day called") == ("[redacted] called", True)
    assert fields.mask("nobody called") == ("nobody called", False)


@pytest.mark.parametrize("pointer", ["/x", "/**/x", "/a/**"])
def test_a_value_nested_too_deep_is_refused_instead_of_searched_in_part(pointer: str) -> None:
    value: Any = {"x": "secret"}
    for _ in range(140):
        value = {"a": value}
    with pytest.raises(ValueError, match="nested over 128 levels"):
        mask(value, pointer)


@pytest.mark.parametrize("pointer", ["", "name", "/", "//x", "/a~2", "/" + "/".join("a" * 33)])
def test_what_is_no_pointer_is_refused(pointer: str) -> None:
    with pytest.raises(ValueError, match=r"JSON Pointer|neither ~0 nor ~1"):
        read_pointer(pointer)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abx"), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_no_text_of_a_masked_field_is_left(value: Any) -> None:
    masked = mask({"x": ["a secret text", value], "other": value, "note": "it is a secret text"}, "/**/x")
    assert "a secret text" not in json.dumps(masked)
    assert masked["x"][0] == "[redacted]"
