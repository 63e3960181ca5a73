"""Versions as people write them, and ranges over them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import InvalidSettingError
from retinue.mesh.directory.versions import (
    MAX_RANGE_LENGTH,
    is_version_named,
    parse_version_range,
    version_key,
)
from tests.requirements import requirement


@requirement("P-17")
def test_versions_sort_leniently() -> None:
    others = [None, "latest", "nightly"]
    pre_releases = ["1.0.0-alpha", "1.0.0-alpha.2", "1.0.0-alpha.10", "1.0.0-rc.1"]
    rising = [*others, "v0.9", *pre_releases, "v1", "1.0.1", "1.2", "v1.10.0", "2"]
    mixed = rising[1::2] + rising[::2]
    assert sorted(mixed, key=version_key) == rising


@pytest.mark.parametrize(("one", "other"), [("1", "v1.0.0"), ("1.2", "1.2.0"), ("1.0.0+build.7", "1.0.0")])
def test_spellings_of_one_version_are_equal(one: str, other: str) -> None:
    assert version_key(one) == version_key(other)


@given(
    st.lists(st.none() | st.text(max_size=12) | st.from_regex(r"v?\d{1,3}(\.\d{1,3}){0,2}(-[a-z0-9.]{1,5})?"))
)
def test_any_texts_can_be_sorted(texts: list[str | None]) -> None:
    ordered = sorted(texts, key=version_key)
    assert [version_key(t) for t in ordered] == sorted(version_key(t) for t in texts)


@pytest.mark.parametrize(
    ("wanted", "fitting", "unfit"),
    [
        (">=1.2,<2", ["1.2", "v1.9.9", "1.2.0"], ["1.1.9", "2.0.0", "2.0.0-rc.1", "latest", None]),
        (">=1.2 <2", ["1.5"], ["2"]),
        (">= 1.2 , < 2", ["1.5"], ["2"]),
        ("1.2", ["1.2.0", "1.2.7"], ["1.3.0", "1.1.0"]),
        ("1.2.3", ["v1.2.3"], ["1.2.4"]),
        ("==1", ["1.0.0", "1.9.0"], ["2.0.0"]),
        ("1.x", ["1.0.0", "1.9.0"], ["2.0.0"]),
        ("*", ["0.1", "7"], ["latest", None, "1.0.0-rc.1"]),
        ("!=1.2.3", ["1.2.4"], ["1.2.3"]),
        ("^1.2", ["1.2.0", "1.9.0"], ["2.0.0", "1.1.0"]),
        ("^0.2.1", ["0.2.1", "0.2.9"], ["0.3.0"]),
        ("~1.2.3", ["1.2.3", "1.2.9"], ["1.3.0", "1.2.2"]),
        ("~1", ["1.0.0", "1.8.0"], ["2.0.0"]),
        (">1.2", ["1.2.1"], ["1.2.0"]),
        (">=1.0.0-rc.1", ["1.0.0-rc.2", "1.0.0", "1.1.0"], ["1.0.0-beta", "1.1.0-rc.1"]),
    ],
)  # fmt: skip
@requirement("P-17")
def test_a_range_takes_what_lies_in_it(wanted: str, fitting: list[str], unfit: list[str | None]) -> None:
    version_range = parse_version_range(wanted)
    assert [v for v in fitting if not version_range.fits(v)] == []
    assert [v for v in unfit if version_range.fits(v)] == []


@pytest.mark.parametrize("text", ["", " ", "abc", ">=", "1.2 or 2", ">=1.2;<2", "latest", "1.2.3.4", "=>1"])
def test_text_that_is_no_range_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSettingError) as refused:
        parse_version_range(text)
    assert ">=1.2,<2" in refused.value.remedy


@given(st.text(alphabet="0123456789.<>=^~!*xv ,-a", max_size=20))
def test_any_text_is_a_range_or_refused(text: str) -> None:
    try:
        version_range = parse_version_range(text)
    except InvalidSettingError:
        return
    assert version_range.fits("1.2.3") in (True, False)


def test_a_long_range_is_refused_and_names_no_version() -> None:
    longest = ">=1" + ",<2" * ((MAX_RANGE_LENGTH - 3) // 3)
    assert parse_version_range(longest).fits("1.5.0")
    with pytest.raises(InvalidSettingError, match="are too long for a range of versions, at most 200"):
        parse_version_range(">=1" + ",<2" * 100_000)
    assert not is_version_named("1.0.0", "1." + "0" * 100_000)
