"""The Markdown pages of the project, and what stands in their fences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
GUIDES = [README, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "guides").glob("*.md"))]
REPORTS = sorted((ROOT / "reports").glob("*.md"))
PAGES = [*GUIDES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *DECISIONS]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Section:
    """What stands below one ``##`` heading; the part above the first has the page's title."""

    title: str
    text: str

    def blocks(self, language: str) -> list[str]:
        """The fenced blocks of a language."""
        return [block for kind, block in _BLOCK.findall(self.text) if kind == language]

    def commands(self) -> list[list[str]]:
        """The commands of each console block, continued lines joined, comments left out."""
        return [
            [
                re.sub(r"\s*\\\n\s*", " ", found).partition("  #")[0].rstrip()
                for found in _COMMAND.findall(block)
            ]
            for block in self.blocks("console")
        ]


def list_sections(page: Path) -> list[Section]:
    """The sections of a page, in order."""
    parts = re.split(r"^#{1,2} (?=\w)", _hide_fences(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return [Section(*_show(part).split("\n", 1)) for part in parts if part.strip()]


def _hide_fences(text: str) -> str:
    """The text with the ``#`` of comments in fences out of sight of whoever looks for headings."""
    return _BLOCK.sub(lambda block: block.group().replace("\n#", "\n\0#"), text)


def _show(text: str) -> str:
    return text.replace("\0", "")


def table_rows(text: str, first: str) -> list[list[str]]:
    """The cells of every row of the tables whose first heading is ``first``."""
    rows: list[list[str]] = []
    reading = False
    for line in text.splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            reading = False
        elif cells[0] == first:
            reading = True
        elif reading and set(cells[0]) - set("-: "):
            rows.append(cells)
    return rows
