"""The agent on the page about agents in Markdown is one, and its test passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.runtime.loading.targets import load_target
from tests.docs.pages import ROOT, list_sections
from tests.docs.test_docs import SYBIL

PAGE = ROOT / "docs" / "guides" / "agents-in-markdown.md"


async def test_the_test_of_the_page_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = [block for section in list_sections(PAGE) for block in section.blocks("markdown")]
    (tmp_path / "researcher.md").write_text(text)
    monkeypatch.chdir(tmp_path)
    document = SYBIL.parse(PAGE)
    for example in document.examples():
        example.evaluate()
    await document.namespace["test_the_researcher_counts_with_a_tool"]()
    target = load_target("researcher.md")
    assert target.has_runs
    (skill,) = target.agent.skills
    assert (skill.id, skill.visibility, skill.timeout_s) == ("researcher", "exposed", 420.0)
