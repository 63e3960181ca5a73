"""``retinue new``: a folder that works as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Retinue

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_folder_holds_an_agent_its_test_and_what_to_do(retinue: Retinue) -> None:
    made = retinue("new", "word-agent")
    assert made.exit_code == 0
    names = sorted(file.name for file in Path("word-agent").iterdir())
    assert names == ["README.md", "agent.json", "agent.py", "pytest.ini", "test_agent.py"]
    for file in Path("word-agent").iterdir():
        assert "my-agent" not in file.read_text("utf-8")
    for line in ("retinue serve word-agent/agent.json", "retinue call greet", "python -m pytest word-agent"):
        assert line in made.stdout
        assert line in Path("word-agent/README.md").read_text("utf-8")


def test_its_own_test_passes(retinue: Retinue) -> None:
    retinue("new", "word-agent")
    output = _run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "word-agent")
    assert "2 passed" in output


def test_the_test_command_that_it_prints_runs_below_a_project_with_other_settings(retinue: Retinue) -> None:
    """As in a clone whose settings name plugins that are installed for its own tests only."""
    shutil.copy(ROOT / "pyproject.toml", "pyproject.toml")
    made = retinue("new", "word-agent")
    (line,) = [line.strip() for line in made.stdout.splitlines() if "pytest" in line and "-m" in line]
    without_plugins = {**os.environ, "PYTEST_ADDOPTS": "-p no:asyncio -p no:timeout -p no:cacheprovider"}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, env=without_plugins)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_it_is_clean_for_linter_formatter_and_type_checker(retinue: Retinue) -> None:
    retinue("new", "word-agent")
    os.chdir("word-agent")
    _run(str(BIN / "ruff"), "check", "--isolated", "--no-cache", "--select", "E,F,I,UP,B,N,SIM,RUF", ".")
    _run(str(BIN / "ruff"), "format", "--isolated", "--no-cache", "--check", ".")


@pytest.mark.parametrize(
    "name", ["", "Word", "word agent", "../word", "word/agent", "-x", "wörd", "a" * 65, "."]
)
def test_a_bad_name_is_refused_and_makes_nothing(name: str, retinue: Retinue) -> None:
    refused = retinue("new", "--", name)
    assert refused.exit_code == 2
    assert "is not an agent name" in refused.stderr
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(("flag", "kind"), [("--team", "a team"), ("--workflow", "a workflow")])
def test_a_bad_name_is_refused_as_that_of_what_is_made(flag: str, kind: str, retinue: Retinue) -> None:
    refused = retinue("new", flag, "My Team")
    assert (refused.exit_code, f"'My Team' is not {kind} name" in refused.stderr) == (2, True)


def test_the_name_of_a_team_has_no_dot(retinue: Retinue) -> None:
    refused = retinue("new", "--team", "teams.json")
    assert (refused.exit_code, "separated by - or _" in refused.stderr) == (2, True)


def test_a_folder_that_exists_is_left_alone(retinue: Retinue) -> None:
    Path("word-agent").mkdir()
    refused = retinue("new", "word-agent")
    assert refused.exit_code == 2
    assert refused.stderr == "error: NAME: word-agent exists — choose another name, or move the folder away\n"
    assert list(Path("word-agent").iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(retinue: Retinue, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    refused = retinue("new", "word-agent")
    assert refused.exit_code == 8
    assert "cannot write word-agent: Permission denied" in refused.stderr
