"""Runs one test file with pytest and records each test and the coverage of the module under test.

Run as ``python -I -B run_tests.py REQUEST RESULTS`` (two files) in a limited subprocess. Results are JSON
lines, with a ``start`` before each test, which identifies a test that kills or hangs the process.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import loading  # type: ignore[import-not-found]
import pytest
from guard import Guard  # type: ignore[import-not-found]

sys.path.pop(0)  # a module under test may have the name of a script in this folder

try:
    from hypothesis import given, settings
    from hypothesis import strategies as st
except ImportError:  # a test file need not use it
    st = None  # type: ignore[assignment]


class TestTooSlow(BaseException):
    """A test exceeded its time limit."""


def ring(_number: Any, _frame: Any) -> None:
    raise TestTooSlow


class Recorder:
    """A pytest plugin that writes the events."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], request: dict[str, Any], guard: Any) -> None:
        self.tell = tell
        self.request = request
        self.guard = guard

    def pytest_collection_modifyitems(self, items: Any) -> None:
        skipped = set(self.request["skip"])
        items[:] = [item for item in items if item.name not in skipped]
        self.tell({"event": "collected", "tests": [item.name for item in items]})

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tell({"event": "uncollectable", "why": str(report.longreprtext)[-1500:]})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        self.tell({"event": "start", "test": item.name})
        signal.signal(signal.SIGALRM, ring)
        signal.signal(signal.SIGPROF, ring)
        # CPU time gives the same result on a busy machine; the wall-clock limit catches a test that sleeps
        signal.setitimer(signal.ITIMER_PROF, self.request["test_limit_s"])
        signal.setitimer(signal.ITIMER_REAL, 4 * self.request["test_limit_s"])
        self.guard.raised = True
        started = time.monotonic()
        result = {"event": "end", "test": item.name, "outcome": "passed"}
        try:
            outcome = yield
        except TestTooSlow:
            result.update(outcome="slow")
            raise RuntimeError("slow") from None
        except pytest.skip.Exception:
            result.update(outcome="skipped")
            raise
        except BaseException as error:
            if self.guard.refusal:
                raise RuntimeError("refused") from None
            result.update(outcome="failed", failures=self.list_failures(error))
            raise
        else:
            return outcome
        finally:
            if self.guard.refusal and result["outcome"] != "slow":  # the test may have handled the refusal
                result.update(outcome="refused", message=self.guard.refusal)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.guard.raised = False
            result["duration_s"] = round(time.monotonic() - started, 3)
            self.tell(result)

    def list_failures(self, error: Any) -> list[dict[str, Any]]:
        """The failures of a test, one for each distinct failure that Hypothesis found."""
        leaves = [error]
        while any(hasattr(leaf, "exceptions") for leaf in leaves):
            leaves = [part for leaf in leaves for part in getattr(leaf, "exceptions", [leaf])]
        return [self.describe_failure(leaf, getattr(error, "__notes__", ())) for leaf in leaves[:5]]

    def describe_failure(self, error: Any, outer_notes: Any) -> dict[str, Any]:
        notes = [*getattr(error, "__notes__", ()), *outer_notes]
        # "Falsifying example: test_x(a=1)" in older versions, "Failing test case: test_x(a=1)" in newer ones.
        example = next((note for note in notes if note.startswith(("Falsifying", "Failing test case"))), "")
        line = 0
        for frame, number in traceback.walk_tb(error.__traceback__):
            if Path(frame.f_code.co_filename).name == self.request["file"]:
                line = number
        module = type(error).__module__
        name = type(error).__name__ if module == "builtins" else module + "." + type(error).__name__
        return {
            "exception": name,
            "message": str(error).strip()[:600],
            "example": tidy(example),
            "statement": self.find_statement(line),
        }

    def find_statement(self, line: int) -> str:
        """The whole statement around a line of the test file."""
        source = Path(self.request["file"]).read_text(encoding="utf-8")
        around = [
            node
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        return ast.unparse(max(around, key=lambda node: node.lineno)) if around else ""


def tidy(example: str) -> str:
    """The arguments of a falsifying example on one line, without Hypothesis's remarks."""
    lines = [line.split("  # or any other")[0].strip() for line in example.splitlines()]
    kept = " ".join(line for line in lines if line and not line.startswith("# "))
    return kept.partition("(")[2].rpartition(")")[0].strip().rstrip(",")[:1200]


def measure(request: dict[str, Any], cover: Any) -> dict[str, Any] | None:
    """How many statements in the bodies of the module's functions ran."""
    if cover is None or not request["source"]:
        return None
    cover.stop()
    _name, _statements, _excluded, missing, _formatted = cover.analysis2(request["source"])
    tree = ast.parse(Path(request["source"]).read_bytes())
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for inner in ast.walk(node):
                if isinstance(inner, ast.stmt) and inner is not node and not is_text(inner):
                    inside.add(inner.lineno)
    counted = inside & set(_statements)
    ran = counted - set(missing)
    return {
        "event": "coverage",
        "statements": len(counted),
        "ran": len(ran),
        "missing": sorted(counted - ran),
    }


def is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def warm_up() -> None:
    """Let Hypothesis build its character tables now, not in the first test under coverage."""
    if st is not None:
        settings(max_examples=1, database=None)(
            given(st.text() | st.from_regex("[a-z]"))(lambda text: None)
        )()


def start_coverage(request: dict[str, Any]) -> Any:
    try:
        import coverage
    except ImportError:
        return None
    if not request["source"]:
        return None
    cover = coverage.Coverage(data_file=None, include=[request["source"]], config_file=False)
    cover.start()
    return cover


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with Path(sys.argv[2]).open("a", encoding="utf-8") as results:

        def tell(report: dict[str, Any]) -> None:
            results.write(json.dumps(report) + "\n")
            results.flush()

        sys.path += [entry for entry in request["appended"] if entry not in sys.path]
        warm_up()
        guard = Guard(str(Path.cwd()))
        cover = start_coverage(request)
        if request["module"]:
            try:
                loading.load(request["module"], request["root"], request["source"])
            except BaseException as error:  # noqa: BLE001  (importing runs the module's own code)
                tell({"event": "unloadable", "why": type(error).__name__ + ": " + str(error)[:300]})
                return
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--noconftest", "-c", os.devnull]
        options += ["--rootdir", ".", "-W", "ignore", "--tb=short", request["file"]]
        code = pytest.main(options, plugins=[Recorder(tell, request, guard)])
        report = measure(request, cover)
        if report:
            tell(report)
        tell({"event": "finished", "code": int(code)})


if __name__ == "__main__":
    main()
