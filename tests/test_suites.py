"""Which tests the runs take, and how a run ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from scripts import suites
from scripts.suite_times import LONG, SLOW, suite_of

COUNTS = """
from pathlib import Path

def test_first():
    with Path(__file__).with_name("runs").open("a") as runs:
        runs.write("x")
    assert False
"""


def _write(root: Path, *files: str) -> None:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def test_first():\n    pass\n")


def _files_under(places: Iterable[str], root: Path) -> list[Path]:
    found = [root / place for place in places if not place.startswith("--") and "::" not in place]
    return [file for place in found for file in ([place] if place.is_file() else place.rglob("test_*.py"))]


def test_a_new_folder_is_fast_and_a_folder_with_the_name_of_a_slow_suite_is_slow(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "tests/test_top.py",
        "tests/new/test_new.py",
        "tests/seeds/test_seed.py",
        "tests/processes/test_hub.py",
        "packages/retinue-fish/tests/fish/test_fish.py",
        "packages/retinue-fish/tests/fish/codec/test_codec.py",
        "packages/retinue-fish/tests/fish/processes/test_fish_hub.py",
    )
    assert suites.list_suites(tmp_path) == {
        "unit": [
            "tests/new",
            "tests/test_top.py",
            "packages/retinue-fish/tests/fish/codec",
            "packages/retinue-fish/tests/fish/test_fish.py",
        ],
        "golden": ["tests/seeds"],
        "processes": ["tests/processes", "packages/retinue-fish/tests/fish/processes"],
    }


def test_every_file_of_tests_is_in_one_of_the_two_runs() -> None:
    runs = suites.choose_runs("all")
    listed = [file for arguments in runs.values() for file in _files_under(arguments, suites.ROOT)]
    folders = [suites.ROOT / "tests", *suites.ROOT.glob("packages/*/tests")]
    assert sorted(listed) == sorted(file for folder in folders for file in folder.rglob("test_*.py"))


def test_a_test_of_a_slow_suite_that_make_test_runs_is_not_run_by_the_rest() -> None:
    runs = suites.choose_runs("all")
    assert set(suites.END_TO_END) <= set(runs["test"])
    assert {f"--deselect={test}" for test in suites.END_TO_END} <= set(runs["rest"])
    for test in suites.END_TO_END:
        path, _, function = test.partition("::")
        assert suite_of(path) in SLOW
        assert f"def {function.partition('[')[0]}(" in (suites.ROOT / path).read_text("utf-8")


def test_sources_and_tests_are_compiled_once_before_the_workers_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, "tests/test_first.py", "src/fish/__init__.py", "packages/retinue-koi/src/koi.py")
    monkeypatch.setattr(suites, "FEW", 1)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    suites.cache_bytecode(["tests", "--maxfail=1"], environment, tmp_path)
    assert {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")} == {
        "test_first",
        "__init__",
        "koi",
    }
    monkeypatch.setattr(subprocess, "Popen", None)
    suites.cache_bytecode(["tests"], environment, tmp_path)


def test_the_files_that_are_begun_first_exist() -> None:
    assert [path for path in LONG if not (suites.ROOT / path).is_file()] == []


def test_a_failed_test_fails_its_run_and_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(COUNTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setenv("PYTHONPATH", str(suites.ROOT))
    monkeypatch.setattr(suites, "WORKERS", 1)
    status, _ = suites.run_pytest("one", ["tests"], tmp_path)
    assert status == 1
    assert (tmp_path / "tests" / "runs").read_text() == "x"
    printed = capfd.readouterr().out
    assert "slowest 20 durations" in printed
    assert "unit " in printed
    assert "1 failed" in printed
