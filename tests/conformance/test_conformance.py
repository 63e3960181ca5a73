"""The public conformance suites find nothing wrong, in any version and era that they know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.conformance import RUNS, run
from tests.conformance.conftest import IMPORTS, imported, plain_server
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RUNS)
@requirement("S-16")
def test_a_public_suite_finds_nothing_wrong(suites: None, url: str, name: str) -> None:
    verdict = run(name, url)
    assert verdict.status == 0, verdict.output
    assert verdict.passed >= LEAST[name]
    if name != UNSCORED:
        assert verdict.failed == 0, verdict.output


IMPORTED = [
    (server, name) for server in IMPORTS for name in RUNS if (server, name) != ("plain server", UNSCORED)
]
"""Imported servers and suites. The one left out is compared with the server itself below."""


@pytest.fixture(scope="module")
def imported_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with IMPORTS[request.param](tmp_path_factory.mktemp("conformance")) as found:
        yield found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("imported_url", "name"), IMPORTED, indirect=["imported_url"])
@requirement("S-16")
def test_a_public_suite_finds_nothing_wrong_in_front_of_an_imported_server(
    suites: None, imported_url: str, name: str
) -> None:
    verdict = run(name, imported_url)
    assert verdict.status == 0, verdict.output
    assert verdict.passed >= LEAST[name]
    if name != UNSCORED:
        assert verdict.failed == 0, verdict.output


@pytest.mark.timeout(600)
@requirement("S-16")
def test_no_scenario_scored_or_not_fails_in_front_of_a_server_that_the_server_itself_passes(
    suites: None, tmp_path: Path
) -> None:
    with plain_server(tmp_path) as url, imported(tmp_path, url) as through_hub:
        direct, relayed = run(UNSCORED, url), run(UNSCORED, through_hub)
    assert relayed.status == 0, relayed.output
    assert failures(relayed.output) <= failures(direct.output), relayed.output
    assert relayed.passed >= direct.passed >= LEAST[UNSCORED]


def failures(output: str) -> set[str]:
    """The failed scenarios in the summary of a run, with their numbers of checks."""
    _, _, summary = output.partition("=== SUMMARY ===")
    return {line for line in summary.splitlines() if line.startswith("✗ ")}
