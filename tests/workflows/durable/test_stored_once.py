"""Large values that occur several times in what a run stores."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from retinue.workflows.durable.tables.stored_once import SHARED_BYTES, StoredValues, pack_alone, unpack

TEXT = "x" * SHARED_BYTES
OTHER = "y" * SHARED_BYTES
LIST = [TEXT, OTHER]


def pass_through_json(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


@pytest.mark.parametrize(
    ("value", "copies"),
    [
        ([TEXT, TEXT, {"again": TEXT}], 1),
        ({"output": LIST, "entries": [["one", {"output": LIST, "first": TEXT}]]}, 2),
        ([TEXT, LIST, [LIST, TEXT]], 2),
        ([{"a": TEXT, "b": 1}, {"b": 1, "a": TEXT}, {"a": TEXT, "b": 1}], 1),
        ([[TEXT, 1], [TEXT, 1.0], [TEXT, True]], 1),
        (["small", "small", {"n": None}], 0),
        (TEXT, 1),
        (None, 0),
    ],
)
def test_a_value_is_packed_with_each_large_part_once_and_unpacked_the_same(value: Any, copies: int) -> None:
    given = pass_through_json(value)
    packed, references = pass_through_json(pack_alone(value))
    assert len(orjson.dumps(packed)) < copies * (SHARED_BYTES + 10) + 1_000
    assert orjson.dumps(unpack(packed, references, {})) == orjson.dumps(given)
    assert value == given, "packing has changed what it was given"


def test_parts_that_calls_store_are_left_out_wherever_they_stand() -> None:
    calls: dict[str, Any] = {
        "first": {"value": TEXT},
        "wait each": {"ended": [{"value": {"output": LIST}}, {"value": {"output": OTHER}}]},
    }
    stored = StoredValues()
    stored.add("first", calls["first"]["value"], ("value",))
    stored.add("wait each", calls["wait each"])
    output = {"all": [LIST, OTHER], "deep": {"first": TEXT, "n": 1}}
    packed, references = pass_through_json(stored.pack(output))
    assert len(orjson.dumps(packed)) < 100
    assert unpack(packed, references, pass_through_json(calls)) == output


def test_a_value_as_a_whole_may_be_what_a_call_stores() -> None:
    stored = StoredValues()
    stored.add("first", {"text": TEXT}, ("value",))
    packed, references = stored.pack({"text": TEXT})
    assert packed is None
    assert unpack(packed, references, {"first": {"value": {"text": TEXT}}}) == {"text": TEXT}


def test_a_value_nested_deeper_than_is_searched_stays_where_it_is() -> None:
    deep: Any = TEXT
    for _ in range(50):
        deep = [deep]
    packed, references = pack_alone([TEXT, deep])
    assert references == []
    assert packed == [TEXT, deep]
