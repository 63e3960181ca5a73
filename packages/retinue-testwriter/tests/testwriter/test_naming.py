from __future__ import annotations

import pytest

from retinue_testwriter.inspection import find_path, list_names


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("textwrap", "textwrap"),
        ("  packaging.utils ", "packaging.utils"),
        ("write tests for the json module", "json"),
        ("plan tests for json", "json"),
        ("Please test `os.path`, thoroughly", "os.path"),
        ("property-based tests for packaging.version", "packaging.version"),
        ("the library named inflection", "inflection"),
    ],
)
def test_finds_the_module_that_a_text_names(text: str, first: str) -> None:
    assert list_names(text)[0] == first


@pytest.mark.parametrize(
    "text",
    ["Create a function that calculates Fibonacci numbers", "write tests for the module", "", "Test it all"],
)
def test_takes_no_prose_for_a_module(text: str) -> None:
    assert list_names(text) == []


def test_finds_a_path() -> None:
    assert find_path("write tests for /x/y.py, please") == "/x/y.py"
    assert find_path("textwrap") is None
