"""The suites of the tests, and a plugin of pytest that prints the tests and the seconds of each.

A suite is the tests of all folders of one name, in ``tests`` and in the distributions under ``packages``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import PurePosixPath

import pytest

UNIT = "unit"
"""The tests of every other folder, so a new one is never forgotten."""
FAST = {"seeds": "golden", "doors": "doors", "mcp": "mcp", "docs": "docs"}
"""By folder, the suites of ``make test`` that have a name of their own."""
SLOW = {
    name: name
    for name in (
        "processes",
        "sessions",
        "deploy",
        "testwriter",
        "packages",
        "registry",
        "conformance",
        "interop",
        "crash",
        "browser",
    )
}
"""By folder, the suites that start programs or work for long: what ``make test-all`` adds."""
LONG = (
    "tests/crash/test_durable_resuming.py",
    "tests/crash/test_durable_suite.py",
    "tests/crash/test_durable_own_suite.py",
    "tests/processes/test_guard_stdio.py",
    "tests/doors/test_guard_matrix.py",
    "tests/processes/test_http_flood.py",
    "tests/mcp/upstream/test_imports.py",
    "tests/cli/test_full_disk.py",
    "tests/crash/test_kills.py",
    "tests/crash/test_team_hub_kills.py",
    "tests/crash/test_team_up_kills.py",
    "tests/processes/test_team_rollout.py",
    "tests/processes/test_moved_servers.py",
    "tests/docs/sessions/test_guides.py",
    "tests/interop/test_think_demo.py",
    "tests/docs/sessions/test_readme.py",
    "tests/interop/frameworks/test_agent_frameworks.py",
    "tests/docs/sessions/test_agent_frameworks.py",
    "tests/crash/test_clock_steps.py",
    "tests/conformance/test_conformance.py",
    "packages/retinue-testwriter/tests/testwriter/test_job_quality.py",
    "tests/packages/test_interpreters.py",
    "tests/packages/test_release.py",
    "tests/packages/test_team_packages.py",
    "tests/crash/test_agent_kills.py",
    "tests/crash/test_nodes.py",
    "tests/processes/test_models_process.py",
    "tests/processes/test_import_process.py",
    "tests/processes/test_hub_in_background.py",
    "tests/crash/test_clock_logins.py",
    "tests/processes/test_a2a_process.py",
)
"""Files that take longest, begun first: otherwise one worker would end long after the others."""
SUITES = (UNIT, *FAST.values(), *SLOW.values())


def suite_of(path: str) -> str:
    """The suite of a test file or folder; ``path`` is relative to the root of the repository.

    The innermost folder that has the name of a suite decides: ``tests/docs/sessions`` is in ``sessions``.
    """
    parts = PurePosixPath(path).parts
    below = parts[parts.index("tests") + 1 :]
    return next(({**FAST, **SLOW}[part] for part in reversed(below) if part in FAST or part in SLOW), UNIT)


class SuiteTimes:
    """Adds up the reports of all workers."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        suite = suite_of(report.nodeid.partition("::")[0])
        self._seconds[suite] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[suite][report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("suites, and the seconds of their tests one after the other")
        for suite in SUITES:
            if outcomes := self._outcomes.get(suite):
                numbers = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
                terminalreporter.write_line(f"{suite:<12} {self._seconds[suite]:7.1f} s  {numbers}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first, in the order of ``LONG``."""
    places = {path: place for place, path in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(LONG)))


def pytest_configure(config: pytest.Config) -> None:
    """Register where the results of all workers come together."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SuiteTimes())
