"""The quality of the demo's job on real modules: no empty strategy, no false failure, faults caught."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from retinue.processes.limited import ProgramLimits, run_command
from retinue_testwriter.drafting import make_file_name
from retinue_testwriter.notes import parse_code_notes
from retinue_testwriter.running import ModuleLocation, TestRun, run_tests
from testwriter.faults import choose_faults, copy_module
from testwriter.shared import write_tests

QUICK = ("html", "colorsys")
"""Checked in every run; the others in ``make soak``."""
MODULES = (
    *QUICK,
    "textwrap",
    "shlex",
    "json",
    "bisect",
    "statistics",
    "fractions",
    "inflection",
    "packaging.utils",
)
FAULTS = 3
CAUGHT_AT_LEAST = 6


async def check_module(module: str) -> str:
    """Write tests for a module and judge them as a user would; gives the test file."""
    output = await write_tests(module)
    code: str = output["code"]
    assert "nothing()" not in code
    assert output["failed"] == 0, output["review"]
    assert output["passed"] >= 4
    assert all(entry["why"] for entry in output["untestable"])
    assert all(entry["example"] for entry in output["counter_examples"])
    return code


def read_source(code: str) -> str:
    """The source of the module that a test file is about."""
    return Path(parse_code_notes(code)["source"]).read_text(encoding="utf-8")


def save(code: str, folder: Path) -> str:
    (folder / "test_alone.py").write_text(code, encoding="utf-8")
    return "test_alone.py"


async def run_alone(code: str, folder: Path) -> None:
    """Run a test file as its user does: pytest and the file, nothing of Retinue."""
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", save(code, folder)]
    result = await run_command(arguments, folder=folder, limits=ProgramLimits(wall_s=240, cpu_s=240))
    assert result.exit_code == 0, result.stdout.decode()


async def run_against_fault(code: str, module: str, folder: Path, source: str) -> TestRun:
    """Run the tests of a module against a copy of it with another source."""
    notes = parse_code_notes(code)
    copied = copy_module(module, Path(notes["source"]), Path(notes["root"]), folder, source)
    place = ModuleLocation(module, str(folder), str(copied), notes["runner"])
    return await run_tests(code, make_file_name(module), place, test_limit_s=4)


def list_failing(run: TestRun) -> set[str]:
    return {result.name for result in run.results if result.outcome != "passed"}


async def count_caught(code: str, module: str, folder: Path) -> int:
    """How many of the seeded faults the tests see.

    Hypothesis takes constants of local modules into its draws, so that a copy without a fault may show a
    counter-example that the original did not; what fails there counts for nothing. A pinned result must hold.
    """
    source = read_source(code)
    original = await run_against_fault(code, module, folder / "sound", source)
    assert original.results, original.problem
    sound = list_failing(original)
    assert not [name for name in sound if name.endswith("_pinned")]
    assert len(sound) <= 1
    caught = 0
    for number, fault in enumerate(choose_faults(source, FAULTS)):
        run = await run_against_fault(code, module, folder / f"fault-{number}", fault.source)
        # A module that its fault keeps from being imported is caught as well.
        caught += bool(run.problem or list_failing(run) - sound)
    return caught


@pytest.mark.timeout(600)
@pytest.mark.parametrize("module", QUICK)
async def test_the_tests_of_a_module_pass_alone_and_catch_a_fault(module: str, tmp_path: Path) -> None:
    code = await check_module(module)
    await run_alone(code, tmp_path)
    assert await count_caught(code, module, tmp_path) >= 1


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_ten_modules_get_sound_tests_that_catch_seeded_faults(tmp_path: Path) -> None:
    caught: dict[str, int] = {}
    for module in MODULES:
        code = await check_module(module)
        await run_alone(code, tmp_path)
        caught[module] = await count_caught(code, module, tmp_path / module)
    # A fault in a module counts as caught when most of those seeded there are.
    assert sum(count * 2 > FAULTS for count in caught.values()) >= CAUGHT_AT_LEAST, caught
