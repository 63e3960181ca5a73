"""What views, ranges of versions and labels select is kept while entries change, as a walk would find it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.record import ListingKey
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.selections import KeptSelections, Selection
from retinue.mesh.permissions import AgentView, is_seen
from tests.mesh.directory.listings import listing

SCOPES = frozenset({"mesh", "exposed"})
VIEWS = (None, AgentView(frozenset({"a"}), ()), AgentView(frozenset(), ("a*", "c")))
RANGES = (None, ">=2")

_CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["a", "ab", "c"]),
        st.sampled_from(["1.0.0", "2.0.0"]),
        st.sampled_from(["published", "disabled", "enabled", "unreachable", "removed"]),
    ),
    max_size=20,
)


@settings(max_examples=40)
@given(changes=_CHANGES)
async def test_selections_and_counts_of_skills_are_those_of_a_walk(
    changes: list[tuple[str, str, str]],
) -> None:
    directory = Directory(MemoryListings())
    for name, version, change in changes:
        entry = directory.upsert(replace(listing(name, "plan", version=version), published_at=None))
        if change == "removed":
            directory.remove(ListingKey(*entry.id))
        elif change == "unreachable":
            directory.mark_unreachable(entry, "gone")
        else:
            directory.set_enabled(entry, change != "disabled")
        entries = [entry for entry in directory.list_held() if entry.enabled]
        for view in VIEWS:
            for version_range in RANGES:
                fitting = {
                    entry.id
                    for entry in entries
                    if is_seen(view, entry.name) and (version_range is None or entry.version == "2.0.0")
                }
                assert await directory.select(view, version_range=version_range) == fitting
        visible = [entry for entry in directory.list_entries() if entry.enabled]
        assert directory.count_skills(SCOPES) == (len(visible), len(visible), len(visible))
        assert directory.list_visible(SCOPES, 2) == visible[:2]


async def test_only_so_many_entries_are_kept_for_selections_that_were_used_before() -> None:
    directory = Directory(MemoryListings())
    for number in range(10):
        directory.upsert(listing(f"a{number}"))
    kept = KeptSelections(directory.sources._cache.index, 5, entries=12)
    for glob in ("a*", "a?", "*"):
        assert len(await kept.list_ids(Selection(globs=(glob,)))) == 10
    assert len(kept._kept) == 1
