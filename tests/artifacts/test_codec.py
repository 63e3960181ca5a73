"""Byte ranges and headers of artifacts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.artifacts.codec import (
    ByteRange,
    foreign_headers,
    is_matching,
    is_satisfiable,
    parse_range,
    parse_size,
)

DIGEST = f"sha256:{'ab' * 32}"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("bytes=0-3", (0, 4)),
        ("bytes=4-", (4, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=8-100", (8, 10)),
        ("bytes=3-3", (3, 4)),
    ],
)
def test_a_range_is_read_as_rfc_9110_says(text: str, part: tuple[int, int]) -> None:
    assert parse_range(text, 10) == ByteRange(*part)
    assert is_satisfiable(ByteRange(*part), 10)


@pytest.mark.parametrize(
    "text", [None, "", "bytes=", "bytes=-", "bytes=3-2", "bytes=0-1,3-4", "lines=0-1", "bytes=a-"]
)
def test_another_range_asks_for_everything(text: str | None) -> None:
    assert parse_range(text, 10) is None


@pytest.mark.parametrize(
    ("text", "size"), [("bytes=10-", 10), ("bytes=99-100", 10), ("bytes=-0", 10), ("bytes=0-", 0)]
)
def test_a_range_beyond_the_end_has_no_byte(text: str, size: int) -> None:
    part = parse_range(text, size)
    assert part is not None
    assert not is_satisfiable(part, size)


@given(st.text(max_size=40), st.integers(0, 1000))
def test_any_text_gives_a_range_within_the_content_or_none(text: str, size: int) -> None:
    part = parse_range(f"bytes={text}", size)
    assert part is None or part.end <= size


@given(st.none() | st.text(max_size=100))
def test_a_hostile_name_stays_within_its_header(name: str | None) -> None:
    headers = foreign_headers(DIGEST, None if name is None else name.encode("utf-8", "replace").decode())
    disposition = headers["content-disposition"]
    assert disposition.startswith("attachment; filename=")
    assert disposition.isascii()
    assert disposition.isprintable()
    assert disposition.count('"') == 2
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]


def test_conditions_compare_the_digest() -> None:
    assert is_matching(f'W/"{DIGEST}"', DIGEST)
    assert is_matching(f'"x", "{DIGEST}"', DIGEST)
    assert not is_matching('"x"', DIGEST)
    assert not is_matching(None, DIGEST)


def test_the_size_is_that_of_the_whole_content() -> None:
    assert parse_size({"content-range": "bytes 0-1/7", "content-length": "2"}) == 7
    assert parse_size({"content-length": "2"}) == 2
    assert parse_size({"content-range": "bytes 0-1/*"}) is None
    assert parse_size({}) is None
