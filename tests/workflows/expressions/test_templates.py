"""Templates: where they begin and end, and what they give."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import ExpressionError
from retinue.workflows.expressions.expression import ExpressionSyntaxError
from retinue.workflows.expressions.templates import (
    iterate_templates,
    parse_condition,
    parse_template,
    render_value,
)

VARIABLES: dict[str, Any] = {
    "input": {"n": 1, "s": "x", "l": [1, "a"], "none": None, "yes": True, "f": 0.5},
    "steps": {"a": {"output": {"k": {"deep": 1}}}},
    "loop": {},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("", ""),
        ("${{ input.n }}", 1),
        ("${{input.l}}", [1, "a"]),
        (" ${{ input.n }}", " 1"),
        ("${{ input.n }}${{ input.s }}", "1x"),
        (
            "n=${{ input.n }}, l=${{ input.l }}, ${{ input.none }} ${{ input.yes }}",
            'n=1, l=[1,"a"], null true',
        ),
        ("${{ {'a': {'b': input.n}} }}", {"a": {"b": 1}}),
        ("${{ {'a': {'b': 1}}}}", {"a": {"b": 1}}),
        ("${{ '}}' }}", "}}"),
        ('${{ "}}" + input.s }}', "}}x"),
        ("$${{ input.n }}", "${{ input.n }}"),
        ("$${{ a }} ${{ input.n }}", "${{ a }} 1"),
        ("$ {{ input.n }} {{ x }} }}", "$ {{ input.n }} {{ x }} }}"),
        ("${{ has(steps.a.output.zz) ? dyn(1) : {} }}", {}),
    ],
)
def test_a_template_gives_its_value(text: str, value: Any) -> None:
    found = render_value(text, VARIABLES)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["${{ input.n", "a ${{ ( }} b", "${{ }}", "${{ input.n } }"])
def test_a_template_that_does_not_end_or_is_empty_is_refused(text: str) -> None:
    with pytest.raises(ExpressionSyntaxError):
        parse_template(text)
    with pytest.raises(ExpressionError):
        render_value(text, VARIABLES)


def test_a_text_that_grows_too_long_is_refused() -> None:
    long = {"input": {"s": "x" * 1_000_000}, "steps": {}, "loop": {}}
    with pytest.raises(ExpressionError, match="a text of more than"):
        render_value("${{ input.s }} " * 20, long)


def test_keys_are_literal_and_numbers_stay_as_they_are() -> None:
    value = {"${{ x }}": [1, 2.5, None, True, {"a": "${{ input.n }}"}]}
    assert render_value(value, VARIABLES) == {"${{ x }}": [1, 2.5, None, True, {"a": 1}]}
    assert list(iterate_templates(value)) == [(("${{ x }}", 4, "a"), "${{ input.n }}")]


def test_a_condition_may_be_wrapped_or_bare() -> None:
    assert parse_condition("input.yes").holds(VARIABLES)
    assert parse_condition(" ${{ input.yes }} ").holds(VARIABLES)
    with pytest.raises(ExpressionSyntaxError, match="mixes text"):
        parse_condition("${{ input.n }} == 1")


@given(st.text(max_size=40))
def test_no_text_crashes_the_parser_and_plain_text_stays(text: str) -> None:
    if "${{" not in text:
        assert parse_template(text).render(VARIABLES) == text
        return
    with suppress(ExpressionSyntaxError):
        parse_template(text)


@given(st.lists(st.sampled_from(["${{", "$${{", "}}", "input.n", "'", "{", "}", "a", " "]), max_size=12))
def test_no_mixture_of_marks_crashes_the_parser(parts: list[str]) -> None:
    with suppress(ExpressionError):
        render_value("".join(parts), VARIABLES)


@given(st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=30), st.integers(-1000, 1000))
def test_text_around_a_template_stays_as_it_is(text: str, number: int) -> None:
    variables = {"input": number, "steps": {}, "loop": {}}
    assert render_value(f"{text}|${{{{ input }}}}|{text}", variables) == f"{text}|{number}|{text}"


PART = "a" * 3_000_000


@pytest.mark.parametrize(
    "template",
    ["${{ input.s }}", "${{ input.s + '' }}", "x${{ input.s }}", "${{ [input.s] }}", "${{ input.o.s }}"],
    ids=["path", "expression", "text", "list", "deep path"],
)
def test_all_that_a_mapping_gives_has_one_bound_whatever_gives_it(template: str) -> None:
    """The third of three parts of 3 MB is refused, with its field, the size and the limit."""
    variables = {"input": {"s": PART, "o": {"s": PART}}, "steps": {}, "loop": {}}
    assert len(render_value([template, template], variables)) == 2
    mapping = {"a": {"b": [template, {"c": template}]}, "d": template}
    with pytest.raises(ExpressionError) as caught:
        render_value(mapping, variables, "output")
    assert re.search(
        r"with it at output\.d the value has 9,000,0\d\d bytes; at most 8,388,608", caught.value.message
    )
    assert caught.value.remedy == "read a smaller part, or leave the work to a skill"


def test_one_value_that_only_passes_has_the_same_bound() -> None:
    variables = {"input": {"s": 3 * PART}, "steps": {}, "loop": {}}
    with pytest.raises(ExpressionError, match="9,000,002 bytes; at most 8,388,608"):
        render_value("${{ input.s }}", variables)
