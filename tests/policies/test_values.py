"""Arguments as Cedar values: exact, or refused; each trap of the engine by name."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.policies.reads import ValueType
from retinue.policies.values import UnmappableError, project

ENTITY = {"__entity": {"type": "Retinue::Caller", "id": "local"}}


def decimal(text: str) -> dict[str, Any]:
    return {"__extn": {"fn": "decimal", "arg": text}}


@pytest.mark.parametrize(
    ("value", "expected", "mapped"),
    [
        (900, "decimal", decimal("900.0000")),
        (900.5, "decimal", decimal("900.5000")),
        (2.0, "decimal", decimal("2.0000")),
        (1e3, "decimal", decimal("1000.0000")),
        (-0.0001, "decimal", decimal("-0.0001")),
        (2.0, "integer", 2),
        (-(2**63), "integer", -(2**63)),
        ("é", "text", "é"),
        (True, "boolean", True),
        (["a", None, "b"], "texts", ["a", "b"]),
        ([1, 2.0], "integers", [1, 2]),
        (ENTITY, "present", True),
    ],
)
def test_a_value_has_the_type_that_the_policy_expects(value: Any, expected: ValueType, mapped: Any) -> None:
    assert project({"a": value, "b": ENTITY}, {("a",): expected}) == {"a": mapped}


@pytest.mark.parametrize(
    ("value", "expected", "problem"),
    [
        (math.nan, "decimal", "a is nan"),
        (math.inf, "decimal", "a is inf"),
        (0.30000000000000004, "decimal", "at most 4 places"),
        (0.00005, "decimal", "at most 4 places"),
        (2**63, "integer", "more than 64 bits"),
        (10**30, "decimal", "larger than"),
        (1e300, "decimal", "larger than"),
        (1.5, "integer", "compares integers"),
        (True, "integer", "a is true or false"),
        ("500", "decimal", "a is a text, and the policy expects a number"),
        (ENTITY, "text", "a is an object, and the policy expects a text"),
        ({"__extn": {"fn": "decimal", "arg": "0.0"}}, "decimal", "a is an object"),
        (["a", ENTITY], "texts", "a is an object"),
        ([["a"]], "texts", "a is a list"),
        ("a", "texts", "a is a text, and the policy expects a list"),
        ("\ud800", "text", "surrogate"),
        ("x" * 70_000, "text", "too long"),
        (["x"] * 1_001, "texts", "more than 1,000 elements"),
    ],
)
def test_a_value_without_an_exact_form_is_refused(value: Any, expected: ValueType, problem: str) -> None:
    with pytest.raises(UnmappableError) as refused:
        project({"a": value}, {("a",): expected})
    assert problem in str(refused.value)


def test_only_what_is_read_is_passed_and_nulls_are_absent() -> None:
    reads: dict[tuple[str, ...], ValueType] = {
        ("who", "name"): "text",
        ("who", "age"): "integer",
        ("gone",): "text",
        ("null",): "text",
        ("no", "way"): "text",
    }
    arguments = {
        "who": {"name": "ann", "age": None, **ENTITY},
        "null": None,
        "no": None,
        "big": ["x"] * 99_999,
    }
    assert project(arguments, reads) == {"who": {"name": "ann"}}
    for other in ("text", ["list"], 7):
        with pytest.raises(UnmappableError, match="who is a"):
            project({"who": other}, reads)
    with pytest.raises(UnmappableError, match="the arguments is a list, not an object"):
        project([], reads)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "__entity", "__extn", "type", "id"]), inner, max_size=4)
    ),
    max_leaves=12,
)
TYPES: tuple[ValueType, ...] = ("present", "integer", "decimal", "text", "boolean", "integers", "texts")


@given(json_values, st.sampled_from(TYPES))
def test_any_json_is_exact_or_refused_and_never_an_entity(value: Any, expected: ValueType) -> None:
    try:
        mapped = project({"a": value, "c": {"a": value}}, {("a",): expected, ("c", "a"): expected})
    except UnmappableError:
        return
    assert "__entity" not in repr(mapped)
    if value is None:
        assert mapped == {"c": {}}
        return
    one = mapped["a"]
    if expected == "decimal":
        assert Decimal(one["__extn"]["arg"]) == Decimal(value if isinstance(value, int) else repr(value))
    elif expected != "present":
        assert one == (value if not isinstance(value, list) else [each for each in value if each is not None])
