"""Durations are written for people."""

from __future__ import annotations

import pytest

from retinue.core.durations import render_duration, render_elapsed
from retinue.core.errors import BusyError, CallTimedOutError


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.05, "0.05 s"),
        (1.5, "1.5 s"),
        (59.94, "59.9 s"),
        (59.99, "1 min"),
        (60, "1 min"),
        (90, "1 min 30 s"),
        (300, "5 min"),
        (3599.7, "1 h"),
        (28_800, "8 h"),
        (5400, "1 h 30 min"),
        (86_399, "1 d"),
        (590_400, "6 d 20 h"),
        (604_800, "7 d"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, text: str) -> None:
    assert render_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0004, "0.0 s"), (22, "22.0 s"), (59.97, "1 min"), (28_800, "8 h")]
)
def test_a_measured_duration_has_tenths_of_seconds(seconds: float, text: str) -> None:
    assert render_elapsed(seconds) == text


def test_errors_tell_durations_that_way() -> None:
    error = CallTimedOutError("step a", 28_800, layer="workflow", setting="settings.max_duration")
    assert error.message == "step a did not answer within 8 h (workflow)"
    assert error.data["timeout_s"] == 28_800
    assert BusyError("full", 90).remedy == "try again in 1 min 30 s"
