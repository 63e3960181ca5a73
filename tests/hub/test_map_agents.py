"""``map_agents`` tells numbers by source and status, and rows of those agents first that need somebody."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.record import ListingKey
from retinue.hub.mesh_map import map_agents
from retinue.mesh.directory.directory import MESH_VIEW, Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.permissions import AgentView
from tests.mesh.scripted import make_listing
from tests.support.memory_source import MemorySource

EVERYBODY = AgentView(frozenset({"closed"}), ())
"""A view that hides an agent that does not exist, so that the agents are walked over."""


@pytest.fixture
async def directory() -> Directory:
    """Ten agents in each of two sources: the third unreachable, the fourth degraded, the fifth disabled."""
    sources = [
        MemorySource(
            name,
            [
                replace(make_listing(f"{name}{number}", url=f"http://{name}{number}"), source=name)
                for number in range(10)
            ],
        )
        for name in ("a", "b")
    ]
    directory = Directory(MemoryListings(), sources)
    await directory.refresh()
    for name in ("a", "b"):
        for number, health in ((3, "unreachable"), (4, "degraded"), (1, "healthy")):
            entry = directory.find_named(f"{name}{number}")
            assert entry is not None
            directory.record_health(entry, health, "why")  # type: ignore[arg-type]
        disabled = directory.find_named(f"{name}5")
        assert disabled is not None
        directory.set_enabled(disabled, False)
    return directory


def names_of(mapped: dict[str, Any]) -> list[str]:
    return [row["name"] for row in mapped["agents"]]


async def test_without_a_limit_every_agent_has_a_row(directory: Directory) -> None:
    mapped = await map_agents(directory, None, MESH_VIEW)
    assert names_of(mapped) == [f"{source}{number}" for source in "ab" for number in range(10)]
    counts = {"unknown": 6, "available": 1, "unavailable": 1, "degraded": 1, "disabled": 1}
    assert mapped["sources"] == {"a": counts, "b": counts}


@pytest.mark.parametrize("view", [None, EVERYBODY], ids=["by index", "by a walk"])
async def test_a_limit_leaves_rows_of_failing_agents_then_of_named_ones(
    directory: Directory, view: AgentView | None
) -> None:
    mapped = await map_agents(directory, view, MESH_VIEW, limit=8, names=["b9", "nosuch", "a3"])
    assert names_of(mapped) == ["a3", "a4", "a5", "b3", "b4", "b5", "b9", "a0"]
    assert sum(Counter(mapped["sources"]["b"]).values()) == 10
    assert mapped["agents"][0] == {"name": "a3", "status": "unavailable", "source": "a", "reason": "why"}


@pytest.mark.parametrize("view", [None, EVERYBODY], ids=["by index", "by a walk"])
async def test_rows_of_one_source_leave_the_numbers_of_all(
    directory: Directory, view: AgentView | None
) -> None:
    mapped = await map_agents(directory, view, MESH_VIEW, limit=5, source="b", names=["a9"])
    assert names_of(mapped) == ["b3", "b4", "b5", "b0", "b1"]
    assert set(mapped["sources"]) == {"a", "b"}
    assert len(names_of(await map_agents(directory, view, MESH_VIEW, limit=50, source="b"))) == 10


@pytest.mark.parametrize("limit", [1, 2, 6, 7])
async def test_failing_agents_are_found_by_index_up_to_a_limit(directory: Directory, limit: int) -> None:
    failing = [entry.name for entry in directory.list_failing(limit)]
    assert failing == ["a3", "a4", "a5", "b3", "b4", "b5"][:limit]
    directory.remove(ListingKey(*directory.list_failing(1)[0].id))
    assert [entry.name for entry in directory.list_failing(1)] == ["a4"]
