"""A workflow on every other supported Python that is here, each with the SQLite that it was built with.

The Python of these tests runs workflows in all others, and the demo in `test_release`. DBOS writes the time
by an expression that depends on the version of Python and fails with old SQLite, so one interpreter proves
nothing for the others. An interpreter that is missing is skipped, loudly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.environment import find_uv, make_environment
from scripts.get_uv import UvNotFoundError
from scripts.package_settings import read_settings

VERSIONS = [name for name in ("3.11", "3.12", "3.13") if name != "{}.{}".format(*sys.version_info)]


def find_interpreter(version: str) -> str | None:
    """The program of this version of Python, on the path or among those of pyenv."""
    of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python{version}"))
    for program in (shutil.which(f"python{version}"), *map(str, of_pyenv)):
        # a shim of pyenv is on the path even where its version is not chosen
        if program and subprocess.run([program, "-c", ""], check=False, capture_output=True).returncode == 0:
            return program
    return None


@pytest.mark.timeout(540)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_workflow_runs_on_each_python_with_its_sqlite(
    version: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    python = find_interpreter(version)
    if python is None:
        pytest.skip(f"NOT TESTED, because python{version} is neither on PATH nor in ~/.pyenv/versions")
    settings = read_settings()
    try:
        uv = find_uv(settings)
    except UvNotFoundError as error:
        pytest.skip(f"NOT TESTED with python{version}, because there is no uv: {error}")
    folder = tmp_path / "environment"
    make_environment(uv, [], settings, folder, python, compiles=False)
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
