"""The findings of outsiders: each has a row in the reports, whose tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import REPORTS, ROOT

FINDINGS = [
    f"{letter}{number}"
    for letter, last in (("A", 16), ("B", 20), ("C", 12), ("D", 19), ("H", 4), ("M", 6), ("L", 9))
    for number in range(1, last + 1)
]
"""What new users (A, B, C), breaking machines (D) and attackers (H, M, L) found at the first commit tried."""

ROWS = [
    line.strip("| ").split(" | ")
    for report in REPORTS
    for line in report.read_text("utf-8").splitlines()
    if line.startswith("| ")
]
TEST = re.compile(r"`?(?:tests/)?(?P<file>(?:[a-z0-9_-]+/)*test_[a-z0-9_]+\.py)(?:::(?P<name>test_\w+))?")


@pytest.mark.parametrize("finding", FINDINGS)
def test_a_finding_has_a_row_with_what_was_and_what_is(finding: str) -> None:
    rows = [row for row in ROWS if re.search(rf"\b{finding}\b", row[0])]
    assert rows, f"no row of a report names {finding}"
    assert all(len(row) == 4 and row[3] for row in rows), rows


@pytest.mark.parametrize("finding", FINDINGS)
def test_a_row_of_a_finding_names_a_test_that_exists(finding: str) -> None:
    named = [found for row in ROWS if re.search(rf"\b{finding}\b", row[0]) for found in TEST.finditer(row[1])]
    missing = [
        found.group()
        for found in named
        if (file := find_file(found["file"])) is None
        or (found["name"] and f"def {found['name']}(" not in file.read_text())
    ]
    assert missing == []


def find_file(path: str) -> Path | None:
    folders = (ROOT / "tests", ROOT, *(ROOT / "packages").glob("*/tests"))
    return next((folder / path for folder in folders if (folder / path).is_file()), None)


def test_no_page_ends_programs_by_their_name() -> None:
    """That ends those of other states and checkouts, too."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [page.name for page in pages if re.search(r"\b(?:pkill|killall)\b", page.read_text())]
    assert found == []
    guide = ROOT / "docs" / "guides" / "running-a-mesh.md"
    assert "$ kill -9 $(retinue status --pid)" in guide.read_text("utf-8")
