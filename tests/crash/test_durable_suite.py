"""The suite of the durability ports over the durable driver, in a child process."""

from __future__ import annotations

import pytest

from tests.workflows.durable.child import Outcomes, check_outcome, list_cases, run_child
from tests.workflows.runs import (
    test_asking,
    test_cancelling,
    test_children,
    test_code,
    test_runs,
    test_size,
    test_thinking,
    test_timers,
    test_together,
)

pytestmark = pytest.mark.timeout(1_200)
MODULES = (
    test_runs,
    test_children,
    test_code,
    test_asking,
    test_cancelling,
    test_size,
    test_thinking,
    test_timers,
    test_together,
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run_child(MODULES, tmp_path_factory.mktemp("suite"))


@pytest.mark.parametrize("case", list_cases(MODULES))
def test_the_durable_driver_passes(case: str, outcomes: Outcomes) -> None:
    check_outcome(outcomes, case)
