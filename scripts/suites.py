"""Runs the test suites one after the other and says how long each took.

A suite is a folder; everything of ``tests`` outside these folders is ``unit``, so a new folder is never
forgotten. A suite whose folder does not exist yet is not there to be asked for.

Many tests start processes and have time limits. Up to ``MOST_REPEATED`` failed tests of a suite run once
more, alone: the suite passes if they pass then, and the summary names them as unstable.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "golden": "tests/seeds",
    "doors": "tests/doors",
    "processes": "tests/processes",
    "mcp": "tests/mcp",
    "testwriter": "packages/retinue-testwriter/tests",
    "docs": "tests/docs",
    "packages": "tests/packages",
    "registry": "tests/registry",
    "conformance": "tests/conformance",
    "interop": "tests/interop",
    "crash": "tests/crash",
    "browser": "tests/browser",
}
NO_TESTS_COLLECTED = 5
TESTS_FAILED = 1
MOST_REPEATED = 3


@dataclass
class SuiteResult:
    """What one run of pytest came to."""

    name: str
    seconds: float
    status: int
    counts: Counter[str] = field(default_factory=Counter)
    unstable: list[str] = field(default_factory=list)
    """Tests that failed first and passed alone."""


def list_suites() -> dict[str, list[str]]:
    """The suites that exist, each with pytest's arguments for it."""
    present = {name: folder for name, folder in FOLDERS.items() if (ROOT / folder).is_dir()}
    unit = ["tests", *(f"--ignore={folder}" for folder in present.values())]
    return {"unit": unit, **{name: [folder] for name, folder in present.items()}}


def count_outcomes(summary: str) -> Counter[str]:
    """The numbers of pytest's last line: ``3 passed, 1 skipped in 0.1s``."""
    found = re.findall(r"(\d+) (passed|failed|skipped|error)s?\b", summary)
    return Counter({kind: int(number) for number, kind in found})


def run_suite(name: str, arguments: list[str]) -> SuiteResult:
    """Run one suite, and its failed tests once more."""
    print(f"\n── {name} ──", flush=True)
    started = time.monotonic()
    status, counts, failed = _run_pytest(arguments)
    unstable: list[str] = []
    if status == TESTS_FAILED and 0 < len(failed) <= MOST_REPEATED:
        print(f"\n── {name}: {len(failed)} failed, once more ──", flush=True)
        status, repeated, _ = _run_pytest(failed)
        counts["failed"] = repeated["failed"] + repeated["error"]
        counts["error"] = 0
        counts["passed"] += repeated["passed"]
        unstable = failed if status == 0 else []
    return SuiteResult(name, time.monotonic() - started, status, +counts, unstable)


def _run_pytest(arguments: list[str]) -> tuple[int, Counter[str], list[str]]:
    """Status, numbers of the summary, and the ids of failed tests; the output passes through as it comes."""
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--durations=5", *colour, *arguments]
    last, failed = "", []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            plain = re.sub(r"\x1b\[[\d;]*m", "", line)
            last = plain if re.search(r"\bin [\d.]+s", plain) else last
            if found := re.match(r"(?:FAILED|ERROR) (\S+\.py::.*?)(?: - |$)", plain.rstrip("\n")):
                failed.append(found.group(1))
    return process.returncode, count_outcomes(last), failed


def main(arguments: list[str]) -> int:
    """Run all suites, or those named; the status is that of the worst."""
    suites = list_suites()
    parser = argparse.ArgumentParser(prog="suites")
    parser.add_argument("--only", action="append", help=f"one of {', '.join(suites)}")
    options, extra = parser.parse_known_args(arguments)
    chosen = options.only or list(suites)
    if unknown := [name for name in chosen if name not in suites]:
        print(f"no such suite: {', '.join(unknown)}; there are {', '.join(suites)}", file=sys.stderr)
        return 2
    results = [run_suite(name, [*suites[name], *extra]) for name in chosen]
    print()
    total: Counter[str] = Counter()
    for result in results:
        total += result.counts
        verdict = {0: "ok", NO_TESTS_COLLECTED: "NO TESTS"}.get(result.status, "FAILED")
        outcome = ", ".join(f"{number} {kind}" for kind, number in result.counts.items())
        print(f"{result.name:<12} {result.seconds:7.1f} s  {verdict:<8} {outcome}")
    print(f"{'total':<12} {sum(result.seconds for result in results):7.1f} s")
    for result in results:
        for test in result.unstable:
            print(f"unstable: {test}")
    failed = total["failed"] + total["error"]
    print(f"{total['passed']} passed, {failed} failed, {total['skipped']} skipped")
    return max(result.status for result in results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
