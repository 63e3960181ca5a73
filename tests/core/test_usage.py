"""Sums of usages: what calls spent, and which part of it their further calls did."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from retinue.core.allowance import Allowance, Amount
from retinue.core.usage import (
    add_usage,
    amount_of,
    as_further,
    cap_usage,
    own_part,
    read_usage,
    reserve_unknown,
    sum_usages,
)

counts = st.integers(0, 10**6)
costs = st.integers(0, 10**6).map(lambda microdollars: microdollars / 10**6)
usages = st.fixed_dictionaries(
    {"input_tokens": counts, "output_tokens": counts},
    optional={
        "cost_usd": costs,
        "model": st.sampled_from("abc"),
        "reserved_tokens": counts,
        "reserved_usd": costs,
    },
)


@given(st.lists(usages, max_size=8))
def test_a_sum_counts_what_its_parts_count(parts: list[dict[str, Any]]) -> None:
    total = Amount()
    for part in parts:
        total = total.plus(amount_of(part))
    assert amount_of(sum_usages(parts)) == total
    assert amount_of(sum_usages(map(as_further, parts))) == total


@given(usages, st.lists(usages, max_size=5))
def test_the_own_part_is_what_further_calls_did_not_spend(
    own: dict[str, Any], below: list[dict[str, Any]]
) -> None:
    total = sum_usages([own, *map(as_further, below)])
    assert total is not None
    part = own_part(total)
    for key in ("input_tokens", "output_tokens", "cost_usd"):
        assert round(part.get(key, 0) * 10**6) == round(own.get(key, 0) * 10**6)


def test_further_calls_of_further_calls_are_counted_once() -> None:
    below = sum_usages([{"input_tokens": 5}, as_further({"input_tokens": 7})])
    assert below is not None
    total = sum_usages([{"input_tokens": 1}, as_further(below)])
    assert total == {"input_tokens": 13, "further": {"input_tokens": 12}}


def test_one_model_is_named_as_such_and_several_in_a_list() -> None:
    one, other = {"model": "a", "input_tokens": 1}, {"model": "b", "output_tokens": 2, "estimated": True}
    assert add_usage(one, one) == {"model": "a", "input_tokens": 2}
    both = add_usage(one, other)
    assert both == {"models": ["a", "b"], "input_tokens": 1, "output_tokens": 2, "estimated": True}
    assert add_usage(both, one) == {**both, "input_tokens": 2}


@given(usages)
def test_a_sum_is_read_as_it_was_written(usage: dict[str, Any]) -> None:
    total = add_usage(as_further(usage), usage)
    assert read_usage(total) == total


def test_junk_of_somebody_else_is_no_number() -> None:
    junk = {"input_tokens": "7", "output_tokens": -1, "cost_usd": float("nan"), "further": [], "models": "ab"}
    assert read_usage(junk) is None
    assert add_usage(junk, {"input_tokens": 3}) == {"input_tokens": 3}
    assert amount_of(junk) == Amount()


def test_without_an_answer_the_share_counts_as_spent() -> None:
    assert reserve_unknown(None, Allowance(100, None)) == {"reserved_tokens": 100}
    assert reserve_unknown(None, Allowance(100, 50)) == {"reserved_tokens": 100, "reserved_usd": 0.00005}


def test_tokens_without_a_cost_leave_the_money_of_the_share_unknown() -> None:
    unpriced = {"input_tokens": 10}
    assert reserve_unknown(unpriced, Allowance(100, None)) is None
    assert reserve_unknown(unpriced, Allowance(None, 50)) == {"reserved_usd": 0.00005}
    assert reserve_unknown({"reserved_tokens": 9}, Allowance(10, 50)) is None
    assert reserve_unknown({}, Allowance(None, 50)) is None


@given(usages, st.builds(Allowance, st.none() | counts, st.none() | counts))
def test_a_stranger_reports_at_most_its_share(usage: dict[str, Any], share: Allowance) -> None:
    capped = cap_usage(usage, share)
    assert share.covers(amount_of(capped))
    if share.covers(amount_of(usage)):
        assert capped == usage
