"""Counting: what is one answer, who leads, and that neither order nor names matter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.text import fence
from retinue.workflows.interpreter.voting import (
    MAX_CHARACTERS,
    Ballot,
    concatenate,
    count_votes,
    normalise,
    order_candidates,
    read_choice,
    write_choice_prompt,
    write_merge_prompt,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Paris", " paris.\n"),
        ("42", 42),
        (42, 42.0),
        ("42.50", 42.5),
        ({"answer": "Yes!"}, "yes"),
        ({"text": {"output": "x"}}, "X"),
        ("```python\nx = 1\n```", "x = 1"),
        ("“quoted”", "quoted"),
        ({"a": 1, "b": "X "}, {"b": "x", "a": 1.0}),
        (["A", 2], ["a", "2"]),
        (True, {"result": True}),
    ],
)
def test_what_says_the_same_is_one_answer(left: Any, right: Any) -> None:
    assert normalise(left) == normalise(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Paris", "Rome"),
        (1, True),
        (1, 2),
        ({"a": 1}, {"b": 1}),
        ({"code": "x"}, "x"),
        ("", None),
        ("1.2.3", "1.2"),
    ],
)
def test_what_says_something_else_is_another_answer(left: Any, right: Any) -> None:
    assert normalise(left) != normalise(right)


@given(JSON)
def test_normalising_never_fails_and_twice_is_once(value: Any) -> None:
    once = normalise(value)
    assert normalise(value) == once
    assert isinstance(once, str)


BALLOTS = st.lists(
    st.tuples(st.sampled_from(["x", "X.", "y", "z", 3, "3"]), st.sampled_from([None, 0.5, 0.9])),
    min_size=1,
    max_size=7,
)


@given(BALLOTS, st.randoms())
def test_the_tally_is_the_same_in_whatever_order_the_ballots_come(pairs: Any, random: Any) -> None:
    ballots = [Ballot(f"v{n}", output, score=score) for n, (output, score) in enumerate(pairs)]
    shuffled = list(ballots)
    random.shuffle(shuffled)
    assert count_votes(ballots) == count_votes(shuffled)
    assert sum(count_votes(ballots).counts.values()) == len(ballots)


def test_failed_ballots_do_not_count() -> None:
    tally = count_votes([Ballot("a", error={"type": "x"}), Ballot("b", "yes")])
    assert (tally.counts, tally.lead) == ({"yes": 1}, 1)
    assert count_votes([]).leaders == ()
    assert count_votes([]).lead == 0


def test_the_best_of_equal_answers_speaks_for_them() -> None:
    tally = count_votes([Ballot("a", "x", score=0.1), Ballot("b", "X", score=0.9), Ballot("c", "y")])
    assert tally.leaders[0][0].voter == "b"


TWO = order_candidates([Ballot("first", "zinc"), Ballot("second", "gold")])


@pytest.mark.parametrize(
    ("answer", "voter"),
    [
        ("A", "second"),
        (" b. ", "first"),
        ("**B**", "first"),
        ({"answer": "A"}, "second"),
        ("The best is B, because it is right.", "first"),
        ("I choose result A", "second"),
        ("Candidate: B", "first"),
        ("B is better", "first"),
        ("A or B, both", None),
        ("Result A and result B", None),
        ("C", None),
        ("", None),
        (None, None),
    ],
)
def test_a_reviewers_answer_names_one_result_or_none(answer: Any, voter: str | None) -> None:
    chosen = read_choice(answer, TWO)
    assert (None if chosen is None else chosen.voter) == voter


def test_a_reviewer_sees_the_task_and_the_results_and_no_author() -> None:
    for prompt in (write_choice_prompt("the task", TWO), write_merge_prompt("the task", TWO)):
        assert "the task" in prompt
        assert prompt.index(fence("result A", "gold")) < prompt.index(fence("result B", "zinc"))
        assert "first" not in prompt
        assert "second" not in prompt


def test_long_results_are_cut_to_an_equal_share() -> None:
    prompt = write_choice_prompt("", [Ballot("a", "x" * MAX_CHARACTERS), Ballot("b", "y" * MAX_CHARACTERS)])
    assert len(prompt) < MAX_CHARACTERS + 2_000
    assert prompt.count("[cut: 60,000 characters]") == 2


def test_a_concatenation_has_the_authors_as_headings() -> None:
    assert concatenate([Ballot("a", "x"), Ballot("b", {"k": [1]})]).startswith("## a\n\nx\n\n## b\n\n{")
