"""The tests on the page about testing pass, and so do the examples of the package's docstrings."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, list_sections
from tests.docs.test_docs import SYBIL

PAGE = ROOT / "docs" / "guides" / "testing.md"
TESTS = re.findall(r"^async def (test_\w+)\(\)", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", TESTS)
async def test_a_test_of_the_page_passes(name: str) -> None:
    document = SYBIL.parse(PAGE)
    for example in document.examples():
        example.evaluate()
    function = document.namespace[name]
    assert inspect.iscoroutinefunction(function)
    await function()


def test_the_page_is_a_file_of_tests_that_pytest_passes(tmp_path: Path) -> None:
    """With the fixtures that the page names, as an author would run it."""
    code = "\n\n".join(block for section in list_sections(PAGE) for block in section.blocks("python"))
    (tmp_path / "test_page.py").write_text(code)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["retinue.testing.fixtures"]\n')
    options = ("-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "--rootdir", str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    count = len(re.findall(r"^async def test_", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert f"{count} passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "module",
    [
        "retinue.testing.memory_caller",
        "retinue.testing.memory_mesh",
        "retinue.testing.memory_runs",
        "retinue.testing.scripted_caller",
        "retinue.testing.scripted_peer",
        "retinue.testing.workflow_run",
    ],
)
def test_the_examples_of_a_docstring_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
