"""``retinue import claude-agents``: agents in Markdown of a project and a home, listed and copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.runtime.commands import imported_agents
from retinue.storage.state import State
from tests.cli.conftest import Retinue

FOLDER = Path(".claude") / "agents"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    return home


def write(folder: Path, name: str, more: str = "", file: str = "") -> Path:
    path = folder / FOLDER / (file or f"{name}.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\ndescription: Works.\n{more}---\nWork.\n")
    return path


def copies(state: Path) -> list[str]:
    return sorted(path.name for path in (state / "agents").glob("*.md"))


def test_agents_of_project_and_home_are_listed_with_their_warnings(retinue: Retinue, home: Path) -> None:
    write(Path.cwd(), "reviewer", "color: red\n")
    write(home, "helper")
    write(home, "reviewer", file="other.md")
    result = retinue("import", "claude-agents")
    rows = [line.split("\t")[:2] for line in result.stdout.splitlines() if "\t" in line]
    assert rows[1:] == [["helper", "new"], ["other", "left out"], ["reviewer", "new"]]
    assert "other.md:2: name: the agent of reviewer.md is called reviewer already" in result.stdout
    assert "reviewer.md:4: color: Retinue does not use this key" in result.stderr


def test_all_imports_each_file_once_and_leaves_faulty_ones_out(
    retinue: Retinue, home: Path, retinue_home: Path
) -> None:
    reviewer = write(Path.cwd(), "reviewer")
    write(home, "bad", "retinue: {limit: 3}\n")
    first = retinue("import", "claude-agents", "--all")
    assert first.exit_code == 0
    assert "bad.md:4: retinue.limit: unknown key; did you mean limits?" in first.stdout
    assert copies(retinue_home) == ["reviewer.md"]
    assert (retinue_home / "agents" / "reviewer.md").stat().st_mode & 0o777 == 0o600
    assert "reviewer is imported already" in retinue("import", "claude-agents", "--all").stdout
    reviewer.write_text(reviewer.read_text() + "More.\n")
    assert "reviewer\tchanged" in retinue("import", "claude-agents").stdout
    retinue("import", "claude-agents", "reviewer")
    assert (retinue_home / "agents" / "reviewer.md").read_text().endswith("More.\n")
    assert "reviewer\t" in retinue("imports").stdout
    assert "removed reviewer" in retinue("imports", "remove", "reviewer").stdout
    assert copies(retinue_home) == []


def test_an_import_of_another_folder_is_replaced_only_if_somebody_says_so(
    retinue: Retinue, home: Path, tmp_path: Path, retinue_home: Path
) -> None:
    write(Path.cwd(), "reviewer")
    other = write(tmp_path / "other", "reviewer", "model: opus\n")
    retinue("import", "claude-agents", "--all")
    refused = retinue("import", "claude-agents", str(tmp_path / "other"), "reviewer")
    assert refused.exit_code == 2
    assert "is called reviewer, too — replace it with --replace" in refused.stderr
    retinue("import", "claude-agents", str(other.parent), "reviewer", "--replace")
    assert "opus" in (retinue_home / "agents" / "reviewer.md").read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nobody"], "no file has the agent 'nobody'"),
        (["/no/folder"], "no folder /no/folder"),
        (["bad"], "bad.md:4: retinue.limit"),
        (["retinue"], "an agent is called retinue already"),
    ],
)
def test_what_cannot_be_imported_is_an_error(
    retinue: Retinue, home: Path, retinue_home: Path, words: list[str], problem: str
) -> None:
    write(Path.cwd(), "bad", "retinue: {limit: 3}\n")
    write(Path.cwd(), "retinue")
    result = retinue("import", "claude-agents", *words)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert copies(retinue_home) == []


def test_a_name_never_leads_out_of_the_folder(retinue: Retinue, retinue_home: Path, tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("mine")
    (retinue_home / "agents").mkdir(parents=True)
    assert not imported_agents.remove(State(retinue_home), "../../x")
    assert (tmp_path / "x.md").exists()
