"""Fields that policies name are masked wherever they are, and values that cannot be masked are refused."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.guards.fields import FieldMasks, list_field_names, read_pointer


def mask(value: Any, *pointers: str, names: Collection[str] | None = None) -> Any:
    return FieldMasks([read_pointer(pointer) for pointer in pointers], names).mask(value)[0]


def test_fields_are_masked_in_lists_and_at_any_depth_and_keep_their_types() -> None:
    people: list[dict[str, Any]] = [
        {"name": "Ann Lee", "age": 40, "home": {"city": "Bern", "is_own": True}},
        {"name": None},
    ]
    value = {"people": people, "count": 2}
    masked = {"people": [{**people[0], "name": "[redacted]"}, {"name": None}], "count": 2}
    assert mask(value, "/people/*/name") == masked
    assert mask(value, "/**/name") == masked
    home = mask(value, "/people/0/home", names={"city", "is_own"})["people"][0]["home"]
    assert home == {"city": "[redacted]", "is_own": False}
    assert mask(value, "/people/0/age")["people"][0]["age"] == 0
    assert mask([value], "/*/people/**", names={"name"})[0]["people"][1] == {"name": None}
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


def test_names_within_a_masked_field_are_masked_unless_the_schema_declares_them() -> None:
    value = {
        "staff": {"Ann Lee": {"age": 40}, "Bob Day": None},
        "note": "met Bob Day",
        "Ann Lee": 1,
        "age": 2,
    }
    masked = {"[redacted]": {"age": 0}, "[redacted] 2": None}
    rest = {"note": "met [redacted]", "[redacted]": 1, "age": 2}
    assert mask(value, "/staff", names={"staff", "age", "note"}) == {"staff": masked, **rest}
    unknown = mask(value, "/staff")
    assert list(unknown["staff"].values()) == [{"[redacted]": 0}, None]
    assert {**unknown, "staff": 0} == {"staff": 0, **rest}  # a word such as "age" may be anything
    schema: dict[str, Any] = {"properties": {"staff": {"items": [{"properties": {"age": {}}}]}}}
    assert list_field_names(schema) == frozenset({"staff", "age"})


@pytest.mark.parametrize("count", [3, 500])
def test_texts_of_masked_fields_are_masked_within_other_texts_however_many_there_are(count: int) -> None:
    people = [{"name": f"person-{number:05}"} for number in range(count)]
    fields = FieldMasks([read_pointer("/people/*/name")])
    value, _ = fields.mask({"people": people, "note": "we met person-00001 and xperson-00002person-00000"})
    assert value["note"] == "we met [redacted] and x[redacted][redacted]"
    assert fields.mask("person-00002?") == ("[redacted]?", True)


def test_texts_that_overlap_are_masked_as_one() -> None:
    fields = FieldMasks([read_pointer("/*/name")])
    value, _ = fields.mask([{"name": "Ann Lee"}, {"name": "Lee Smith"}, "with Ann Lee Smith, too"])
    assert value[2] == "with [redacted], too"


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
