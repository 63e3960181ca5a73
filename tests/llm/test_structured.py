"""Structured answers, read leniently."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.llm.structured import UnreadableAnswerError, read_code, read_object

PLAIN = {"plan": "do it", "steps": ["a", "b"]}
TEXT = json.dumps(PLAIN)


@pytest.mark.parametrize(
    "answer",
    [
        TEXT,
        f"```json\n{TEXT}\n```",
        f"Sure! Here is the plan:\n\n```\n{TEXT}\n```\nGood luck.",
        f"Here it is: {TEXT} — as you asked.",
        f"Use {{braces}} so: {TEXT}",
        "{'plan': 'do it', 'steps': ['a', 'b',],}",
        '{"plan": "do it", // the plan\n "steps": ["a", "b"]}',
        '{"plan": "do it", "steps": "a\\nb"}',
        '{"plan": ["do it"], "steps": ["a", "b"], "more": 1}',
        '{"thoughts": {"plan": 1}}\n' + TEXT,
    ],
)
def test_finds_the_object_whatever_stands_around_it(answer: str) -> None:
    assert read_object(answer, ("plan",), ("steps",)) == PLAIN


def test_a_line_break_inside_a_string_is_accepted() -> None:
    assert read_object('{"plan": "one\ntwo", "steps": []}', ("plan",), ("steps",))["plan"] == "one\ntwo"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("I would rather not.", "no JSON object"),
        ("", "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ('{"plan": "x"}', "no steps"),
        ('{"a": 1}', "no plan and no steps"),
        ("{" * 5_000, "no JSON object"),
        ('{"plan": "cut off', "no JSON object"),
    ],
)
def test_says_what_is_missing(answer: str, problem: str) -> None:
    with pytest.raises(UnreadableAnswerError, match=problem):
        read_object(answer, ("plan",), ("steps",))


@given(st.text(), st.text(), st.lists(st.text()))
def test_reads_back_what_was_written(around: str, plan: str, steps: list[str]) -> None:
    written = {"plan": plan, "steps": steps}
    assert read_object(json.dumps(written), ("plan",), ("steps",)) == written
    if not set(around) & set("{}`"):
        assert read_object(f"{around}\n{json.dumps(written)}", ("plan",), ("steps",)) == written


@given(st.text())
def test_any_text_is_read_or_refused(answer: str) -> None:
    with suppress(UnreadableAnswerError):
        assert set(read_object(answer, ("plan",), ("steps",))) == {"plan", "steps"}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("First:\n```\na\n```\nthen\n```py\nlong = 'code'\nmore()\n```", "long = 'code'\nmore()"),
        ("x = 1\n", "x = 1"),
        ('{"code": "x = 1"}', "x = 1"),
        ("{not json", "{not json"),
    ],
)
def test_code_is_taken_out_of_its_fence(answer: str, code: str) -> None:
    assert read_code(answer) == code
