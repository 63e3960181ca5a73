from __future__ import annotations

import json
from pathlib import Path

import pytest

from retinue.processes.limited import ProgramLimits
from retinue_testwriter.running import ModuleLocation, run_tests

TESTS = """
import os
import pytest
from hypothesis import given, settings, strategies as st

def test_good():
    assert True

@settings(derandomize=True, database=None)
@given(a=st.integers(), b=st.booleans())
def test_small(a, b):
    assert a < 10

@pytest.mark.parametrize("n", [1, 2])
def test_raises(n):
    {}["missing"]

def test_deletes():
    os.remove("/etc/hostname")

def test_exits():
    os._exit(3)

def test_last():
    assert True
"""


async def test_reports_every_test_with_its_failures() -> None:
    run = await run_tests(TESTS, "test_it.py", ModuleLocation())
    results = {result.name: result for result in run.results}
    assert {name: result.outcome for name, result in results.items()} == {
        "test_good": "passed",
        "test_small": "failed",
        "test_raises[1]": "failed",
        "test_raises[2]": "failed",
        "test_deletes": "refused",
        "test_exits": "killed",
        "test_last": "passed",
    }
    small = results["test_small"].failures[0]
    assert (small.exception, small.statement) == ("AssertionError", "assert a < 10")
    assert small.example == "a=10, b=False"
    assert results["test_raises[1]"].failures[0].statement == "{}['missing']"


async def test_a_test_that_never_ends_is_stopped() -> None:
    code = "def test_endless():\n    while True: pass\n\ndef test_good():\n    assert True\n"
    run = await run_tests(code, "test_it.py", ModuleLocation(), test_limit_s=0.3)
    assert [(result.name, result.outcome) for result in run.results] == [
        ("test_endless", "slow"),
        ("test_good", "passed"),
    ]


async def test_a_test_that_ignores_its_limit_is_killed_and_the_others_run() -> None:
    code = (
        "import signal\n"
        "def test_stubborn():\n"
        "    signal.signal(signal.SIGPROF, signal.SIG_IGN)\n"
        "    signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "    while True: pass\n\n"
        "def test_good():\n    assert True\n"
    )
    run = await run_tests(code, "test_it.py", ModuleLocation(), ProgramLimits(wall_s=60, cpu_s=6))
    assert {result.name: result.outcome for result in run.results} == {
        "test_stubborn": "killed",
        "test_good": "passed",
    }


async def test_a_file_that_cannot_be_imported_is_a_problem() -> None:
    run = await run_tests("import no_such_thing\ndef test_a(): pass\n", "test_it.py", ModuleLocation())
    assert "no_such_thing" in run.problem


async def test_a_module_under_test_that_cannot_be_imported_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('at import')\n")
    place = ModuleLocation("broken", str(tmp_path), str(tmp_path / "broken.py"))
    run = await run_tests("def test_a(): pass\n", "test_it.py", place)
    assert run.problem == "RuntimeError: at import"


@pytest.mark.parametrize("name", ["json", "guard", "loading", "mine"])
async def test_the_named_source_is_what_runs_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(
        "def pick(n):\n    if n:\n        return 'mine'\n    return 'none'\n"
    )
    place = ModuleLocation(name, str(tmp_path), str(tmp_path / f"{name}.py"))
    code = f"import {name}\ndef test_mine():\n    assert {name}.pick(1) == 'mine'\n"
    run = await run_tests(code, "test_it.py", place)
    assert [result.outcome for result in run.results] == ["passed"]
    # Three statements in the function, one of which did not run.
    assert run.coverage_percent == pytest.approx(200 / 3)
    assert run.missing_lines == (4,)


def test_a_place_is_read_from_notes_and_survives_nonsense() -> None:
    notes = {"module": "m", "root": "/r", "source": "/r/m.py", "runner": "/p", "appended": ["/x"]}
    assert ModuleLocation.from_notes(json.loads(json.dumps(notes))) == ModuleLocation(
        "m", "/r", "/r/m.py", "/p", ("/x",)
    )
    assert ModuleLocation.from_notes({"module": None, "appended": 3}) == ModuleLocation()
