"""Who may take a call, and in which order they are tried."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from retinue.core.errors import InvalidSettingError
from retinue.core.record import AgentRecord, Listing
from retinue.mesh.routing import order_candidates, select_candidates
from tests.requirements import requirement


def listing(
    key: str,
    *,
    version: str = "1.0.0",
    source: str = "home",
    enabled: bool = True,
    reachable: bool | None = None,
) -> Listing:
    record = AgentRecord(key, version=version)
    return Listing(record, source, f"agents/{key}", enabled=enabled, reachable=reachable)


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


def test_the_first_live_one_is_tried_first_and_the_unreachable_last_but_not_dropped() -> None:
    offered = [listing("dead", reachable=False), listing("unknown"), listing("seen", reachable=True)]
    assert names(order_candidates(offered)) == ["unknown", "seen", "dead"]
    assert order_candidates(offered) == order_candidates(offered)


def test_a_strategy_arranges_the_live_ones_only() -> None:
    offered = [listing("dead", reachable=False), listing("a"), listing("b")]
    assert names(order_candidates(offered, lambda live, _: list(reversed(live)))) == ["b", "a", "dead"]
