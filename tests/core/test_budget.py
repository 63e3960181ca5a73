"""The budget of one call, as a program writes it."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.allowance import Allowance
from retinue.core.budget import CallLimits, read_budget
from retinue.core.errors import InvalidParametersError


@pytest.mark.parametrize(
    ("budget", "calls", "allowance"),
    [
        (None, None, None),
        (7, 7, None),
        ({}, None, None),
        ({"calls": 3}, 3, None),
        ({"tokens": 9_000}, None, Allowance(9_000, None)),
        ({"calls": 0, "tokens": 5, "dollars": 0.25}, 0, Allowance(5, 250_000)),
    ],
)
def test_a_budget_is_a_number_of_calls_or_limits_by_name(
    budget: CallLimits | None, calls: int | None, allowance: Allowance | None
) -> None:
    assert read_budget(budget) == (calls, allowance)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (-1, "budget is -1, and not a number of calls"),
        (True, "budget is True, and not a number of calls"),
        ("many", "budget is 'many', and not a number of calls"),
        ({"tokens": -5}, "budget.tokens is -5, and not a number of 0 or more"),
        ({"tokens": 1.5}, "budget.tokens is 1.5, and not a number of 0 or more"),
        ({"dollars": float("nan")}, "budget.dollars is nan, and not a number of 0 or more"),
        ({"token": 5}, "budget has 'token', and knows only calls, tokens, dollars"),
    ],
)
def test_another_budget_is_refused_with_its_field(budget: Any, said: str) -> None:
    with pytest.raises(InvalidParametersError) as caught:
        read_budget(budget)
    assert said in caught.value.message
