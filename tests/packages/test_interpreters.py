"""What depends on the version of Python, on every other supported Python that is here: runs, and digests.

The Python of these tests runs workflows in all others, and the demo in `test_release`. DBOS writes the time
by an expression that depends on the version of Python and fails with old SQLite, so one interpreter proves
nothing for the others. An interpreter that is missing is skipped, loudly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from scripts.environment import find_uv, make_environment
from scripts.get_uv import UvNotFoundError
from scripts.package_settings import make_uv_environment, read_settings
from tests.processes.commands import retinue

VERSIONS = [name for name in ("3.11", "3.12", "3.13") if name != "{}.{}".format(*sys.version_info)]


def find_interpreter(version: str) -> str | None:
    """The program of this version of Python, on the path or among those of pyenv."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python{version}"))
    for program in (shutil.which(f"python{version}"), *map(str, of_pyenv)):
        # a shim of pyenv is on the path even where its version is not chosen
        if program and subprocess.run([program, "-c", ""], check=False, capture_output=True).returncode == 0:
            return program
    return None


Environments = Callable[[str], Path]
"""The folder of the environment of a version of Python."""


@pytest.fixture(scope="module")
def environment_of(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """Makes each environment once; skips where its Python or uv is missing."""

    @cache
    def make(version: str) -> Path:
        python = find_interpreter(version)
        if python is None:
            pytest.skip(f"NOT TESTED, because python{version} is neither on PATH nor in ~/.pyenv/versions")
        settings = read_settings()
        try:
            uv = find_uv(settings)
        except UvNotFoundError as error:
            pytest.skip(f"NOT TESTED with python{version}, because there is no uv: {error}")
        folder = tmp_path_factory.mktemp("python") / "environment"
        make_environment(uv, [], settings, folder, python, compiles=False)
        return folder

    return make


@pytest.mark.timeout(540)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_workflow_runs_on_each_python_with_its_sqlite(
    version: str, environment_of: Environments, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = environment_of(version)
    done = subprocess.run(
        [str(folder / "bin" / "retinue"), "demo", "textwrap"],
        cwd=tmp_path,
        env=os.environ | {"RETINUE_HOME": str(tmp_path / "state")},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Code quality score: 10/10" in done.stdout + done.stderr
    with capfd.disabled():
        print(f"\na workflow ran on {read_versions(folder)}")


def read_versions(environment: Path) -> str:
    """The versions of Python and SQLite of an environment."""
    source = "import platform, sqlite3; print(platform.python_version(), sqlite3.sqlite_version)"
    command = [str(environment / "bin" / "python"), "-c", source]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return "Python {} with SQLite {}".format(*done.stdout.split())


TEAM = """
name = "packed"
version = "1.0.0"

[[agents]]
target = "agents/marks/agent.py"
"""
AGENT = """
from markupsafe import escape

from retinue import Agent

agent = Agent("marks", version="1.0.0", description="Escapes marks.")


@agent.skill()
def mark(text: str) -> str:
    \"\"\"The text without marks.\"\"\"
    return str(escape(text))
"""
PROJECT = '[project]\nname = "marks"\nversion = "1.0.0"\ndependencies = ["retinue", "markupsafe==3.0.2"]\n'
"""A package with compiled code, so each Python has a wheel of its own."""


@pytest.mark.timeout(540)
def test_a_team_with_its_wheels_has_one_digest_on_each_python(
    environment_of: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = {version: environment_of(version) for version in VERSIONS}
    settings = read_settings()
    for name, value in make_uv_environment(settings, {}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{find_uv(settings).parent}{os.pathsep}{os.environ['PATH']}")
    agents = tmp_path / "packed" / "agents" / "marks"
    agents.mkdir(parents=True)
    for path, text in (("agent.py", AGENT), ("pyproject.toml", PROJECT), ("../../team.toml", TEAM)):
        (agents / path).write_text(text)
    retinue("lock", "packed", cwd=tmp_path)
    pack = ("pack", "packed", "--vendor", "--output")
    digests = {"own": retinue(*pack, "own.tar", cwd=tmp_path)}
    for version, folder in environments.items():
        command = [str(folder / "bin" / "retinue"), *pack, f"{version}.tar"]
        variables = os.environ | {"RETINUE_HOME": str(tmp_path / version), "TZ": "Asia/Tokyo"}
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "packages: 3 wheels" in done.stderr
        digests[version] = done.stdout.strip()
    assert len({*digests.values()}) == 1, digests
