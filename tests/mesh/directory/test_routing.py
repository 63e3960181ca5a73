"""Who may take a call, and in which order they are tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import get_args

import pytest

from retinue.core.errors import InvalidSettingError
from retinue.core.record import AgentRecord, Listing
from retinue.mesh.directory.routing import StrategyName, make_strategy, order_candidates, select_candidates
from retinue.mesh.health.agent_stats import AgentStatsTable
from tests.mesh.scripted import FakeClock
from tests.requirements import requirement


def listing(
    key: str,
    *,
    version: str = "1.0.0",
    source: str = "home",
    enabled: bool = True,
    reachable: bool | None = None,
    last_error: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Listing:
    record = AgentRecord(key, version=version, labels=labels or {})
    return Listing(
        record, source, f"agents/{key}", enabled=enabled, reachable=reachable, last_error=last_error
    )


def names(listings: Sequence[Listing]) -> list[str]:
    return [one.record.name for one in listings]


def test_without_wishes_all_enabled_ones_are_candidates_in_their_order() -> None:
    offered = [listing("b"), listing("a"), listing("off", enabled=False)]
    assert names(select_candidates(offered)) == ["b", "a"]


def test_an_agent_is_meant_by_its_name_or_by_name_and_source() -> None:
    offered = [listing("a"), listing("a", source="far"), listing("b")]
    assert len(select_candidates(offered, agent="a")) == 2
    assert [one.source for one in select_candidates(offered, agent="a@far")] == ["far"]
    assert select_candidates(offered, agent="A") == ()


@requirement("P-17")
def test_a_version_range_narrows_the_candidates() -> None:
    offered = [listing("old", version="1.1"), listing("fit", version="v1.3"), listing("new", version="2.0.0")]
    assert names(select_candidates(offered, version_range=">=1.2,<2")) == ["fit"]


def test_text_that_is_no_range_is_refused_even_where_nobody_offers() -> None:
    with pytest.raises(InvalidSettingError):
        select_candidates([], version_range="newest")


def test_labels_narrow_the_candidates_and_a_star_stands_for_any_value() -> None:
    offered = [
        listing("a", labels={"team": "search", "tier": "1"}),
        listing("b", labels={"team": "ads"}),
        listing("c"),
    ]
    assert names(select_candidates(offered, labels={"team": "search"})) == ["a"]
    assert names(select_candidates(offered, labels={"team": "*"})) == ["a", "b"]
    assert names(select_candidates(offered, labels={"team": "*", "tier": "1"})) == ["a"]
    assert names(select_candidates(offered, labels={"team": "Search"})) == []
    assert names(select_candidates(offered, labels={})) == ["a", "b", "c"]


def test_the_healthy_are_tried_first_the_unreachable_last_and_nobody_is_dropped() -> None:
    offered = [
        listing("dead", reachable=False),
        listing("degraded", reachable=True, last_error="slow"),
        listing("unknown"),
        listing("seen", reachable=True),
    ]
    assert names(order_candidates(offered)) == ["unknown", "seen", "degraded", "dead"]
    assert order_candidates(offered) == order_candidates(offered)


@pytest.mark.parametrize("strategy", ["first", "best"])
def test_of_many_agents_the_healthy_are_tried_first_too(strategy: StrategyName) -> None:
    degraded = [listing(f"d{n}", reachable=True, last_error="slow") for n in range(3)]
    dead = [listing(f"u{n}", reachable=False) for n in range(3)]
    ordered = order_candidates(
        [*MANY, *degraded, *dead], make_strategy(strategy, AgentStatsTable(), seed=1), "s"
    )
    assert sorted(names(ordered[:100])) == names(MANY)
    assert names(ordered[100:]) == [*names(degraded), *names(dead)]


def test_a_strategy_arranges_the_live_ones_only() -> None:
    offered = [listing("dead", reachable=False), listing("a"), listing("b")]
    assert names(order_candidates(offered, lambda live, _: list(reversed(live)))) == ["b", "a", "dead"]


# strategies

THREE = [listing("a"), listing("b"), listing("c")]
MANY = [listing(f"{n:03}") for n in range(100)]


def call(agent_stats: AgentStatsTable, one: Listing, latency_s: float, skill: str = "s") -> None:
    agent_stats.of(one).call_started()
    agent_stats.of(one).answered(skill, latency_s)


@pytest.mark.parametrize("name", get_args(StrategyName))
@pytest.mark.parametrize("offered", [THREE, MANY])
def test_no_strategy_drops_or_adds_a_candidate(name: StrategyName, offered: list[Listing]) -> None:
    strategy = make_strategy(name, AgentStatsTable(), seed=1)
    for _ in range(5):
        assert sorted(names(strategy(offered, "s"))) == names(offered)


@pytest.mark.parametrize("name", ["first", "best", "least-connections", "round-robin"])
@pytest.mark.parametrize("offered", [THREE, MANY])
def test_the_first_call_goes_to_the_first_in_catalog_order(
    name: StrategyName, offered: list[Listing]
) -> None:
    for _ in range(5):
        assert make_strategy(name, AgentStatsTable())(offered, "s")[0] is offered[0]


@requirement("P-30")
def test_round_robin_begins_one_further_with_each_call_of_a_skill() -> None:
    strategy = make_strategy("round-robin", AgentStatsTable())
    assert [names(strategy(THREE, "s")) for _ in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]
    assert names(strategy(THREE, "other")) == ["a", "b", "c"]


@requirement("P-30")
def test_random_reaches_all_and_is_the_same_for_the_same_seed() -> None:
    one, two = (make_strategy("random", AgentStatsTable(), seed=7) for _ in range(2))
    orders = [names(one(THREE, "s")) for _ in range(50)]
    assert orders == [names(two(THREE, "s")) for _ in range(50)]
    assert {order[0] for order in orders} == {"a", "b", "c"}


@requirement("P-30")
def test_least_connections_prefers_who_has_the_fewest_calls_in_flight() -> None:
    agent_stats = AgentStatsTable()
    strategy = make_strategy("least-connections", agent_stats)
    for count, one in zip((2, 1, 1), THREE, strict=True):
        for _ in range(count):
            agent_stats.of(one).call_started()
    assert names(strategy(THREE, "s")) == ["b", "c", "a"]


def test_best_tries_each_new_agent_and_then_prefers_the_fastest() -> None:
    agent_stats = AgentStatsTable(clock=FakeClock())
    strategy = make_strategy("best", agent_stats)
    latencies = {"a": 0.3, "b": 0.1, "c": 0.2}
    asked = []
    for _ in range(6):
        chosen = strategy(THREE, "s")[0]
        asked.append(chosen.record.name)
        call(agent_stats, chosen, latencies[chosen.record.name])
    assert asked == ["a", "b", "c", "b", "b", "b"]
    assert names(strategy(THREE, "s")) == ["b", "c", "a"]


def test_best_spreads_calls_that_are_in_flight_at_once() -> None:
    agent_stats = AgentStatsTable(clock=FakeClock())
    strategy = make_strategy("best", agent_stats)
    for one in THREE:
        call(agent_stats, one, 0.1)
    taken: Counter[str] = Counter()
    for _ in range(30):
        chosen = strategy(THREE, "s")[0]
        agent_stats.of(chosen).call_started()
        taken[chosen.record.name] += 1
    assert set(taken.values()) == {10}


def test_best_avoids_a_slow_agent_among_many_and_spreads_over_the_others() -> None:
    agent_stats = AgentStatsTable(clock=FakeClock())
    strategy = make_strategy("best", agent_stats, seed=3)
    for one in MANY:
        call(agent_stats, one, 5.0 if one is MANY[0] else 0.1)
    taken: Counter[str] = Counter()
    for _ in range(990):
        chosen = strategy(MANY, "s")[0]
        agent_stats.of(chosen).call_started()
        taken[chosen.record.name] += 1
    assert "000" not in taken
    assert max(taken.values()) <= 20
    assert len(taken) >= 90
