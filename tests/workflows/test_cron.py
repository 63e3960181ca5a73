"""The times of schedules, also on days on which clocks change."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.workflows.cron import CronTimes, RepeatedTimes, iterate_back
from retinue.workflows.times import parse_time, render_time

SPRING = parse_time("2026-03-28T12:00:00+01:00")
"""In Berlin clocks jump from 2:00 to 3:00 in the night that follows."""

AUTUMN = parse_time("2026-10-24T12:00:00+02:00")
"""In Berlin the hour from 2:00 to 3:00 comes twice in the night that follows."""


def list_times(expression: str, begin: float, hours: int = 24, zone: str = "Europe/Berlin") -> list[str]:
    times, at, found = CronTimes(expression, zone), begin, []
    while (at := times.next_after(at)) <= begin + hours * 3600:
        found.append(render_time(at)[8:16])
    return found


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 2 * * *", "59 2 * * *"])
def test_a_time_that_is_missing_fires_once_when_clocks_are_set_forward(expression: str) -> None:
    assert list_times(expression, SPRING) == ["29T01:00"]


def test_all_times_of_a_missing_hour_are_one_with_the_next_hour() -> None:
    assert list_times("0,15,30 2,3 * * *", SPRING) == ["29T01:00", "29T01:15", "29T01:30"]


@pytest.mark.parametrize(
    ("expression", "times"),
    [("30 2 * * *", ["25T00:30"]), ("0 2,3 * * *", ["25T00:00", "25T02:00"])],
)
def test_a_time_that_comes_twice_fires_the_first_time_only(expression: str, times: list[str]) -> None:
    assert list_times(expression, AUTUMN) == times


def test_an_hour_that_comes_twice_fires_once_for_each_of_its_times() -> None:
    found = list_times("*/30 * * * *", AUTUMN + 11 * 3600, hours=6)
    assert found == [
        "24T21:30", "24T22:00", "24T22:30", "24T23:00", "24T23:30", "25T00:00", "25T00:30", "25T02:00",
        "25T02:30", "25T03:00",
    ]  # fmt: skip


def test_a_time_zone_whose_clocks_are_set_by_half_an_hour() -> None:
    begin = parse_time("2026-10-03T12:00:00Z")
    assert list_times("15 2 * * *", begin, zone="Australia/Lord_Howe") == ["03T15:30"]


def test_the_weekday_is_that_of_the_time_zone() -> None:
    assert list_times("0 0 * * mon", parse_time("2026-11-22T00:00:00Z"), 48, "Asia/Tokyo") == ["22T15:00"]


@settings(deadline=None, max_examples=60)
@given(
    expression=st.sampled_from(
        ["*/7 * * * *", "30 2 * * *", "0 */2 * * *", "15 1-3 * * *", "0 0 1 * *", "5 2 * * sun"]
    ),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "UTC", "Australia/Lord_Howe", "Asia/Kolkata"]),
    begin=st.floats(1_767_000_000, 1_800_000_000),
)
def test_forward_and_back_give_the_same_times(expression: str, zone: str, begin: float) -> None:
    times = CronTimes(expression, zone)
    forward, at = [], begin
    for _ in range(30):
        at = times.next_after(at)
        forward.append(at)
    assert forward == sorted(set(forward))
    assert list(iterate_back(times, forward[-1], begin)) == forward[::-1]
    assert times.last_until(forward[0]) == forward[0]


def test_repeated_times_count_from_the_beginning() -> None:
    times = RepeatedTimes(90, 1_000)
    assert [times.next_after(at) for at in (0, 1_000, 1_089, 1_090)] == [1_090, 1_090, 1_090, 1_180]
    assert list(islice(iterate_back(times, 1_271, 1_090), 9)) == [1_270, 1_180]
    assert list(iterate_back(times, 1_089, 1_000)) == []


@pytest.mark.parametrize(
    ("expression", "zone", "problem"),
    [
        ("0 3 * *", "UTC", "has 4 fields: write minute, hour"),
        ("@daily", "UTC", "has 1 fields"),
        ("61 * * * *", "UTC", "is no cron expression that ever happens"),
        ("0 0 30 2 *", "UTC", "is no cron expression that ever happens"),
        ("R * * * *", "UTC", "is no cron expression that ever happens"),
        ("H * * * *", "UTC", "is no cron expression that ever happens"),
        ("0 3 * * *", "Europe/Nowhere", "is no time zone: write its name"),
        ("0 3 * * *", "../../etc/passwd", "is no time zone"),
    ],
)
def test_wrong_expressions_and_zones_are_refused(expression: str, zone: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        CronTimes(expression, zone)
