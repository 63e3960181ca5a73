"""The findings K, P, S and N of the second look: each has a row in its report, whose tests exist."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.docs.pages import ROOT

FINDINGS = [
    f"{letter}{number}"
    for letter, last in (("K", 17), ("P", 4), ("S", 15), ("N", 13))
    for number in range(1, last + 1)
]
"""What was found about kept promises (K), Postgres and probes (P), security (S), logins and peers (N)."""

ROWS = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "reports" / "second-look.md").read_text("utf-8").splitlines()
    if line.startswith("| ")
]
FILE = re.compile(r"\b(?:packages|tests|deploy)/[\w./-]+\w")
NAME = re.compile(r"\btest_\w+(?!\w|\.py)")


@pytest.mark.parametrize("finding", FINDINGS)
def test_a_finding_has_one_row_with_tests_that_exist(finding: str) -> None:
    (row,) = [row for row in ROWS if row[0] == finding]
    assert len(row) == 4, row
    files = [ROOT / name for name in FILE.findall(row[3])]
    names = NAME.findall(FILE.sub("", row[3]))
    assert files or names, f"{finding} names no test"
    assert [file for file in files if not file.exists()] == []
    assert [name for name in names if name not in list_names()] == []


@cache
def list_names() -> frozenset[str]:
    """The names of all tests."""
    folders = (ROOT / "tests", *(ROOT / "packages").glob("*/tests"))
    texts = (path.read_text("utf-8") for folder in folders for path in folder.rglob("*.py"))
    return frozenset(name for text in texts for name in re.findall(r"def (test_\w+)\(", text))
