"""Expressions: values, faults by name, and caps that hostile ones meet."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import ExpressionError
from retinue.workflows.expressions.caps import MAX_SOURCE_BYTES
from retinue.workflows.expressions.expression import (
    Expression,
    ExpressionSyntaxError,
    compile_expression,
)
from retinue.workflows.expressions.templates import holds, render


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
        ("1 +", "at character 4: it ends where a value is missing"),
        ("foo", "nothing is named foo"),
        ("exec('x')", "there is no function exec with these arguments"),
        ("loop.index +", "at character 13: it ends where a value is missing"),
        ("1 + " * 1100 + "1", "at most 4,096"),
        ("[1].map(a, [1].map(b, [1].map(c, c)))", "nests 3 macros; at most 2"),
        ("(" * 60 + "1" + ")" * 60, "recursion limit"),
        ("input.?a", "unsupported syntax"),
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


LONG = "takes more than 1 s of processor time"
LARGE = "needs more than 512 MB of memory"
LISTS = {"l": list(range(1_000)), "m": list(range(1_000))}
HOARDERS: list[tuple[str, dict[str, Any]]] = [
    (doubling(9, 2), {"s": "x" * 1_000_000}),
    ("size(" + doubling(3, 9) + ")", {"s": "x" * 1_000_000}),
    ("input.l.map(x, input.s + input.s)", {**LISTS, "s": "x" * 500_000}),
]
"""Expressions that need too much memory; where memory is slow to get, they take too long first."""


@pytest.mark.parametrize(
    ("source", "data", "problem"),
    [
        ("input.l.map(x, x)", {"l": list(range(1_001))}, "a list of 1,001 items"),
        ("input.l.map(x, x.d)", {"l": [{"d": list(range(1_001))}]}, "a list of 1,001 items"),
        (
            "input.l.all(x, input.d == input.e)",
            {"l": [1], "d": ["x" * 600_000], "e": ["x" * 600_000]},
            "reads",
        ),
        ("input.l.all(x, input.d == input.d)", {"l": [1], "d": ["x" * 600_000]}, "reads more than 1,048,576"),
        ("input.s + input.s", {"s": "x" * 5_000_000}, "reads more than 8,388,608 bytes"),
        (doubling(1, 20), {"s": "x" * 10_000_000}, "reads more than 1,048,576 bytes"),
        *((source, data, f"{LARGE}|{LONG}") for source, data in HOARDERS),
        ("input.l.map(x, input.m)", LISTS, "gives too large a result"),
        ("input.l.map(x, input.m + input.m + input.m)", LISTS, "too large a result"),
        ("input.l.all(x, input.m.all(y, x + y >= 0))", LISTS, "too many items"),
        ("input.s.matches('(a?){1000}b')", {"s": "a" * 1_000_000}, LONG),
        ("input.s.matches(input.p)", {"s": "a" * 1_000_000, "p": "(a?){1000}b"}, LONG),
        ("input.l.filter(x, input.s.contains('ab'))", {**LISTS, "s": "a" * 1_000_000}, LONG),
    ],
)
def test_a_hostile_expression_is_refused_with_the_limit_it_passes(
    source: str, data: Any, problem: str
) -> None:
    began = time.process_time()
    with pytest.raises(ExpressionError, match=problem) as caught:
        evaluate(source, data)
    assert time.process_time() - began < 1
    assert caught.value.source == source
    assert caught.value.remedy


@pytest.mark.parametrize(("source", "data"), HOARDERS)
def test_an_expression_that_has_time_is_refused_for_its_memory(source: str, data: dict[str, Any]) -> None:
    program = "from retinue.workflows.expressions.evaluator import main; main(cpu_s=60.0)"
    line = orjson.dumps([source, {"input": data, "steps": {}, "loop": None}])
    ended = subprocess.run(
        [sys.executable, "-c", program], input=line + b"\n", capture_output=True, check=False
    )
    reply = orjson.loads(ended.stdout)
    assert reply["problem"] == LARGE
    assert reply["remedy"]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("input.l.exists(x, x == 3)", True),
        ("input.s.matches(input.p)", True),
        ("matches(input.s, 'b$')", True),
        ("steps.a.output.map(x, x + loop.index)", [2]),
        ("steps['b-c'].output.items.filter(x, has(x.n)).map(x, x.n)", [1.0]),
        ("steps.exists(key, key == 'a')", True),
        ("has(steps.a.error) || has(input.none) || input.l.exists(x, x == 4)", False),
    ],
)
def test_a_costly_expression_reads_what_any_other_does(source: str, value: Any) -> None:
    given = {"l": [1, 2, 3], "s": "ab", "p": "^a"}
    steps = {"a": {"output": [1]}, "b-c": {"output": {"items": [{"n": 1.0}, {}]}}}
    found = evaluate(source, given, steps, {"index": 1})
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("source", ["input.zz.map(x, x)", "input.l.map(x, x.y)", "input.n.k.map(x, x)"])
def test_a_costly_expression_that_fails_says_what_is_wrong(source: str) -> None:
    with pytest.raises(ExpressionError, match=r"absent|no object|No matching|index") as caught:
        evaluate(source, {"l": [1], "n": 1})
    assert caught.value.source == source
    assert caught.value.message.count("expression") == 1


async def test_a_hostile_expression_does_not_block_the_event_loop() -> None:
    variables = {"input": {**LISTS, "s": "a" * 1_000_000}, "steps": {}, "loop": {}}
    hostile = asyncio.create_task(holds(Expression("input.l.all(x, !input.s.contains('ab'))"), variables))
    turns = 0
    while not hostile.done():
        turns += 1
        await asyncio.sleep(0.01)
    with pytest.raises(ExpressionError, match=LONG):
        hostile.result()
    assert turns > 20


@pytest.mark.parametrize("source", ["size(input.l)", "input.l == input.l", "input.l[0] + 1"])
async def test_an_expression_that_reads_much_does_not_block_the_event_loop(source: str) -> None:
    """The engine copies what is read, which takes up to a second for some megabytes of small values."""
    variables = {"input": {"l": [0] * 1_000_000}, "steps": {}, "loop": {}}
    expression = compile_expression(source)
    assert expression.takes_long(variables)
    evaluating = asyncio.create_task(render(f"x ${{{{ {source} }}}}", variables))
    turns = 0
    while not evaluating.done():
        turns += 1
        await asyncio.sleep(0.005)
    assert evaluating.result() in ("x 1000000", "x true", "x 1")
    assert turns > 5


async def test_an_expression_copies_only_what_it_reads() -> None:
    """A large input beside the value that is read costs nothing: it is evaluated in place, at once."""
    variables = {"input": {"l": [0] * 1_000_000, "s": "x"}, "steps": {"a": {"output": {"n": 1}}}, "loop": {}}
    expression = compile_expression("input.s + string(steps.a.output.n)")
    assert not expression.takes_long(variables)
    began = time.process_time()
    for _ in range(100):
        assert expression.evaluate(variables) == "x1"
    assert time.process_time() - began < 0.5


async def test_a_costly_expression_can_be_cancelled() -> None:
    variables = {"input": {**LISTS, "s": "a" * 1_000_000}, "steps": {}, "loop": {}}
    hostile = Expression("input.l.all(x, !input.s.contains('ab'))")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await holds(hostile, variables)
    assert await render("${{ input.l.filter(x, x < 2) }}", variables) == [0, 1]


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
def test_what_an_honest_author_writes_is_within_the_caps(source: str) -> None:
    assert evaluate(source, {"items": ITEMS})


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
