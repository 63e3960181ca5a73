"""What a chain may still spend: exact arithmetic of tokens and money."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.allowance import Allowance, Amount, narrow, to_dollars, to_microdollars

amounts = st.builds(Amount, st.integers(0, 10**9), st.integers(0, 10**9))


@given(st.integers(0, 10**12))
def test_money_comes_back_from_a_float_as_it_was(microdollars: int) -> None:
    assert to_microdollars(to_dollars(microdollars)) == microdollars
    assert Allowance.of(dollars=to_dollars(microdollars)) == Allowance(None, microdollars)


@pytest.mark.parametrize(
    ("dollars", "microdollars"), [(0.29, 290_000), (0.000_000_1, 1), (1e-12, 0), (0.1 + 0.2, 300_000)]
)
def test_a_cost_is_rounded_up_but_not_for_an_inexact_digit(dollars: float, microdollars: int) -> None:
    assert to_microdollars(dollars) == microdollars


def test_a_limit_is_rounded_down_and_bounded() -> None:
    assert Allowance.of(dollars=0.000_000_9) == Allowance(None, 0)
    assert Allowance.of(-5, float("inf")) == Allowance(0, 10**12)
    assert Allowance.of() is None


@given(amounts, amounts, st.integers(1, 50))
def test_what_is_taken_away_is_missing_and_parts_are_never_more_than_the_whole(
    limit: Amount, spent: Amount, parts: int
) -> None:
    allowance = Allowance(*limit)
    left = allowance.minus(spent)
    assert left == Allowance(limit.tokens - spent.tokens, limit.microdollars - spent.microdollars)
    assert allowance.covers(spent) == (min(left.tokens or 0, left.microdollars or 0) >= 0)
    part = allowance.portion(1, parts)
    assert allowance.covers(Amount(parts * part.amount.tokens, parts * part.amount.microdollars))


def test_a_limit_of_one_kind_says_nothing_of_the_other() -> None:
    tokens = Allowance(100, None)
    assert tokens.covers(Amount(100, 10**12))
    assert tokens.minus(Amount(40, 7)) == Allowance(60, None)
    assert narrow(tokens, Allowance(None, 5)) == Allowance(100, 5)
    assert narrow(None, None) is None
    assert narrow(None, tokens) == narrow(tokens, None) == tokens
