"""The security page claims only what a test tries to refute: each part of it names such a test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "security.md"
_COMMENT = re.compile(r"<!-- (?:tests:\s*(?P<tests>[^>]*?)|no claim)\s*-->", re.DOTALL)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
MAX_WITHOUT_CLAIM = 2


def list_blocks() -> list[str]:
    """Paragraphs, points and tables, each with its comments."""
    text = _FENCE.sub("", PAGE.read_text("utf-8"))
    blocks = [block.strip() for block in re.split(r"\n\s*\n|\n(?=- )", text)]
    return [block for block in blocks if block and not block.startswith("#")]


def name_of(block: str) -> str:
    return re.sub(r"\W+", "-", block[:50]).strip("-")


BLOCKS = list_blocks()


def list_tests(block: str) -> list[str]:
    found = [match["tests"] for match in _COMMENT.finditer(block) if match["tests"]]
    return [name.strip() for tests in found for name in tests.split(",")]


@cache
def list_functions(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


@pytest.mark.parametrize("block", BLOCKS, ids=name_of)
def test_every_block_names_tests_that_exist(block: str) -> None:
    assert _COMMENT.search(block), f"name the tests of: {block[:100]}"
    for test in list_tests(block):
        path, _, function = test.partition("::")
        assert (ROOT / path).is_file(), test
        assert function in list_functions(ROOT / path), test


def test_hardly_any_block_is_without_a_claim() -> None:
    assert sum(not list_tests(block) for block in BLOCKS) <= MAX_WITHOUT_CLAIM
    assert len(BLOCKS) > 20
