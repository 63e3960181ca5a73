"""The budget of one call: shared out among those in flight, given back, never spent twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import BudgetSpentError
from retinue.mesh.guard.budget import TraceBudget


@given(
    st.integers(0, 500),
    st.lists(st.tuples(st.sampled_from(["reserve", "settle", "lose", "take", "rest"]), st.integers(0, 99))),
)
def test_what_is_left_in_flight_and_used_is_always_what_was_given(
    calls: int, deeds: list[tuple[str, int]]
) -> None:
    budget = TraceBudget(calls)
    in_flight: list[int] = []
    spent = lost = 0
    for deed, number in deeds:
        if deed == "reserve" and budget.left:
            in_flight.append(budget.reserve(None if number == 99 else number % 9))
            spent += 1
        elif deed == "rest":
            in_flight.append(budget.reserve_rest(spare=number % 2 == 0))
        elif deed == "take":
            spent += budget.take()
        elif in_flight:
            share = in_flight.pop(number % len(in_flight))
            if deed == "settle":
                budget.settle(share, number)
                spent += min(number, share)
            else:
                lost += share
        assert budget.left >= 0
        assert budget.left + sum(in_flight) + spent + lost == calls
        assert budget.used == calls - budget.left


@pytest.mark.parametrize("branches", [1, 20, 100, 450])
def test_branches_in_flight_leave_room_for_each_other(branches: int) -> None:
    """Of L calls left the n-th in flight gets L / (n + 8)."""
    budget = TraceBudget(10_000)
    shares = [budget.reserve(4) for _ in range(branches)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1_111
    assert all(share > 0 for share in shares[:100])


def test_twenty_branches_with_twenty_branches_each_pass_all_at_once() -> None:
    budget = TraceBudget(9_999)
    for share in [budget.reserve(4) for _ in range(20)]:
        below = TraceBudget(share)
        for _ in range(20):
            below.reserve(3)


@pytest.mark.parametrize(("calls", "max_depth"), [(9_999, 5), (9_999, 20), (9_999, 64), (40, 5), (64, 64)])
def test_a_chain_may_go_on_to_its_greatest_depth(calls: int, max_depth: int) -> None:
    share = calls
    for depth in range(max_depth):
        share = TraceBudget(share).reserve(max_depth - depth - 1)


def test_a_call_that_may_not_call_on_gets_no_share() -> None:
    budget = TraceBudget(10)
    assert [budget.reserve(0) for _ in range(10)] == [0] * 10
    assert budget.left == 0


def test_calls_one_after_the_other_give_back_what_they_did_not_use() -> None:
    budget = TraceBudget(100)
    calls = 0
    while budget.left:
        share = budget.reserve()
        used = min(share, 1)
        budget.settle(share, used)
        calls += 1 + used
    with pytest.raises(BudgetSpentError):
        budget.reserve()
    assert calls == budget.used == 100


def test_a_call_whose_end_nobody_told_keeps_its_share_and_the_next_ones_get_less() -> None:
    budget = TraceBudget(10_000)
    shares = [budget.reserve(4) for _ in range(4)]
    assert shares == [1_111, 888, 727, 605]
    budget.settle(605, 0)
    assert budget.reserve(4) == 605


def test_nobody_gives_back_more_than_the_share_that_it_had() -> None:
    budget = TraceBudget(10)
    share = budget.reserve()
    budget.settle(share, 1_000)
    assert budget.used == 1 + share
    budget = TraceBudget(10)
    budget.settle(budget.reserve(), -5)
    assert budget.used == 1


def test_a_call_handed_on_takes_everything_with_it_and_a_spare_part_only_where_it_may_be_repeated() -> None:
    assert TraceBudget(80).reserve_rest() == 80
    budget = TraceBudget(80)
    assert budget.reserve_rest(spare=True) == 70
    assert budget.take()
    assert budget.reserve_rest(spare=True) == 8
