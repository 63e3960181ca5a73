"""What the Tab key offers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from retinue.cli.program import TABLE
from tests.cli.conftest import Retinue


def complete(*words: str) -> list[str]:
    """What bash is given for the last word."""
    environment = {
        **os.environ,
        "_RETINUE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("retinue", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "retinue"], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_complete_in_bash() -> None:
    assert complete("") == list(TABLE)
    assert complete("wo") == ["worker", "workflows"]


def test_options_complete_in_bash() -> None:
    assert {"--agent", "--version", "--timeout", "--json"} <= set(complete("call", "greet", "--"))


def test_skills_and_agents_complete_in_bash(plan_card: bytes) -> None:
    assert complete("call", "") == ["create_plan", "read_docs"]
    assert complete("call", "re") == ["read_docs"]
    assert complete("find", "--skill", "c") == ["create_plan"]
    assert complete("show", "p") == ["plan-agent"]
    assert complete("call", "x", "{}", "--agent", "") == ["plan-agent"]


def test_completion_offers_nothing_without_a_state_and_makes_none(retinue_home: os.PathLike[str]) -> None:
    assert complete("show", "") == []
    assert not os.path.exists(retinue_home)  # noqa: PTH110 - any kind of thing


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str, retinue: Retinue) -> None:
    script = retinue("completion", shell).stdout
    assert "_RETINUE_COMPLETE" in script
    assert f"{shell}_complete" in script


def test_the_bash_script_is_bash() -> None:
    script = subprocess.run(
        [sys.executable, "-m", "retinue", "completion", "bash"], capture_output=True, check=True
    ).stdout
    subprocess.run(["bash", "-n"], input=script, check=True)


def test_an_unknown_shell_is_refused_with_those_there_are(retinue: Retinue) -> None:
    refused = retinue("completion", "tcsh")
    assert refused.exit_code == 2
    assert "bash, zsh, fish" in refused.stderr
