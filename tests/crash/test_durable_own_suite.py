"""The durable driver's own suite and that of stored runs, in a child process."""

from __future__ import annotations

import pytest

from tests.workflows.durable import own_suite, stored_suite
from tests.workflows.durable.child import Outcomes, check_outcome, list_cases, run_child

pytestmark = pytest.mark.timeout(1_200)
MODULES = (own_suite, stored_suite)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run_child(MODULES, tmp_path_factory.mktemp("suite"))


@pytest.mark.parametrize("case", list_cases(MODULES))
def test_the_durable_driver_passes(case: str, outcomes: Outcomes) -> None:
    check_outcome(outcomes, case)
