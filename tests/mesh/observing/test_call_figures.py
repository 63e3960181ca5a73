"""Figures of agents: calls and failures that are theirs, from an earlier process and from events."""

from __future__ import annotations

import pytest

from retinue.core.record import Stats
from retinue.mesh.observing.call_figures import CallFigures, CallSummary


def test_figures_of_an_earlier_process_are_added() -> None:
    figures = CallFigures()
    figures.seed(
        [
            CallSummary("claude", "done", None, 147, 147 * 2500.0),
            CallSummary("claude", "failed", "execution_error", 3, 3 * 2500.0),
        ]
    )
    assert figures.find("claude") == Stats(150, 3, 2.5)
    assert figures.find("gemini") == Stats()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("refused", "validation_error"),
        ("failed", "validation_error"),
        ("failed", "cancelled"),
        ("failed", "circuit_open"),
        ("refused", "busy"),
        ("needs_input", "input_required"),
    ],
)
def test_what_is_not_the_agents_fault_does_not_count(status: str, error: str) -> None:
    figures = CallFigures()
    figures.seed([CallSummary("claude", status, error, 5, 10.0)])
    assert figures.find("claude").calls == 0


def test_a_new_agent_is_trusted_and_one_failure_does_not_condemn_it() -> None:
    figures = CallFigures()
    assert figures.trust("new") == 1.0
    figures.seed([CallSummary("once", "failed", "timeout", 1, 10.0)])
    figures.seed([CallSummary("often", "failed", "timeout", 90, 10.0)])
    assert figures.trust("once") > 0.9
    assert figures.trust("often") == pytest.approx(0.1)
