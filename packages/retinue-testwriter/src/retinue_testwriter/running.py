"""Runs a test file under limits with ``inside/run_tests.py`` and reads the result of each test."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from retinue.core.errors import ExecutionFailedError
from retinue.processes.limited import ProgramLimits, run_command
from retinue_testwriter.inspection import describe_end

LIMITS = ProgramLimits(wall_s=120, cpu_s=120, memory_bytes=1536 * 1024**2, processes=8, must_bind=True)
TEST_LIMIT_S = 10.0
_RESTARTS = 4

Result = Literal["passed", "failed", "slow", "refused", "skipped", "killed"]


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of a test: the exception, the statement that raised it, and the arguments."""

    exception: str
    message: str = ""
    example: str = ""
    statement: str = ""


@dataclass(frozen=True, slots=True)
class TestResult:
    """The result of one test; ``message`` is the reason if it was killed or refused."""

    __test__ = False

    name: str
    outcome: Result
    duration_s: float = 0.0
    message: str = ""
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class TestRun:
    """A run of a test file: results, coverage of the module's function bodies, the problem if it failed."""

    __test__ = False

    results: tuple[TestResult, ...]
    coverage_percent: float | None = None
    missing_lines: tuple[int, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ModuleLocation:
    """The location of the module under test, as in the notes of the test file; "" if unknown."""

    module: str = ""
    root: str = ""
    source: str = ""
    python: str = ""
    appended: tuple[str, ...] = ()

    @classmethod
    def from_notes(cls, notes: Mapping[str, Any]) -> ModuleLocation:
        """The place in the notes of a test file."""
        appended = notes.get("appended")
        return cls(
            module=str(notes.get("module") or ""),
            root=str(notes.get("root") or ""),
            source=str(notes.get("source") or ""),
            python=str(notes.get("runner") or ""),
            appended=tuple(str(entry) for entry in appended) if isinstance(appended, list) else (),
        )


async def run_tests(
    code: str,
    file_name: str,
    place: ModuleLocation,
    limits: ProgramLimits = LIMITS,
    *,
    test_limit_s: float = TEST_LIMIT_S,
) -> TestRun:
    """Run the tests in a new folder; a test that kills the process is reported, and the others run again.

    ``test_limit_s`` is the CPU time of one test.
    """
    results: list[TestResult] = []
    skip: list[str] = []
    coverage: Mapping[str, Any] = {}
    for _ in range(_RESTARTS):
        events, ended = await _run_once(code, file_name, place, skip, limits, test_limit_s)
        started = ""
        for event in events:
            if event["event"] in ("unloadable", "uncollectable"):
                return TestRun((), problem=event["why"])
            if event["event"] == "start":
                started = event["test"]
            elif event["event"] == "end":
                started = ""
                results.append(_read_result(event))
            elif event["event"] == "coverage":
                coverage = event
        skip = [result.name for result in results]
        if started:
            results.append(TestResult(started, "killed", message=ended))
            skip.append(started)
        elif not any(event["event"] == "finished" for event in events):
            raise ExecutionFailedError(f"the tests could not be run: {ended}")
        else:
            break
    # no line ran: a compiled module was imported in place of the source, so there is no coverage
    measured = bool(coverage.get("statements")) and bool(coverage.get("ran"))
    percent = 100 * coverage["ran"] / coverage["statements"] if measured else None
    return TestRun(tuple(results), percent, tuple(coverage.get("missing", ())))


def _read_result(event: Mapping[str, Any]) -> TestResult:
    return TestResult(
        name=event["test"],
        outcome=event["outcome"],
        duration_s=event["duration_s"],
        message=event.get("message", ""),
        failures=tuple(Failure(**failure) for failure in event.get("failures", ())),
    )


async def _run_once(
    code: str,
    file_name: str,
    place: ModuleLocation,
    skip: Sequence[str],
    limits: ProgramLimits,
    test_limit_s: float,
) -> tuple[list[dict[str, Any]], str]:
    with (
        tempfile.TemporaryDirectory(prefix="retinue-tests-") as name,
        resources.as_file(resources.files("retinue_testwriter.inside")) as inside,
    ):
        folder = Path(name)
        (folder / file_name).write_text(code, encoding="utf-8", errors="surrogatepass")
        (folder / "request.json").write_text(
            json.dumps(
                {
                    "file": file_name,
                    "module": place.module,
                    "root": place.root,
                    "source": place.source,
                    "appended": list(place.appended),
                    "skip": list(skip),
                    "test_limit_s": test_limit_s,
                }
            ),
            encoding="utf-8",
        )
        python = place.python or sys.executable
        result = await run_command(
            [python, "-I", "-B", str(inside / "run_tests.py"), "request.json", "results.jsonl"],
            folder=folder,
            limits=limits,
            environment={"PYTHONHASHSEED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        results = folder / "results.jsonl"
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")], describe_end(result)
