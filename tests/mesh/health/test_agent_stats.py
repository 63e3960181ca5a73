"""What is measured of an agent, what fades, and the health that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from retinue.core.record import Stats
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.kept_stats import keep_stats
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.health.agent_stats import FADE_S, SLOW_MIN_CALLS, AgentStats, AgentStatsTable, report_health
from retinue.mesh.health.breaker import FAILURES_TO_UNREACHABLE
from retinue.mesh.health.probe_schedule import FIRST_WAIT_S, ProbeSchedule
from tests.mesh.scripted import FakeClock, ScriptedLookup, make_listing, unreachable
from tests.requirements import requirement

SKILL = "create_plan"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def stats(clock: FakeClock) -> AgentStats:
    return AgentStats(clock)


def answer(stats: AgentStats, latency_s: float = 0.1, *, times: int = 1) -> None:
    for _ in range(times):
        stats.call_started()
        stats.answered(SKILL, latency_s)


def fail(stats: AgentStats, *, times: int = 1) -> None:
    for _ in range(times):
        stats.call_started()
        stats.failed(SKILL, 0.1)


def health(stats: AgentStats) -> str:
    return stats.health


def lose(stats: AgentStats, *, certain: bool = False) -> None:
    stats.call_started()
    stats.lost(unreachable("a", sent=not certain), certain=certain)


@pytest.mark.parametrize(
    "end",
    [
        lambda stats: stats.answered(SKILL, 0.1),
        lambda stats: stats.failed(SKILL, 0.1),
        lambda stats: stats.refused(),
        lambda stats: stats.timed_out(SKILL, 9.0),
        lambda stats: stats.lost(unreachable("a"), certain=True),
        lambda stats: stats.abandoned(),
    ],
)
def test_however_a_call_ends_it_is_in_flight_no_more(
    stats: AgentStats, end: Callable[[AgentStats], None]
) -> None:
    stats.call_started()
    stats.call_started()
    end(stats)
    assert stats.in_flight == 1


def test_an_agent_that_was_never_asked_is_unknown_and_costs_nothing(stats: AgentStats) -> None:
    assert health(stats) == "unknown"
    assert stats.cost(SKILL) == 0
    assert stats.snapshot() == Stats()


def test_calls_failures_and_the_mean_latency_are_counted(stats: AgentStats) -> None:
    answer(stats, 0.1)
    answer(stats, 0.3)
    fail(stats)
    lose(stats)
    seen = stats.snapshot()
    assert (seen.calls, seen.failures) == (4, 2)
    assert seen.mean_latency_s == pytest.approx(0.5 / 3)


def test_a_refused_call_and_one_that_its_caller_gave_up_count_neither_way(stats: AgentStats) -> None:
    stats.call_started()
    stats.refused()
    stats.call_started()
    stats.abandoned()
    assert stats.snapshot() == Stats()
    assert health(stats) == "healthy"


# what a further call would cost


def test_cost_grows_with_latency_and_with_calls_in_flight(clock: FakeClock) -> None:
    fast, slow = AgentStats(clock), AgentStats(clock)
    answer(fast, 0.1)
    answer(slow, 0.3)
    assert fast.cost(SKILL) < slow.cost(SKILL)
    for _ in range(4):
        fast.call_started()
    assert fast.cost(SKILL) > slow.cost(SKILL)


def test_each_skill_has_a_latency_of_its_own(stats: AgentStats) -> None:
    answer(stats, 10.0)
    assert stats.cost("other") == 0


def test_a_new_agent_is_tried_with_one_call_at_first(clock: FakeClock) -> None:
    new, known = AgentStats(clock), AgentStats(clock)
    answer(known, 2.0)
    assert new.cost(SKILL) < known.cost(SKILL)
    new.call_started()
    assert new.cost(SKILL) > known.cost(SKILL)


def test_fast_failures_do_not_draw_calls(clock: FakeClock) -> None:
    failing, working = AgentStats(clock), AgentStats(clock)
    for _ in range(3):
        failing.call_started()
        failing.failed(SKILL, 0.01)
    answer(working, 0.04)
    assert failing.cost(SKILL) > working.cost(SKILL)


def test_an_agent_that_was_slow_once_is_tried_again_in_time(clock: FakeClock) -> None:
    slow, fast = AgentStats(clock), AgentStats(clock)
    answer(slow, 1.0)
    for _ in range(10):
        clock.pass_time(FADE_S / 2)
        answer(fast, 0.01)
        if slow.cost(SKILL) < fast.cost(SKILL):
            return
    pytest.fail("never tried again")


def test_an_agent_that_nobody_reached_is_no_new_agent_until_that_has_faded(
    clock: FakeClock, stats: AgentStats
) -> None:
    for _ in range(3):
        lose(stats)
    assert stats.cost(SKILL) > 0
    clock.pass_time(FADE_S * 2)
    assert stats.cost(SKILL) == 0


# the health that follows


@requirement("P-30")
def test_answers_with_errors_degrade_an_agent_and_fade(clock: FakeClock, stats: AgentStats) -> None:
    fail(stats, times=3)
    assert health(stats) == "healthy"
    fail(stats)
    assert health(stats) == "degraded"
    assert stats.condition.reason == "most of its last calls failed"
    clock.pass_time(FADE_S * 2)
    assert health(stats) == "healthy"
    assert stats.condition.reason is None


def test_calls_that_succeed_make_a_failing_agent_healthy(stats: AgentStats) -> None:
    fail(stats, times=10)
    answer(stats, times=2)
    assert health(stats) == "degraded"
    answer(stats, times=10)
    assert health(stats) == "healthy"


def test_failing_calls_never_make_an_agent_unreachable(stats: AgentStats) -> None:
    fail(stats, times=100)
    assert health(stats) == "degraded"


def test_time_outs_count_where_the_agent_had_enough_time(stats: AgentStats) -> None:
    answer(stats, 0.5)
    for _ in range(10):
        stats.call_started()
        stats.timed_out(SKILL, 0.01)
    assert health(stats) == "healthy"
    for _ in range(4):
        stats.call_started()
        stats.timed_out(SKILL, 5.0)
    assert health(stats) == "degraded"


def test_an_agent_that_has_never_answered_in_time_is_degraded_too(stats: AgentStats) -> None:
    for _ in range(4):
        stats.call_started()
        stats.timed_out(SKILL, 5.0)
    assert health(stats) == "degraded"
    assert stats.condition.reason == "most of its last calls failed: the last had no answer in time"


def test_an_agent_that_became_much_slower_is_degraded_until_it_is_not(stats: AgentStats) -> None:
    answer(stats, 0.2, times=SLOW_MIN_CALLS * 5)
    answer(stats, 10.0)
    answer(stats, 10.0)
    assert health(stats) == "degraded"
    assert "usually 0." in str(stats.condition.reason)
    answer(stats, 0.2, times=10)
    assert health(stats) == "healthy"


def test_the_reason_does_not_change_with_every_call(stats: AgentStats) -> None:
    reasons = set()
    for _ in range(20):
        fail(stats)
        if stats.health == "degraded":
            reasons.add(stats.condition.reason)
    assert len(reasons) == 1


def test_a_probe_that_is_answered_lets_calls_pass_at_once(stats: AgentStats) -> None:
    for _ in range(3):
        lose(stats, certain=True)
    assert health(stats) == "unreachable"
    assert stats.breaker.is_open
    stats.probe_answered()
    assert not stats.breaker.is_open
    assert health(stats) == "healthy"


def test_a_probe_that_is_not_answered_keeps_no_call_away(stats: AgentStats) -> None:
    for _ in range(5):
        stats.probe_failed("no answer within 2 s", certain=False)
    assert health(stats) == "unreachable"
    assert not stats.breaker.is_open
    answer(stats)
    assert health(stats) == "healthy"


# where it is noted


def test_health_is_noted_when_it_changes_and_not_with_every_call(stats: AgentStats) -> None:
    board = ScriptedLookup([])
    unasked, seen = make_listing("a"), make_listing("a", reachable=True)
    report_health(stats, unasked, board.record_health)
    answer(stats)
    report_health(stats, unasked, board.record_health)
    for _ in range(3):
        answer(stats)
        report_health(stats, seen, board.record_health)
    lose(stats)
    report_health(stats, seen, board.record_health)
    lose(stats, certain=True)
    report_health(stats, seen, board.record_health)
    answer(stats)
    report_health(stats, seen, board.record_health)
    assert board.told == ["healthy a", "degraded a", "unreachable a", "healthy a"]


def test_each_agent_has_its_own_pulse_and_a_moved_one_a_new_one() -> None:
    agent_stats = AgentStatsTable()
    one, two = make_listing("a"), make_listing("b")
    first, second = agent_stats.of(one), agent_stats.of(two)
    assert agent_stats.of(one) is first is not second
    assert agent_stats.of(make_listing("a", version="9", digest="new")) is first
    assert agent_stats.of(make_listing("a", url="http://elsewhere:1")) is not first


def test_ten_thousand_and_five_hundred_agents_that_hang_are_unreachable_and_asked_less_often() -> None:
    agents = [make_listing(f"a{number}") for number in range(10_500)]
    directory, clock = ScriptedLookup([]), FakeClock()
    agent_stats, schedule = AgentStatsTable(), ProbeSchedule(clock, lambda: 1.0)
    agent_stats.is_listed = lambda name, url: True
    for _ in range(FAILURES_TO_UNREACHABLE + 1):
        for agent in agents:
            stats = agent_stats.of(agent)
            stats.probe_failed("no answer within 2 s", certain=False)
            report_health(stats, agent, directory.record_health)
            schedule.note(agent, stats.health, 300)
    assert {agent_stats.of(agent).health for agent in agents} == {"unreachable"}
    clock.pass_time(2 * FIRST_WAIT_S)
    assert not any(map(schedule.test_due(), agents))


def test_an_agent_that_is_no_longer_listed_is_forgotten_after_others_that_left_later() -> None:
    directory = Directory(MemoryListings())
    agent_stats = keep_stats(directory, AgentStatsTable(keep_unlisted=2))
    a, b, c, d, e = (directory.upsert(make_listing(name, url=f"http://{name}:1")) for name in "abcde")
    stats = {entry.name: agent_stats.of(entry) for entry in (a, b, c, d, e)}
    second = replace(make_listing("e", url="http://e:1"), key="agents/second")
    directory.upsert(second)
    directory.upsert(replace(make_listing("a", url="http://moved:1"), digest="moved"))
    for entry in (b, c, e, d):
        directory.remove(entry.id)
    assert agent_stats.of(c) is stats["c"], "one of the two that left last"
    assert agent_stats.of(d) is stats["d"]
    assert agent_stats.of(e) is stats["e"], "it has another listing"
    assert agent_stats.of(b) is not stats["b"]
    assert agent_stats.of(a) is not stats["a"], "it has moved"


def test_an_agent_that_is_listed_again_is_kept() -> None:
    directory = Directory(MemoryListings())
    agent_stats = keep_stats(directory, AgentStatsTable(keep_unlisted=1))
    a = directory.upsert(make_listing("a"))
    stats = agent_stats.of(a)
    directory.remove(a.id)
    directory.upsert(make_listing("a"))
    for name in ("unlisted", "too"):
        agent_stats.of(make_listing(name))
    assert agent_stats.of(a) is stats
    assert agent_stats.count_breakers() == (2, [])


def test_figures_of_an_agent_are_its_listings_where_nothing_was_seen() -> None:
    agent_stats = AgentStatsTable()
    assert agent_stats.stats_of(make_listing("a")) == Stats()
    answer(agent_stats.of(make_listing("a")))
    assert agent_stats.stats_of(make_listing("a")).calls == 1
