"""Healths are counted while entries change, so that nobody walks over all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.record import Health, ListingKey
from retinue.mesh import slices
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from tests.mesh.scripted import make_listing

_CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["one", "two"]),
        st.sampled_from(["healthy", "degraded", "unreachable", "removed"]),
        st.booleans(),
    ),
    max_size=30,
)


@settings(max_examples=40)
@given(changes=_CHANGES)
def test_the_counts_are_those_of_a_walk(changes: list[tuple[str, str, str, bool]]) -> None:
    directory = Directory(MemoryListings())
    for name, source, change, is_same_agent in changes:
        url = "http://127.0.0.1:1" if is_same_agent else f"http://127.0.0.1:{ord(name)}{len(source)}"
        entry = directory.upsert(replace(make_listing(name, url=url), source=source))
        if change == "removed":
            directory.remove(ListingKey(*entry.id))
        else:
            health: Health = change  # type: ignore[assignment]
            directory.record_health(entry, health, "why")
        listed = directory.list_entries()
        counts = Counter(entry.health for entry in listed)
        assert {health: n for health, n in directory.count_healths().items() if n} == counts
        unhealthy = {entry.id for entry in listed if entry.health != "healthy"}
        assert {entry.id for entry in asyncio.run(directory.list_unhealthy())} == unhealthy
        failing = [entry for entry in listed if entry.health in ("degraded", "unreachable")]
        assert directory.list_failing(len(listed)) == failing


async def test_other_tasks_run_while_unhealthy_agents_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory(MemoryListings())
    for number in range(50):
        directory.upsert(make_listing(f"a{number}"))
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    listing = asyncio.create_task(directory.list_unhealthy(lambda entry: entry.name != "a7"))
    turns = 0
    while not listing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 50, "one after each agent"
    assert len(await listing) == 49
