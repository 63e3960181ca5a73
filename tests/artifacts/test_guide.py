"""The program of the guide to files does what the page says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_docs import SYBIL
from tests.system import System

PAGE = ROOT / "docs" / "guides" / "files-and-artifacts.md"


@pytest.fixture
def names() -> dict[str, Any]:
    """What the examples of the guide define, each of which runs."""
    document = SYBIL.parse(PAGE)
    for example in document.examples():
        # those with asyncio.run do so in a loop of their own (test_docs)
        if "asyncio.run" not in example.parsed:
            example.evaluate()
    return dict(document.namespace)


async def test_a_program_saves_and_reads_files(
    system: System,
    names: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await system.start_agent(names["agent"])
    await system.start_hub()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("one\ntwo\nthree\n")
    await names["use_files"]()
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("level=")]
    assert lines == ["3", "# tea", ""]
    assert (tmp_path / "reports" / "report.md").read_text() == "# tea\n"
    await asyncio.to_thread(names["use_files_without_a_loop"])
    assert "2" in capsys.readouterr().out.splitlines()
