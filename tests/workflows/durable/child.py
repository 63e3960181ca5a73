"""A pytest of its own that runs tests over the durable driver, whose engine is one per process."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

from tests.workflows.implementations import VARIABLE

CHILD_S = 1_100.0
"""Each test of the child has a limit of its own: this one ends a child that does not end."""
ROOT = Path(__file__).resolve().parents[3]

Outcomes = dict[str, list[str]]
"""By test, the failures of its cases ('' for a case that passed)."""


def list_cases(modules: Iterable[ModuleType]) -> list[str]:
    """The tests of the modules, each as ``module.function``."""
    return [
        f"{module.__name__}.{name}"
        for module in modules
        for name, _ in inspect.getmembers(module, inspect.iscoroutinefunction)
        if name.startswith("test_")
    ]


def run_child(modules: Iterable[ModuleType], folder: Path) -> Outcomes:
    """Run the modules in a child; ``folder`` takes its report."""
    report = folder / "report.xml"
    files = [str(inspect.getfile(module)) for module in modules]
    # the child is no worker of the run that started it
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *files],
        cwd=ROOT,
        env={**environment, VARIABLE: "durable"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=CHILD_S,
        check=False,
    )
    assert report.exists(), child.stdout[-5000:]
    outcomes: Outcomes = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{str(case.get('name')).partition('[')[0]}"
        outcomes[name].append("\n".join(str(problem.text) for problem in case))
    return outcomes


def check_outcome(outcomes: Outcomes, case: str) -> None:
    """Fail as the case failed in the child."""
    assert outcomes[case], "the child did not run it"
    failures = [text for text in outcomes[case] if text]
    assert not failures, "\n".join(failures)
