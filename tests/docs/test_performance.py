"""docs/performance.md names every file behind the walls of speed, with its size."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

SOURCE = ROOT / "src" / "retinue"
WALLS = ("web/fast", "mcp/server/fast")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "performance.md").read_text("utf-8").splitlines()
    if line.startswith("| `")
]


def list_files(row: list[str]) -> list[str]:
    return re.findall(r"`([\w/]+\.py)`", row[0])


def test_every_file_behind_a_wall_has_a_row() -> None:
    behind = {
        str(file.relative_to(SOURCE))
        for wall in WALLS
        for file in (SOURCE / wall).glob("*.py")
        if file.name != "__init__.py"
    }
    assert behind <= {file for row in ROWS for file in list_files(row)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: list_files(row)[0])
def test_a_row_has_the_lines_of_its_files_and_says_when_they_go(row: list[str]) -> None:
    _, lines, gain, end = row
    counted = sum(len((SOURCE / file).read_text("utf-8").splitlines()) for file in list_files(row))
    assert int(lines) == pytest.approx(counted, rel=0.1)
    assert gain
    assert end
