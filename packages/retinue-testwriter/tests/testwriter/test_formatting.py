from __future__ import annotations

import ast

from hypothesis import given
from hypothesis import strategies as st

from retinue_testwriter.formatting import WIDTH, format_assertion, format_expression

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=12)
        | st.lists(inner, max_size=12).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=30,
)


@given(VALUES, st.sampled_from(["", "    "]))
def test_a_formatted_value_means_the_same(value: object, indent: str) -> None:
    assert ast.literal_eval(format_expression(repr(value), indent)) == value


@given(VALUES, VALUES)
def test_a_formatted_assertion_is_the_same_statement(left: object, right: object) -> None:
    line = f"assert f({left!r}) == {right!r}"
    assert ast.dump(ast.parse(format_assertion(line))) == ast.dump(ast.parse(line))


def test_a_long_union_of_strategies_is_broken_at_its_members() -> None:
    source = " | ".join(f"st.integers(min_value={n}, max_value={n + 10})" for n in range(4))
    lines = format_expression(source).splitlines()
    assert len(lines) == 6
    assert all(len(line) <= WIDTH for line in lines)


def test_a_short_expression_and_one_that_does_not_parse_are_left_alone() -> None:
    assert format_expression("f(1)") == "f(1)"
    assert format_expression("f(") == "f("
