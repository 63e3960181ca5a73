"""What pages read from their address."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from retinue.dashboard.frame import read_number


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("from=7", 7),
        ("", 0),
        ("from=", 0),
        ("from=-1", 0),
        ("from=x", 0),
        ("from=²", 0),
        ("from=" + "9" * 5000, 0),
    ],
)
def test_a_number_of_an_address_is_read_or_is_none(query: str, number: int) -> None:
    scope = {"type": "http", "query_string": query.encode(), "headers": []}
    assert read_number(Request(scope), "from") == number
