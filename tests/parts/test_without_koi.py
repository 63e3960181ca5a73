"""Retinue without ``retinue-koi``: whatever belongs to KOI names the extra, and all else works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plugins import install

REMEDY = "pip install 'retinue[koi]'; from a checkout: pip install . ./packages/retinue-koi"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path, retinue_home: Path) -> Run:
    """Runs a program with an empty distribution in place of ``retinue-koi``, in a folder of its own."""
    site = tmp_path / "site"
    site.mkdir()
    install(site, "retinue-koi", {})
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def start(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return start


@pytest.mark.parametrize("command", [("koi", "demo"), ("koi", "agent", "--config", "agent.json")])
def test_the_command_is_listed_and_names_the_extra(run: Run, command: tuple[str, ...]) -> None:
    assert "Run agents and a coordinator on a KOI network." in run("-m", "retinue", "--help").stdout
    refused = run("-m", "retinue", *command)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == f"error: koi: it is not installed — {REMEDY}\n"


@pytest.mark.parametrize("name", ["agent", "coordinator", "demo"])
def test_the_programs_of_the_seed_name_the_extra(run: Run, name: str) -> None:
    refused = run("-c", f"from retinue.cli import koi_programs; koi_programs.{name}()")
    assert refused.returncode == 2
    assert REMEDY in refused.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("hub", "--koi"),
        ("hub", "--koi-join", "http://127.0.0.1:9/koi-net"),
        ("serve", "agent.py", "--koi-join", "http://127.0.0.1:9/koi-net"),
    ],
)
def test_the_options_name_the_extra(run: Run, command: tuple[str, ...]) -> None:
    refused = run("-m", "retinue", *command)
    assert refused.returncode == 2
    option = next(word for word in command if word.startswith("--koi"))
    assert refused.stderr == f"error: {option}: part koi: its distribution is not installed — {REMEDY}\n"
    assert "--koi" not in run("-m", "retinue", command[0], "--help").stdout


def test_a_table_of_the_settings_is_named_and_the_rest_is_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "retinue.toml").write_text("[koi]\nenabled = true\n\n[hub]\nport = 9107\n", "utf-8")
    checked = run("-m", "retinue", "doctor", "--json")
    (row,) = [row for row in json.loads(checked.stdout)["checks"] if row["check"] == "part koi"]
    assert (row["found"], row["remedy"]) == ("its distribution is not installed", REMEDY)
    code = "from retinue.settings import load_settings; print(load_settings().hub.port)"
    assert run("-c", code).stdout == "9107\n"


def test_nothing_of_the_core_imports_the_distribution(run: Run) -> None:
    code = (
        "import sys\n"
        "sys.modules['retinue_koi'] = None\n"
        "import retinue.cli.serving.serve, retinue.runtime.hub_process, retinue.runtime.agent_process\n"
        "import retinue.runtime.worker_process, retinue.runtime.stdio.agent\n"
    )
    assert run("-c", code).returncode == 0
