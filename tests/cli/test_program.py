"""The program as a whole: its table of commands, its speed, its errors."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from retinue.cli.program import NO_WINDOWS, PIPE_CLOSED, SECTIONS, TABLE, main, program
from retinue.core.errors import HubRunningError
from tests.cli.conftest import Retinue

SLOW = ("pydantic", "aiohttp", "rich", "structlog", "starlette", "orjson", "asyncio")


def _load(name: str) -> click.Command:
    command = program.get_command(click.Context(program), name)
    assert command is not None
    return command


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def test_help_imports_nothing_but_click() -> None:
    code = (
        "import sys\n"
        "from retinue.cli.program import main\n"
        "sys.argv[1:] = ['--help']\n"
        "try:\n    main()\n"
        "except SystemExit:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    loaded = _python(code).stderr.split()
    assert "click" in loaded
    assert [name for name in loaded if name.partition(".")[0] in SLOW] == []
    ours = {name for name in loaded if name.startswith("retinue.")}
    core = {"retinue.core", "retinue.core.durations", "retinue.core.errors", "retinue.core.error_kinds"}
    core |= {name for name in ours if name.startswith("retinue.core.error_kinds.")}
    own = {"retinue.cli", "retinue.cli.program", "retinue.cli.failures", "retinue.cli.options"}
    assert ours == own | {"retinue.plugins"} | core
    assert "importlib.metadata" not in loaded
    assert not any(name.startswith(("retinue_demo", "retinue_testwriter")) for name in loaded)


@pytest.mark.parametrize("name", TABLE)
def test_every_command_loads_and_says_what_the_table_says(name: str) -> None:
    command = _load(name)
    assert command.name == name
    assert (command.help or "").splitlines()[0] == TABLE[name][1]


@pytest.mark.parametrize("name", TABLE)
def test_the_help_of_a_command_explains_every_option(name: str, retinue: Retinue) -> None:
    shown = retinue(name, "--help")
    assert shown.exit_code == 0
    for parameter in _load(name).params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert all(spelling in shown.output for spelling in parameter.opts)
            assert parameter.help, parameter.name
        elif isinstance(parameter, click.Argument):
            assert parameter.make_metavar(click.Context(_load(name))) in shown.output


def test_every_module_of_a_command_is_in_the_table() -> None:
    for module in {place.partition(":")[0] for place, _ in TABLE.values() if ":" in place}:
        loaded = importlib.import_module(f"retinue.cli.{module}")
        found = {name: value for name, value in vars(loaded).items() if isinstance(value, click.Command)}
        groups = [value for value in found.values() if isinstance(value, click.Group)]
        below = [command for group in groups for command in group.commands.values()]
        commands = {name for name, value in found.items() if value not in below}
        here = {place.partition(":")[2] for place, _ in TABLE.values() if place.startswith(f"{module}:")}
        assert commands == here


def test_without_arguments_the_help_is_shown(retinue: Retinue) -> None:
    shown = retinue()
    assert shown.exit_code == 0
    assert shown.stdout == retinue("--help").stdout
    assert all(heading in shown.stdout for heading in SECTIONS)


def test_version(retinue: Retinue) -> None:
    assert re.fullmatch(r"retinue \d+\.\d+\.\d+\n", retinue("--version").stdout)


def test_a_misspelt_command_is_answered_with_the_likely_one(retinue: Retinue) -> None:
    refused = retinue("cal", "greet")
    assert refused.exit_code == 2
    assert refused.stderr == "error: no such command cal — did you mean call or cancel?\n"
    assert refused.stdout == ""


def test_a_misspelt_option_is_answered_with_the_likely_one(retinue: Retinue) -> None:
    refused = retinue("call", "greet", "--agnet", "x")
    assert refused.exit_code == 2
    assert refused.stderr == "error: no such option --agnet — did you mean --agent?\n"
    refused = retinue("orchestrate", "- first, sort the list")
    assert refused.stderr == (
        "error: no such option - — see retinue orchestrate --help; "
        "write -- before an argument that begins with -\n"
    )


def test_a_missing_argument_is_answered_with_the_usage(retinue: Retinue) -> None:
    refused = retinue("call")
    assert refused.exit_code == 2
    assert refused.stderr == "error: SKILL is missing — usage: retinue call [OPTIONS] SKILL [JSON]\n"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("rerun x", "--from is missing — give it: retinue rerun --from STEP"),
        (
            "runs --status runing",
            "--status: 'runing' is not one of running, done, failed, cancelled, limited — "
            "did you mean running?",
        ),
        ("completion bsh", "SHELL: 'bsh' is not one of bash, zsh, fish — did you mean bash?"),
        ("connect clade --print", "CLIENT: 'clade' is not one of claude, claude-desktop, cursor, vscode, "),
    ],
)
def test_a_missing_or_misspelt_value_is_told_in_the_words_of_the_help(
    retinue: Retinue, typed: str, told: str
) -> None:
    refused = retinue(*typed.split())
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"error: {told}")
    assert "— did you mean " in refused.stderr or "— give it: " in refused.stderr


def test_a_wrong_value_is_answered_with_the_way_to_the_help(retinue: Retinue) -> None:
    refused = retinue("call", "greet", "--timeout", "soon")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: invalid value for '--timeout'")
    assert refused.stderr.endswith("— see retinue call --help\n")


def test_an_option_without_its_value_is_answered_with_the_way_to_the_help(retinue: Retinue) -> None:
    refused = retinue("find", "--why")
    assert refused.exit_code == 2
    assert refused.stderr == "error: option '--why' requires an argument — see retinue COMMAND --help\n"


def test_a_folder_that_was_deleted_is_named(retinue: Retinue) -> None:
    Path.cwd().rmdir()
    refused = retinue("agents")
    assert (refused.exit_code, refused.stdout) == (8, "")
    assert refused.stderr == "error: the current folder was deleted — change to an existing folder\n"


def test_a_wrong_setting_is_named_with_its_place(retinue: Retinue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_HUB__PORT", "many")
    refused = retinue("agents")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: RETINUE_HUB__PORT: ")
    assert refused.stderr.count("\n") == 1


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Makes ``retinue agents`` raise what is put into this list."""
    raised: list[BaseException] = []

    def raise_it(*_: object) -> object:
        raise raised[0]

    monkeypatch.setattr("retinue.cli.calling.agents.open_session", raise_it)
    return raised


def test_an_unexpected_error_is_one_line_and_says_how_to_see_more(
    retinue: Retinue, broken: list[BaseException]
) -> None:
    broken.append(ZeroDivisionError("by zero\nand more"))
    failed = retinue("agents")
    assert failed.exit_code == 1
    assert failed.stderr == (
        "error: unexpected ZeroDivisionError: by zero — set RETINUE_DEBUG=1 for the traceback\n"
    )


def test_the_traceback_is_shown_on_wish(
    retinue: Retinue, broken: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_DEBUG", "1")
    broken.append(ZeroDivisionError("by zero"))
    failed = retinue("agents")
    assert "Traceback (most recent call last)" in failed.stderr
    assert failed.stderr.splitlines()[-1].startswith("error: unexpected ZeroDivisionError")


def test_an_error_of_ours_has_the_status_of_the_fault_table(
    retinue: Retinue, broken: list[BaseException]
) -> None:
    broken.append(HubRunningError("http://127.0.0.1:9000", 1, "here"))
    assert retinue("agents").exit_code == 8


def test_ctrl_c_ends_with_130_and_without_a_word(retinue: Retinue, broken: list[BaseException]) -> None:
    broken.append(KeyboardInterrupt())
    failed = retinue("agents")
    assert failed.exit_code == 130
    assert failed.stderr.strip() == ""


def test_output_that_nobody_reads_any_more_is_dropped_in_silence(
    retinue: Retinue, broken: list[BaseException]
) -> None:
    broken.append(BrokenPipeError())
    failed = retinue("agents")
    assert (failed.exit_code, failed.stderr) == (PIPE_CLOSED, "")


@pytest.mark.parametrize(("redirection", "status"), [(">&-", 0), (">/dev/full", 1), (">/dev/full 2>&1", 1)])
def test_output_that_goes_nowhere_leaves_no_trace_of_the_interpreter(redirection: str, status: int) -> None:
    ended = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m retinue workflows {redirection}', sys.executable],
        capture_output=True,
        text=True,
        check=False,
        # buffered, as a user has it: what a buffer holds is written at the end of the interpreter
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    assert ended.returncode == status
    assert "Exception ignored" not in ended.stderr
    assert ended.stderr.count("\n") <= 1


def test_windows_is_refused_in_one_line_that_names_wsl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == NO_WINDOWS
    assert "WSL" in NO_WINDOWS
    assert len(NO_WINDOWS.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["--help"], ["call", "--help"], ["completion", "bash"]])
def test_a_closed_pipe_is_no_error(arguments: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "retinue", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (1, PIPE_CLOSED)
