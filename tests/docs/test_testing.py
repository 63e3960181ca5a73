"""The tests on the page about testing pass, and so do the examples of the package's docstrings."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_docs import SYBIL

PAGE = ROOT / "docs" / "guides" / "testing.md"
TESTS = re.findall(r"^async def (test_\w+)\(", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", TESTS)
async def test_a_test_of_the_page_passes(name: str) -> None:
    document = SYBIL.parse(PAGE)
    for example in document.examples():
        example.evaluate()
    function = document.namespace[name]
    assert inspect.iscoroutinefunction(function)
    await function()


@pytest.mark.parametrize(
    "module", ["retinue.testing", "retinue.testing.memory_caller", "retinue.testing.memory_runs"]
)
def test_the_examples_of_a_docstring_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
