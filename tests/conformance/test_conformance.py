"""The public conformance suites find nothing wrong, in any version and era that they know."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.conformance import RUNS, run
from tests.conformance.conftest import imported_agent
from tests.requirements import requirement

LEAST = {
    "0.1.16": 40,
    "0.2.0-alpha.12 for 2025-11-25": 73,
    "0.2.0-alpha.12 for 2026-07-28": 41,
    "0.2.0-alpha.12, all that 2026-07-28 requires": 120,
}
"""Checks that must have passed: a suite that checks nothing fails nothing either."""

UNSCORED = "0.2.0-alpha.12, all that 2026-07-28 requires"
"""It also runs, and does not count, scenarios of the tasks extension, which nobody declares here."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RUNS)
@requirement("S-16")
def test_a_public_suite_finds_nothing_wrong(suites: None, url: str, name: str) -> None:
    verdict = run(name, url)
    assert verdict.status == 0, verdict.output
    assert verdict.passed >= LEAST[name]
    if name != UNSCORED:
        assert verdict.failed == 0, verdict.output


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RUNS)
@requirement("S-16")
def test_a_public_suite_finds_nothing_wrong_in_front_of_an_imported_server(
    suites: None, tmp_path: Path, name: str
) -> None:
    with imported_agent(tmp_path) as url:
        verdict = run(name, url)
    assert verdict.status == 0, verdict.output
    assert verdict.passed >= LEAST[name]
    if name != UNSCORED:
        assert verdict.failed == 0, verdict.output
