"""``docs/cli.md``: its help is the program's, and its session runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from retinue.cli.program import TABLE
from scripts.cli_docs import PAGE, list_documented, main, render_page
from tests.processes.running import program

TEXT = PAGE.read_text("utf-8")
COMMANDS = re.findall(r"^\$ (.*)$", TEXT, re.MULTILINE)
LONG = {"retinue demo textwrap": "`make demo` and its own suite run it"}
READY = {"hub": "hub at", "serve": "published"}


@contextmanager
def _background(command: str, folder: Path) -> Iterator[None]:
    _, name, *arguments = command.removesuffix("&").split()
    port = ("--port", "0") if name == "hub" else ()
    with program(name, *arguments, *port, cwd=folder) as running:
        running.wait_for(READY[name])
        yield


def test_the_help_on_the_page_is_what_the_program_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert render_page(TEXT) == TEXT, "run: python -m scripts.cli_docs"
    assert main() == 0


def test_every_command_has_its_help_and_an_example() -> None:
    assert sorted(list_documented(TEXT)) == sorted(["", *TABLE])
    examples = {word.split()[1] for word in COMMANDS if word.startswith("retinue ")}
    assert examples == set(TABLE)


def test_the_session_on_the_page_runs(tmp_path: Path) -> None:
    flow = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert flow is not None
    (tmp_path / "flow.yaml").write_text(flow[1])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with ExitStack() as running:
        for command in COMMANDS:
            if command.endswith("&"):
                running.enter_context(_background(command, tmp_path))
            elif command not in LONG:
                done = subprocess.run(
                    ["sh", "-c", command],
                    cwd=tmp_path,
                    capture_output=True,
                    text=True,
                    check=False,
                    env={**os.environ, "PATH": path},
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
                assert done.stdout or command.startswith("retinue find"), command
    assert (tmp_path / "copy.yaml").read_text() == flow[1]
