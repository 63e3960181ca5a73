"""Tables and notes."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import click
import pytest

from retinue.cli.failures import paint
from retinue.cli.output import clean, module_command, print_json, print_table, warn_missing, working


def test_cells_are_one_clean_line() -> None:
    assert clean("a\x1b[31m\nb\u202e") == "a [31m b"
    assert clean(["x", "y"]) == "x, y"
    assert clean(None) == ""


def test_a_table_without_a_terminal_has_whole_values_between_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 100
    print_table(("NAME", "TEXT"), [("[bold]a", long)])
    heading, row = capsys.readouterr().out.splitlines()
    assert heading == "NAME\tTEXT"
    assert row == f"[bold]a\t{long.strip()}"


def test_json_is_indented_for_people_and_one_line_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1]})
    print_json({"a": [1]}, compact=True)
    assert capsys.readouterr().out == '{\n  "a": [\n    1\n  ]\n}\n{"a":[1]}\n'


def test_what_is_missing_is_said_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    warn_missing({"missing": [{"source": "home", "key": "agents/x", "error": "broken"}]})
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "warning: home/agents/x: broken\n")


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with working("running") as say:
        say("step one\x07")
    assert capsys.readouterr() == ("", "step one \n")


def test_a_terminal_sees_colour_unless_it_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert paint("x", fg="red") == "x"
    monkeypatch.delenv("NO_COLOR")
    assert paint("x", fg="red") == "\x1b[31mx\x1b[0m"


def test_only_a_status_is_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real terminal: a name that sounds like a status is plain."""
    monkeypatch.delenv("NO_COLOR")
    main, terminal = pty.openpty()
    try:
        with os.fdopen(terminal, "w") as stream:
            monkeypatch.setattr("sys.stdout", stream)
            monkeypatch.setenv("TERM", "xterm")
            print_table(("NAME", "STATUS"), [("failed", "unavailable since noon")])
            stream.flush()
            shown = os.read(main, 4096).decode()
    finally:
        os.close(main)
    assert "\x1b[31munavailable since noon" in shown
    assert "\nfailed" in shown


def test_a_terminal_cuts_the_column_that_may_be_cut_to_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    main, terminal = pty.openpty()
    try:
        with os.fdopen(terminal, "w") as stream:
            monkeypatch.setattr("sys.stdout", stream)
            monkeypatch.setenv("TERM", "xterm")
            monkeypatch.setenv("COLUMNS", "60")
            rows = [("greet", "word " * 100), ("wave", "short")]
            print_table(("SKILL", "DESCRIPTION"), rows, cut="DESCRIPTION")
            stream.flush()
            shown = os.read(main, 4096).decode()
    finally:
        os.close(main)
    heading, greet, wave = (click.unstyle(line).rstrip() for line in shown.splitlines())
    assert heading.split() == ["SKILL", "DESCRIPTION"]
    assert greet.startswith("greet  word word")
    assert greet.endswith("…")
    assert 50 < len(greet) <= 60
    assert wave == "wave   short"


def test_a_program_far_from_this_folder_is_named_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = tmp_path / "bin" / "python3", Path("/usr/bin/python3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    for program, shown in ((near, "bin/python3"), (far, "/usr/bin/python3")):
        monkeypatch.setattr(sys, "executable", str(program))
        assert module_command("retinue") == f"{shown} -m retinue"
