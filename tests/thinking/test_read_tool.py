"""The tool read_result: what its arguments mean, and where a piece of a text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.thinking.read_tool import KnownLinks, Reading, cut_piece, parse_reading

FIRST, SECOND = "ab" * 32, "ac" * 32


@pytest.fixture
def links() -> KnownLinks:
    known = KnownLinks()
    known.note(f'a text with artifact:sha256:{FIRST} and {{"artifact":"sha256:{SECOND}"}}')
    return known


@pytest.mark.parametrize("link", [f"artifact:sha256:{FIRST}", f"sha256:{FIRST}", FIRST, FIRST[:8]])
def test_a_link_may_be_shortened(links: KnownLinks, link: str) -> None:
    assert parse_reading({"link": link}, links, 20_000) == Reading(f"sha256:{FIRST}")


@pytest.mark.parametrize("link", ["", "abab", "ffffffff", f"sha256:{'f' * 64}", "/etc/passwd", f"{FIRST}0"])
def test_a_link_that_did_not_come_up_is_refused(links: KnownLinks, link: str) -> None:
    problem = parse_reading({"link": link}, links, 20_000)
    assert isinstance(problem, str)
    assert f"Known are artifact:sha256:{FIRST}, artifact:sha256:{SECOND}" in problem


def test_a_part_is_bytes_or_lines_and_never_more_than_the_limit(links: KnownLinks) -> None:
    digest = f"sha256:{FIRST}"
    assert parse_reading({"link": FIRST, "offset": 9, "length": 10**9}, links, 500) == Reading(digest, 9, 500)
    assert parse_reading({"link": FIRST, "lines": "3-8"}, links, 500) == Reading(digest, 0, 500, 3, 8)
    assert parse_reading({"link": FIRST, "lines": "3"}, links, 500) == Reading(digest, 0, 500, 3, 3)


@pytest.mark.parametrize("lines", ["0", "8-3", "a", "", "-3"])
def test_other_lines_are_told(links: KnownLinks, lines: str) -> None:
    problem = parse_reading({"link": FIRST, "lines": lines}, links, 500)
    assert isinstance(problem, str)
    assert "write them as in 120-180" in problem


@given(st.text(), st.integers(16, 40))
def test_pieces_of_a_text_make_the_whole_text(text: str, length: int) -> None:
    whole = text.encode()
    read, offset = "", 0
    while offset < len(whole):
        piece, _, offset = cut_piece(whole[offset : offset + length], offset, len(whole))
        read += piece
    assert read == text


def test_bytes_that_are_no_text_are_told() -> None:
    with pytest.raises(UnicodeDecodeError):
        cut_piece(b"\x89PNG\xff\xff", 0, 6)
