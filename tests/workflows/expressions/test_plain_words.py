"""Errors of expressions are in plain words, without tokens of the engine's grammar."""

from __future__ import annotations

import pytest

from retinue.workflows.expressions.expression import Expression, ExpressionSyntaxError


@pytest.mark.parametrize(
    ("source", "problem", "remedy"),
    [
        ("input.x ==", "it ends where a value is missing", "complete it"),
        ("[1, 2", "it ends where ] or , is missing", "complete it"),
        ("true ? 1", "it ends where : is missing", "complete it"),
        ("(1", ") is missing at the end", "add )"),
        ("a b", "b does not belong here", "put an operator before it"),
        ("input.[0]", ".[ does not belong here", "put an operator before it"),
        ("input.x = 1", "= is no operator", "compare with =="),
        ("input.x | 2", "| is no operator", "write ||"),
        ("'abc", "a text without its closing quote", "close it with '"),
        ("foo.bar", "nothing is named foo.bar", "read input, steps or loop"),
        ("nope(1)", "there is no function nope with these arguments", "cel.dev"),
        ("1 + 1.5", "+ does not take int and double", "convert one of them"),
        ("true ? 1 : 'a'", "both sides of ? : need one type", "dyn"),
        ("if x", "if is a reserved word", "condition ? a : b"),
    ],
)
def test_a_wrong_expression_is_explained_in_plain_words(source: str, problem: str, remedy: str) -> None:
    with pytest.raises(ExpressionSyntaxError) as refused:
        Expression(source)
    assert problem in refused.value.problem
    assert remedy in refused.value.remedy
    for token in ("EOF", "IDENTIFIER", "NUM_", "expecting", "overload", "viable"):
        assert token not in refused.value.problem
