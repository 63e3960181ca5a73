"""The suite of the durability ports over the durable driver, and its own, in a child process."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.workflows.durable import own_suite, stored_suite
from tests.workflows.implementations import VARIABLE
from tests.workflows.runs import (
    test_asking,
    test_cancelling,
    test_children,
    test_resuming,
    test_runs,
    test_size,
)

CHILD_S = 1_100.0
"""Each test of the child has a limit of its own: this one ends a child that does not end."""

pytestmark = pytest.mark.timeout(1_200)
ROOT = Path(__file__).resolve().parents[3]
MODULES = (
    test_runs,
    test_children,
    test_asking,
    test_cancelling,
    test_resuming,
    test_size,
    own_suite,
    stored_suite,
)
CASES = [
    f"{module.__name__}.{name}"
    for module in MODULES
    for name, _ in inspect.getmembers(module, inspect.iscoroutinefunction)
    if name.startswith("test_")
]

Outcomes = dict[str, list[str]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What the child reports: by test, the failures of its cases ('' for a case that passed)."""
    report = tmp_path_factory.mktemp("suite") / "report.xml"
    files = [str(inspect.getfile(module)) for module in MODULES]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *files],
        cwd=ROOT,
        env={**os.environ, VARIABLE: "durable"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=CHILD_S,
        check=False,
    )
    assert report.exists(), child.stdout[-5000:]
    found: Outcomes = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{str(case.get('name')).partition('[')[0]}"
        found[name].append("\n".join(str(problem.text) for problem in case))
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_durable_driver_passes(case: str, outcomes: Outcomes) -> None:
    assert outcomes[case], "the child did not run it"
    failures = [text for text in outcomes[case] if text]
    assert not failures, "\n".join(failures)
