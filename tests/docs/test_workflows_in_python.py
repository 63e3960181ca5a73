"""The workflow on the page about workflows in Python passes its test there, and is hosted from a file."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from retinue.flows.modules import load_workflows
from tests.docs.pages import ROOT, list_sections
from tests.docs.test_docs import SYBIL

PAGE = ROOT / "docs" / "guides" / "workflows-in-python.md"


async def test_the_tests_of_the_page_pass() -> None:
    document = SYBIL.parse(PAGE)
    for example in document.examples():
        example.evaluate()
    for name in ("test_reviews_are_published_after_an_approval", "test_new_runs_collect_first"):
        function = document.namespace[name]
        assert inspect.iscoroutinefunction(function)
        await function()


def test_the_first_block_of_the_page_is_a_file_that_a_hub_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *_) = [block for section in list_sections(PAGE) for block in section.blocks("python")]
    (tmp_path / "flows_of_the_page.py").write_text(first)
    monkeypatch.chdir(tmp_path)
    (hosted,) = load_workflows("flows_of_the_page.py")
    assert hosted.name == "nightly"
    assert hosted.definition.schedule is not None
