"""The walk-through of the toy protocol shows its files as they are, and the files stay small."""

from __future__ import annotations

import re
from pathlib import Path

from retinue.parts.part import FOREIGN_RANK, INTERFACE, Part
from retinue.runtime.hub_process import HubOptions, hub_parts
from retinue.settings import Settings
from tests.docs.pages import ROOT, list_sections, table_rows

PAGE = ROOT / "docs" / "adding-a-protocol.md"
TOY = ROOT / "tests" / "packages" / "toy-protocol"
MAX_LINES = 199


def list_files() -> dict[str, str]:
    """The files of the toy distribution that have content, by their names."""
    return {
        path.name: path.read_text("utf-8")
        for path in (TOY / "pyproject.toml", *sorted((TOY / "src" / "retinue_toy").glob("*.py")))
    }


def test_the_page_shows_every_file_of_the_toy_protocol_as_it_is() -> None:
    shown = [
        block
        for section in list_sections(PAGE)
        for language in ("toml", "python")
        for block in section.blocks(language)
    ]
    files = list_files()
    del files["__init__.py"]
    assert sorted(shown) == sorted(files.values())


def test_the_toy_protocol_is_small() -> None:
    assert sum(len(text.splitlines()) for text in list_files().values()) <= MAX_LINES


def test_the_toy_protocol_imports_what_the_page_allows() -> None:
    (allowed,) = re.findall(r"^`retinue\.parts`, (.*) and `authoring`\.", PAGE.read_text("utf-8"), re.M)
    rooms = {"parts", "authoring", *re.findall(r"`(\w+)`", allowed)}
    code = "\n".join(list_files().values())
    assert set(re.findall(r"from retinue\.(\w+)", code)) <= rooms


def test_the_table_of_attributes_holds_those_of_a_part() -> None:
    first = {row[0] for row in table_rows(PAGE.read_text("utf-8"), "attribute")}
    shown = {name for cell in first for name in re.findall(r"`(\w+)", cell)}
    public = {name for name in (*Part.__annotations__, *vars(Part)) if not name.startswith("_")}
    assert public - {"open"} <= shown
    assert INTERFACE == 1


def test_the_ranks_of_the_page_are_those_of_the_parts() -> None:
    ranks = {part.name: part.rank for part in hub_parts(HubOptions(), Settings()) if part.name != "koi"}
    dashboard = ranks.pop("dashboard")
    own = {rank for rank in ranks.values() if rank != FOREIGN_RANK}
    assert (min(own), max(own), FOREIGN_RANK) == (10, 90, 500)
    assert dashboard > FOREIGN_RANK


def test_the_files_that_the_page_names_for_tests_exist() -> None:
    named = re.findall(r"`(tests/[\w/-]+(?:\.py)?)`", PAGE.read_text("utf-8"))
    assert [path for path in named if not Path(ROOT / path).exists()] == []
