"""What a loop has spent, which limit ends it, and how calls that repeat are counted."""

from __future__ import annotations

import pytest

from retinue.core.allowance import Allowance, Amount
from retinue.thinking.limits import Limits, Spent, batch_time_s
from retinue.thinking.repeats import ENDS_AT, TOLD_AT, Repeats, call_key

PROMPT = 1_000


def left_of(tokens: int | None, dollars: float | None = None) -> Allowance:
    return Allowance.of(tokens, dollars) or Allowance()


@pytest.mark.parametrize(
    ("spent", "left", "limit"),
    [
        (Spent(), 200_000, None),
        (Spent(turns=19), 200_000, None),
        (Spent(turns=20), 200_000, "turns"),
        (Spent(calls=60), 200_000, None),
        (Spent(), 2 * PROMPT + 1_024 + 256, None),
        (Spent(), 2 * PROMPT + 1_024 + 255, "tokens"),
        (Spent(), None, None),
        (Spent(time_s=599.0), 200_000, None),
        (Spent(time_s=600.0), 200_000, "time"),
    ],
)
def test_a_limit_ends_a_loop_before_the_request_that_would_exceed_it(
    spent: Spent, left: int | None, limit: str | None
) -> None:
    assert spent.find_limit(Limits(), left_of(left), PROMPT) == limit


def test_money_ends_a_loop_once_its_price_is_known() -> None:
    spent = Spent().with_request({"input_tokens": 900, "output_tokens": 100, "cost_usd": 0.01})
    assert Spent().find_limit(Limits(), left_of(None, 0.01), PROMPT) is None
    assert spent.find_limit(Limits(), left_of(None, 0.07), PROMPT) == "dollars"
    assert spent.find_limit(Limits(), left_of(None, 0.08), PROMPT) is None
    assert Spent().find_limit(Limits(), left_of(None, 0.0), PROMPT) == "dollars"


def test_a_request_asks_for_an_answer_that_leaves_room_for_the_last_one() -> None:
    answer, most = Spent().ask_for(left_of(5_000), PROMPT)
    assert answer == 5_000 - 2 * PROMPT - 1_024
    assert most.tokens == PROMPT + answer
    last, _ = Spent().ask_for(left_of(3_000), PROMPT, is_last=True)
    assert last == 2_000
    longest, _ = Spent().ask_for(left_of(None), PROMPT)
    assert longest == 8_192


def test_an_interrupted_request_counts_with_a_share_and_not_with_all_that_is_left() -> None:
    spent = Spent().with_request({"input_tokens": 900, "output_tokens": 100, "cost_usd": 0.01})
    _, most = spent.ask_for(left_of(200_000, 100.0), PROMPT)
    assert most.tokens == 9_192
    assert most.dollars == pytest.approx(0.37, abs=0.01)
    dearer = spent.with_higher_price().ask_for(left_of(200_000, 100.0), PROMPT)[1]
    assert dearer.dollars == pytest.approx(0.74, abs=0.02)


def test_what_is_spent_is_told_in_dollars() -> None:
    spent = Spent(turns=2).with_amount(Amount(500, 20_000)).with_calls(3).with_time(1.5)
    assert spent.to_json() == {"turns": 2, "calls": 3, "tokens": 500, "dollars": 0.02, "time_s": 1.5}


def test_calls_at_once_take_as_long_as_the_longest_or_as_their_places_allow() -> None:
    assert batch_time_s([], 8) == 0
    assert batch_time_s([1_000, 3_000], 8) == 3
    assert batch_time_s([1_000, 1_000, 1_000, None], 1) == 3


def test_the_order_of_arguments_makes_no_other_call() -> None:
    assert call_key("f", {"a": 1, "b": 2}) == call_key("f", {"b": 2, "a": 1})
    assert call_key("f", {"a": 1}) != call_key("g", {"a": 1})
    assert call_key("f", "a") != call_key("f", {})


def make_call(repeats: Repeats, name: str, result: str, *, changes: bool = False) -> int:
    key = call_key(name, {})
    count = repeats.note_call(key)
    repeats.note_result(key, result, changes=changes)
    return count


def test_equal_calls_with_equal_results_are_counted() -> None:
    repeats = Repeats()
    assert [make_call(repeats, "f", "same") for _ in range(5)] == [1, 2, TOLD_AT, 4, ENDS_AT]


def test_a_call_with_another_result_counts_from_the_start() -> None:
    repeats = Repeats()
    assert [make_call(repeats, "f", str(n)) for n in range(6)] == [1, 2, 2, 2, 2, 2]


def test_a_new_call_that_may_change_something_lets_others_count_from_the_start() -> None:
    repeats = Repeats()
    counts = []
    for n in range(4):
        counts.append(make_call(repeats, "read", "same"))
        make_call(repeats, f"write {n}", "written", changes=True)
    assert counts == [1, 1, 1, 1]


def test_two_calls_in_turn_that_change_nothing_new_are_counted() -> None:
    repeats = Repeats()
    counts = [make_call(repeats, name, "same", changes=True) for _ in range(5) for name in ("a", "b")]
    assert max(counts) >= ENDS_AT - 1
