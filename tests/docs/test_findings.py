"""What outsiders found, and pages must not say again."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_page_ends_programs_by_their_name() -> None:
    """That ends those of other states and checkouts, too."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [
        page.name
        for page in pages
        if page.name != "verified.md" and re.search(r"\b(?:pkill|killall)\b", page.read_text())
    ]
    assert found == []
    assert "$ kill -9 $(retinue status --pid)" in (ROOT / "README.md").read_text()
