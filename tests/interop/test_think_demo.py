"""``make demo-think``, without its installation: the demo with servers from npm, killed in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import npm_packages
from scripts.npm_packages import InstallFailedError, install
from scripts.think_demo import __main__ as think_demo

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
def test_the_model_finds_uses_asks_is_killed_and_answers(tmp_path: Path) -> None:
    try:
        install(ROOT / "scripts" / "think_demo" / "npm", think_demo.PACKAGES)
    except InstallFailedError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"npm could not install the servers: {error}")
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "scripts.think_demo"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  ok  ") == 9
    assert "prices has 4 tests: 4 pass, 0 fail" in done.stdout
    tests = tmp_path / "retinue-demo" / "test_prices.py"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        cwd=tests.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert list(temporary.iterdir()) == [], "nothing is left behind"


def test_servers_that_cannot_be_installed_are_told_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise InstallFailedError("npm ci ended with 1: ENOTFOUND registry.npmjs.org")

    monkeypatch.setattr(npm_packages, "install", fail)
    assert think_demo.main([]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "make demo-think: npm ci ended with 1: ENOTFOUND registry.npmjs.org"
    assert "npm_config_registry" in second
