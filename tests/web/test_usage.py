"""The usage of a model's answer in the header of a reply."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.usage import read_usage
from retinue.web.codec.trace import parse_usage, render_usage

NUMBERS = st.integers(0, 10**9) | st.floats(0, 10**6, allow_nan=False)
USAGES = st.fixed_dictionaries(
    {"input_tokens": NUMBERS, "output_tokens": NUMBERS},
    optional={"cost_usd": NUMBERS, "model": st.text(max_size=256), "estimated": st.just(True)},
)


@given(USAGES)
def test_a_usage_is_read_back_as_it_was_written(usage: dict[str, object]) -> None:
    header = render_usage(usage)
    assert header.isascii()
    assert parse_usage(header) == usage


@pytest.mark.parametrize(
    "header", [None, "", "{", "[]", "7", "null", "{}", '{"unknown": 1}', "NaN", "[" * 50_000]
)
def test_what_is_no_usage_is_none(header: str | None) -> None:
    assert parse_usage(header) is None


def test_only_known_facts_of_the_right_shape_are_taken() -> None:
    found = read_usage(
        {"input_tokens": True, "output_tokens": -1, "cost_usd": float("inf"), "model": "m" * 999, "x": 1}
    )
    assert found == {"model": "m" * 256}
    assert read_usage({"input_tokens": 5, "estimated": 1}) == {"input_tokens": 5}


@given(st.text())
def test_any_header_is_read_or_none(header: str) -> None:
    found = parse_usage(header)
    assert found is None or json.dumps(dict(found))
