"""``retinue docs``: the pages of the documentation at the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from retinue.cli.managing.docs import find_pages
from retinue.cli.program import program
from retinue.core.errors import StateError
from scripts.package_docs import list_pages

ROOT = Path(__file__).resolve().parents[3]


def test_the_pages_are_listed_with_their_titles_and_without_decisions() -> None:
    rows = json.loads(CliRunner().invoke(program, ["docs", "--json"]).stdout)
    titles = {row["page"]: row["title"] for row in rows}
    assert titles["settings"] == "Settings"
    assert "guides/backup" in titles
    assert all(titles.values())
    assert not [name for name in titles if name.startswith("decisions")]


@pytest.mark.parametrize("name", ["guides/backup", "backup", "docs/guides/backup.md"])
def test_a_page_is_printed_as_it_is_where_nobody_reads_it_on_a_terminal(name: str) -> None:
    assert CliRunner().invoke(program, ["docs", name]).stdout == (ROOT / "docs/guides/backup.md").read_text(
        "utf-8"
    )


def test_a_page_that_does_not_exist_is_refused_with_a_similar_name() -> None:
    result = CliRunner().invoke(program, ["docs", "setings"])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == ["error: PAGE: there is no page setings — did you mean settings?"]


def test_an_installation_without_pages_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no documentation"):
        find_pages(tmp_path / "site-packages" / "lib" / "retinue")


def test_the_wheel_has_the_pages_that_the_clone_shows(tmp_path: Path) -> None:
    places = {
        place.removeprefix("retinue/docs/").removesuffix(".md")
        for place in list_pages(ROOT / "docs").values()
    }
    assert places == set(find_pages())


def test_each_page_that_a_remedy_names_exists() -> None:
    """``retinue docs NAME`` in the source."""
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    names = set(re.findall(r"retinue docs ([a-z][a-z-]*)", source)) - {"lists"}
    assert {"settings", "workflows", "operating"} <= names
    assert names <= {name.rpartition("/")[2] for name in find_pages()}
