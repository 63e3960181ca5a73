"""Runs the tests: those of ``make test``, the rest of ``make test-all``, both, or single suites.

A run is one pytest with ``WORKERS`` workers; each takes whole files, because the tests of a file share what
they start. A failed test is not run again.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from scripts.suite_times import FAST, SLOW, SUITES, suite_of

ROOT = Path(__file__).resolve().parent.parent
END_TO_END = (
    "tests/processes/test_first_agent.py::test_new_serve_call",
    "tests/processes/test_guard_stdio.py"
    "::test_a_loop_that_is_entered_over_stdio_is_refused_at_hop_six[MCP over stdio]",
    "tests/processes/test_access_process.py"
    "::test_an_agent_of_another_state_joins_by_a_token_and_is_called_through_the_hub",
    "tests/processes/test_http_flood.py"
    "::test_a_flood_of_the_stream_of_changes_is_read_slowly_and_marked_until_it_ends[comments]",
    "tests/processes/test_hub_process.py::test_a_killed_agent_is_started_again_by_its_supervisor",
    "tests/crash/test_team_hub_kills.py::test_a_hub_that_is_killed_at_a_stage_goes_on_when_it_is_there_again[start]",
    "tests/crash/test_team_up_kills.py::test_after_up_is_killed_at_a_stage_the_same_up_succeeds[unpack]",
    "tests/crash/test_thinking.py::test_a_loop_ends_as_undisturbed_whoever_of_its_processes_is_killed",
    "tests/interop/test_mcp_relay.py::test_a_client_lists_reads_and_calls_as_if_nobody_stood_between",
    "tests/interop/test_a2a_sdk.py::test_the_sdks_client_calls_every_skill_of_the_hub",
    "tests/registry/test_everywhere.py::test_an_agent_that_is_found_there_is_called",
)
"""The tests of slow suites that ``make test`` runs: one real run of each kind."""
WORKERS = 4
"""Two more than the cores of a small machine, because tests wait for processes, files and clocks.

With one more, a quarter of the processor time was idle.
"""
SLOWEST = 20
FEW = 50
"""As many changed test files are compiled by the workers without a loss of time."""


def list_suites(root: Path = ROOT) -> dict[str, list[str]]:
    """The suites that have tests, each with its folders and files relative to ``root``."""
    suites: dict[str, list[str]] = {}
    for folder in [root / "tests", *sorted((root / "packages").glob("*/tests"))]:
        for path in _list_places(folder):
            place = path.relative_to(root).as_posix()
            suites.setdefault(suite_of(place), []).append(place)
    return {name: suites[name] for name in SUITES if name in suites}


def _list_places(folder: Path) -> Iterator[Path]:
    """The largest folders whose tests are of one suite, and the files between them."""
    for path in sorted(folder.iterdir()):
        if path.match("test_*.py"):
            yield path
        elif path.is_dir() and any(path.rglob("test_*.py")):
            if any(inner.name in FAST or inner.name in SLOW for inner in path.rglob("*") if inner.is_dir()):
                yield from _list_places(path)
            else:
                yield path


def choose_runs(which: str, root: Path = ROOT) -> dict[str, list[str]]:
    """By the name of a run, pytest's arguments; ``which`` is ``test``, ``rest``, ``all`` or a suite."""
    suites = list_suites(root)
    if which in suites:
        return {which: suites[which]}
    fast = [place for name, places in suites.items() if name not in SLOW for place in places]
    slow = [place for name, places in suites.items() if name in SLOW for place in places]
    runs = {
        "test": [*fast, *END_TO_END],
        "rest": [*slow, *(f"--deselect={test}" for test in END_TO_END)],
    }
    return runs if which == "all" else {which: runs[which]}


def cache_bytecode(places: Sequence[str], environment: Mapping[str, str], root: Path = ROOT) -> None:
    """Compile the sources and the test files below ``places``, each of them once.

    Each worker collects all files and each program that a test starts imports the sources. In a fresh clone
    every one of them would compile the same files at the same moment.
    """
    for folder in ("src", *(package.relative_to(root).as_posix() for package in root.glob("packages/*/src"))):
        compileall.compile_dir(root / folder, quiet=2, workers=0)
    files = sorted(
        (file for file in list_files(places, root) if not _has_cache(file)),
        key=lambda file: file.stat().st_size,
    )
    if len(files) < FEW:
        return
    shares = [files[first::WORKERS] for first in range(WORKERS)]
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only"]
    processes = [
        subprocess.Popen([*command, *map(str, share)], cwd=root, env=environment, stdout=subprocess.DEVNULL)
        for share in shares
        if share
    ]
    for process in processes:
        process.wait()


def list_files(places: Sequence[str], root: Path = ROOT) -> Iterator[Path]:
    """The test files of pytest's arguments: files, folders, single tests; options are left out."""
    for place in places:
        path = root / place.partition("::")[0]
        if not place.startswith("-"):
            yield from path.rglob("test_*.py") if path.is_dir() else [path]


def _has_cache(file: Path) -> bool:
    """Whether pytest has stored the compiled form of this content of the file."""
    tag = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}"
    cache = file.parent / "__pycache__" / f"{file.stem}.{tag}.pyc"
    with contextlib.suppress(FileNotFoundError):
        return cache.stat().st_mtime >= file.stat().st_mtime
    return False


def run_pytest(name: str, arguments: Sequence[str], root: Path = ROOT) -> tuple[int, float]:
    """Run pytest with its workers; gives its status and the seconds it took."""
    print(f"── {name} ──", flush=True)
    started = time.monotonic()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    cache_bytecode(arguments, environment, root)
    workers = [f"-n{WORKERS}", "--dist=loadfile", "--no-loadscope-reorder"]
    options = ["-q", *workers, f"--durations={SLOWEST}", "-p", "scripts.suite_times"]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    status = subprocess.run(command, cwd=root, env=environment, check=False).returncode
    return status, time.monotonic() - started


def main(arguments: list[str]) -> int:
    """Do the runs asked for; the status is that of the worst."""
    names = ["test", "rest", "all", *list_suites()]
    parser = argparse.ArgumentParser(prog="suites", epilog="other arguments are pytest's")
    parser.add_argument("which", choices=names)
    options, extra = parser.parse_known_args(arguments)
    results = {
        name: run_pytest(name, [*chosen, *extra]) for name, chosen in choose_runs(options.which).items()
    }
    for name, (status, seconds) in results.items():
        print(f"{name}: {'ok' if status == 0 else 'FAILED'}, {seconds:.0f} s")
    return max(status for status, _ in results.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
