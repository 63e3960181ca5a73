"""Expressions: values, faults by name, and caps that hostile ones meet."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import ExpressionError
from retinue.workflows.expressions.expression import (
    MAX_SOURCE_BYTES,
    Expression,
    ExpressionSyntaxError,
    compile_expression,
)


def evaluate(source: str, given: Any = None, steps: dict[str, Any] | None = None, loop: Any = None) -> Any:
    return Expression(source).evaluate({"input": given, "steps": steps or {}, "loop": loop or {}})


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("input.n + 1", 2),
        ("input.n == 1.0", True),
        ("input.l[1]", "b"),
        ("input['a-b']", 3),
        ('input["a-b"]', 3),
        ("has(input.zz)", False),
        ("has(steps.a.output)", False),
        ("has(steps.a.output) ? steps.a.output : {}", {}),
        ("has(steps.b.output) && steps.b.output.failed == 0", True),
        ("loop.index * 2", 6),
        ("steps.loop.output", "named loop"),
        ("'loop.index' + 'x'", "loop.indexx"),
        ("input.l.map(x, x + '!')", ["a!", "b!"]),
        ("{'z': 1, 'a': {'b': null}}", {"a": {"b": None}, "z": 1}),
        ("input.l.filter(x, x != 'a').size() == 1 // one", True),
        ("double(input.n) / 2.0", 0.5),
        ("string(timestamp('2020-01-01T00:00:00Z'))", "2020-01-01T00:00:00Z"),
        ("input.f", 1.5),
    ],
)
def test_an_expression_gives_json(source: str, value: Any) -> None:
    given = {"n": 1, "f": 1.5, "l": ["a", "b"], "a-b": 3}
    steps = {"a": {}, "b": {"output": {"failed": 0}}, "loop": {"output": "named loop"}}
    found = evaluate(source, given, steps, {"index": 3})
    assert found == value
    assert type(found) is type(value)


def test_a_value_that_is_only_passed_on_keeps_the_order_of_its_keys() -> None:
    data = {"z": 1, "a": {"y": 2, "b": 3}, "m": []}
    assert orjson.dumps(evaluate("input", data)) == orjson.dumps(data)
    assert orjson.dumps(evaluate("steps.a.output", steps={"a": {"output": data}})) == orjson.dumps(data)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("input.zz", "key 'zz' is absent"),
        ("input.d.zz == 1", "key 'zz' is absent"),
        ("has(input.zz.y)", "key 'zz' is absent"),
        ("input.n.x", "an int has no key 'x'"),
        ("input.n.x == 1", "reads a key of something that is no object"),
        ("input.l[9]", "index=9"),
        ("input.n + 'a'", "No matching overloads"),
        ("1 / 0", "divide by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("input.big", "an integer beyond 64 bits"),
        ("input.big > 0", "an integer beyond 64 bits"),
        ("[input.huge]", "an integer beyond 64 bits"),
        ("0.0 / 0.0", "which JSON cannot carry"),
        ("{1: 2}", "keys that are no text"),
        ("input.s + 'x'", "a NUL character"),
        ("b'x'", "gives a bytes"),
        ("duration('1s')", "gives a duration"),
        ("type(1)", "which JSON cannot carry"),
    ],
)
def test_a_failing_expression_says_what_is_wrong(source: str, problem: str) -> None:
    data = {"n": 1, "l": [1], "d": {}, "huge": 2**63, "s": "a\0b"} | (
        {"big": 2**70} if "big" in source else {}
    )
    with pytest.raises(ExpressionError, match=problem) as caught:
        evaluate(source, data)
    assert caught.value.source == source
    assert "\n" not in caught.value.message


def test_an_absent_key_names_its_remedy() -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate("input.zz", {})
    assert "has(" in caught.value.remedy


@pytest.mark.parametrize("source", ["input", "1", "'true'", "null"])
def test_a_condition_must_be_true_or_false(source: str) -> None:
    with pytest.raises(ExpressionError, match="not true or false"):
        Expression(source).holds({"input": {}, "steps": {}, "loop": {}})


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "empty"),
        ("1 +", "Syntax error"),
        ("foo", "undeclared reference to 'foo'"),
        ("exec('x')", "undeclared reference to 'exec'"),
        ("loop.index +", "Syntax error"),
        ("1 + " * 400 + "1", "at most 1,024"),
        ("(" * 60 + "1" + ")" * 60, "recursion limit"),
        ("input.?a", "unsupported syntax"),
        ("input.s.matches(input.p)", "not written out"),
        ("matches(input.s, 'x')", "not written out"),
    ],
)
def test_a_wrong_expression_is_refused_before_it_runs(source: str, problem: str) -> None:
    with pytest.raises(ExpressionSyntaxError, match=problem):
        Expression(source)


def doubling(levels: int, copies: int) -> str:
    source = "input.s"
    for level in range(levels):
        joined = "+".join([f"x{level}"] * copies)
        source = f"[{source}].map(x{level},{joined})[0]"
    return source


@pytest.mark.parametrize(
    "source",
    [
        doubling(6, 7),
        doubling(3, 10),
        "[1].map(a,[a,a,a,a,a]).map(b,[b,b,b,b,b]).map(c,[c,c,c,c,c]).map(d,[d,d,d,d,d]).size()",
        "[1].map(a,[a,a,a,a,a,a,a]).map(b,[b,b,b,b,b,b,b]).map(c,[c,c,c,c,c,c,c]) == []",
    ],
)
def test_an_expression_that_multiplies_its_data_is_refused_before_it_runs(source: str) -> None:
    with pytest.raises(ExpressionSyntaxError, match=r"-fold|macros"):
        Expression(source)


@pytest.mark.parametrize(
    ("source", "data"),
    [
        ("input.l.map(x, x)", {"l": list(range(1_001))}),
        ("input.l.all(x, input.l.all(y, input.l.all(z, x + y + z >= 0)))", {"l": list(range(900))}),
        (doubling(1, 20), {"s": "x" * 10_000_000}),
        ("input.l.map(x, input.s + input.s)", {"l": list(range(1_000)), "s": "x" * 100_000}),
        ("input.l.map(x, input.l)", {"l": list(range(1_000))}),
        ("input.l.all(x, input.d == input.d)", {"l": [1], "d": [list(range(300)) for _ in range(300)]}),
        ("input.l.map(x, input.l + input.l + input.l + input.l)", {"l": list(range(1_000))}),
        ("(input.l + input.l + input.l + input.l + input.l).map(x, x)", {"l": list(range(1_000))}),
        ("input.s.matches('(a?){1000}b')", {"s": "a" * 1_000_000}),
        ("input.l.filter(x, input.s.matches('(a?){1000}b'))", {"l": list(range(50)), "s": "a" * 10_000}),
        ("input.l.filter(x, input.s.contains('ab'))", {"l": list(range(1_000)), "s": "a" * 1_000_000}),
        ("input.l.all(x, input.d == input.d)", {"l": list(range(900)), "d": [list(range(100))] * 400}),
        ("[input.s, input.s]", {"s": "x" * 5_000_000}),
    ],
)
def test_a_hostile_expression_ends_soon_and_says_why(source: str, data: Any) -> None:
    began = time.perf_counter()
    with pytest.raises(ExpressionError) as caught:
        evaluate(source, data)
    assert time.perf_counter() - began < 5
    assert caught.value.remedy


ITEMS = [
    {"id": n, "status": "failed" if n % 3 else "passed", "path": f"tests/test_{n}.py", "text": "x" * 200}
    for n in range(500)
]


@pytest.mark.parametrize(
    "source",
    [
        "input.items.filter(x, x.status == 'failed' && x.path.matches('^tests/.*[.]py$')).map(x, x.path)",
        "input.items.filter(x, x.status == 'failed').map(x, {'id': x.id, 'path': x.path, 'n': size(x.text)})",
        "input.items.exists(x, x.id == 499 && x.text.contains('xx')) && !input.items.all(x, x.id > 3)",
        "input.items.map(x, x.path + ':' + string(x.id))",
        "size(input.items.filter(x, x.status != 'passed')) * 100 / size(input.items)",
    ],
)
def test_what_an_honest_author_writes_is_within_the_caps_and_quick(source: str) -> None:
    began = time.perf_counter()
    assert evaluate(source, {"items": ITEMS})
    assert time.perf_counter() - began < 1


@given(st.text(max_size=60))
def test_no_text_crashes_the_compiler(text: str) -> None:
    with suppress(ExpressionError, ExpressionSyntaxError):
        value = compile_expression(text).evaluate({"input": {"a": 1}, "steps": {}, "loop": {}})
        orjson.dumps(value)


WORDS = "input steps loop . a [ ] ( ) { } 's' 1 + == && ? : , has .map x - in null 2.5 \" !"


@given(st.lists(st.sampled_from(WORDS.split()), max_size=14).map(" ".join))
def test_no_mixture_of_words_crashes_the_compiler_or_the_evaluation(source: str) -> None:
    with suppress(ExpressionError, ExpressionSyntaxError):
        value = Expression(source).evaluate({"input": {"a": [1]}, "steps": {"a": {}}, "loop": {"index": 1}})
        orjson.dumps(value)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_every_json_value_passes_through_unchanged(value: Any) -> None:
    assert evaluate("input.v", {"v": value}) == value
    assert evaluate("true ? input.v : 0", {"v": value}) == value
    assert evaluate("[input.v][0]", {"v": value}) == value


@pytest.mark.parametrize("value", ["a\0b", {"k\0": 1}, [["\0"]]])
def test_a_nul_is_kept_where_a_value_is_only_passed_on_and_refused_elsewhere(value: Any) -> None:
    assert evaluate("input.v", {"v": value}) == value
    with pytest.raises(ExpressionError, match="NUL"):
        evaluate("[input.v]", {"v": value})
    assert evaluate("[input.other]", {"v": value, "other": r"\u0000"}) == [r"\u0000"]


def test_the_longest_source_is_accepted() -> None:
    source = "'" + "x" * (MAX_SOURCE_BYTES - 2) + "'"
    assert evaluate(source) == source[1:-1]
