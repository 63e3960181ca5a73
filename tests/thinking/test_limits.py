"""What a loop has spent, which limit ends it, and how calls that repeat are counted."""

from __future__ import annotations

import pytest

from retinue.thinking.limits import Limits, Reserve, Spent, batch_time_s, estimate_tokens
from retinue.thinking.repeats import ENDS_AT, TOLD_AT, Repeats, call_key

RESERVE = Reserve(1_000)


@pytest.mark.parametrize(
    ("spent", "limit"),
    [
        (Spent(), None),
        (Spent(turns=19), None),
        (Spent(turns=20), "turns"),
        (Spent(calls=60), None),
        (Spent(tokens=196_700), None),
        (Spent(tokens=196_800), "tokens"),
        (Spent(time_s=599.0), None),
        (Spent(time_s=600.0), "time"),
        (Spent(dollars=100.0), None),
    ],
)
def test_a_limit_ends_a_loop_before_the_request_that_would_exceed_it(spent: Spent, limit: str | None) -> None:
    assert spent.find_limit(Limits(), RESERVE) == limit


def test_money_ends_a_loop_only_where_it_is_limited() -> None:
    assert Spent(dollars=0.5).find_limit(Limits(dollars=0.5), RESERVE) == "dollars"
    assert Spent(dollars=0.4).find_limit(Limits(dollars=0.5), RESERVE) is None


def test_a_request_counts_what_it_used_and_its_reservation_for_each_time_without_an_answer() -> None:
    usage = {"input_tokens": 900, "output_tokens": 20, "cost_usd": 0.01}
    spent = Spent().with_request(usage, RESERVE)
    assert (spent.turns, spent.tokens, spent.dollars) == (1, 920, 0.01)
    assert Spent().with_request(usage, RESERVE, unknown=1).tokens == 920 + RESERVE.tokens
    assert Spent().with_request(None, RESERVE, unknown=2).tokens == 2 * RESERVE.tokens
    assert Spent().with_request(None, RESERVE).tokens == 0


def test_an_image_counts_the_same_whatever_its_size() -> None:
    small = estimate_tokens({"data": "A" * 100, "mime_type": "image/png"})
    large = estimate_tokens({"data": "A" * 1_000_000, "mime_type": "image/png"})
    assert small == large > 1_000


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
