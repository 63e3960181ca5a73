"""``retinue import mcp-server``: whose option is which, and what becomes of an import of the same name."""

from __future__ import annotations

import io
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from retinue.cli.program import program
from tests.cli.conftest import Retinue

SERVER = ("import", "mcp-server", "files")


class Terminal(io.StringIO):
    """Standard input of a person who types."""

    def isatty(self) -> bool:
        return True


def kept(retinue_home: Path) -> dict[str, Any]:
    file = retinue_home / "imports.toml"
    return tomllib.loads(file.read_text()) if file.exists() else {}


@pytest.mark.parametrize(
    "words", [("--yes",), ("--yes", "npx"), ("npx", "-y", "server"), ("-y", "--", "npx")]
)
def test_an_unknown_option_before_the_command_is_refused(
    retinue: Retinue, retinue_home: Path, words: tuple[str, ...]
) -> None:
    refused = retinue(*SERVER, *words)
    assert refused.exit_code == 2
    option = next(word for word in words if word.startswith("-"))
    assert refused.stderr.startswith(f"error: no such option {option}")
    assert "write -- before an argument that begins with -" in refused.stderr
    assert kept(retinue_home) == {}


def test_the_options_behind_the_two_dashes_are_those_of_the_program(
    retinue: Retinue, retinue_home: Path
) -> None:
    said = retinue(*SERVER, "--private", "--", "npx", "-y", "server", "--replace", "--url", "x")
    assert said.exit_code == 0, said.output
    table = kept(retinue_home)["files"]
    assert (table["command"], table["args"]) == ("npx", ["-y", "server", "--replace", "--url", "x"])
    assert table["visibility"] == "mesh"


def test_a_name_in_the_place_of_the_kind_is_told_the_form(retinue: Retinue, retinue_home: Path) -> None:
    refused = retinue("import", "files", "--", "npx", "server")
    assert refused.exit_code == 2
    assert "for an MCP server: retinue import mcp-server files -- COMMAND" in refused.stderr
    assert "did you mean cursor?" in retinue("import", "curser").stderr
    assert kept(retinue_home) == {}


@pytest.mark.parametrize(
    "again",
    [
        (*SERVER, "--", "other"),
        ("import", "a2a", "http://127.0.0.1:9", "--name", "files"),
        ("import", "openapi", "http://127.0.0.1:9/api.json", "--name", "files"),
    ],
)
def test_an_import_of_a_known_name_needs_the_option_without_a_terminal(
    retinue: Retinue, retinue_home: Path, again: tuple[str, ...]
) -> None:
    assert retinue(*SERVER, "--", "npx", "server", "--token=abc").exit_code == 0
    before = kept(retinue_home)
    assert retinue(*SERVER, "--", "npx", "server", "--token=abc").exit_code == 0, "it is the same import"
    refused = retinue(*again)
    assert refused.exit_code == 2
    assert "'files' is the import of npx server --token=*** already" in refused.stderr
    assert "choose another name, or replace it with --replace" in refused.stderr
    assert kept(retinue_home) == before
    replaced = retinue(*again[:2], "--replace", *again[2:])
    assert replaced.exit_code == 0, replaced.output
    assert "files replaces the import of npx server --token=***" in replaced.stdout
    assert kept(retinue_home) != before


@pytest.mark.parametrize(("answer", "command"), [("y", "two"), ("n", "one"), ("", "one")])
def test_a_person_at_a_terminal_is_asked_before_an_import_is_replaced(
    retinue: Retinue,
    retinue_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    command: str,
) -> None:
    assert retinue(*SERVER, "--", "one").exit_code == 0
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    with pytest.raises(SystemExit) as ended:
        program.main([*SERVER, "--", "two"], "retinue")
    assert ended.value.code == (0 if answer == "y" else 130)
    assert "files is the import of one already. Replace it? [y/N]" in capsys.readouterr().out
    assert kept(retinue_home)["files"]["command"] == command
