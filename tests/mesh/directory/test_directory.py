"""The directory: who is listed, who is found, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import (
    InvalidSettingError,
    SkillNotOfferedError,
    StateDamagedError,
    StorageFullError,
    UnknownAgentError,
    UnknownSkillError,
    VersionConflictError,
)
from retinue.core.record import Endpoint, Listing, ListingKey
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.limits import DirectoryLimits
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.directory.listing_index import ListingIndex
from retinue.mesh.directory.listings import Listings, MemoryListings
from retinue.mesh.entry import Entry, entry_of
from retinue.mesh.permissions import AgentView
from tests.mesh.directory.listings import DOWN, MESH, NOON, Clock, directory_of, filled, keys, listing
from tests.requirements import requirement
from tests.support.memory_source import MemorySource

EXPOSED = frozenset({"exposed"})


# Finding


@requirement("P-01")
@requirement("P-06")
async def test_an_agent_is_found_by_skill_and_its_url_is_the_card_s_own(clock: Clock) -> None:
    directory = await filled(
        clock, listing("plan", url="http://localhost:8001"), listing("build", "generate_code")
    )
    (found,) = await directory.resolve_skill("create_plan", MESH)
    assert found.url == "http://localhost:8001"


@requirement("P-01")
async def test_discover_agent_gives_the_url_exactly_and_passes_over_cards_without_one(clock: Clock) -> None:
    nowhere = listing("a")
    nowhere = replace(nowhere, record=replace(nowhere.record, endpoints=()))
    directory = await filled(clock, nowhere, listing("plan", url="http://localhost:8001"))
    assert await directory.discover_agent("create_plan") == "http://localhost:8001"
    directory.remove(directory.get("plan").id)
    lonely = directory_of(clock, MemorySource("home", [nowhere]))
    with pytest.raises(SkillNotOfferedError):
        await lonely.discover_agent("create_plan")


async def test_the_first_in_catalog_order_stands_first_among_live_ones(clock: Clock) -> None:
    directory = await filled(clock, listing("c"), listing("a"), listing("b"))
    assert keys(directory.find_by_skill("create_plan", MESH)) == ["agents/a", "agents/b", "agents/c"]
    directory.mark_unreachable(directory.get("a"), "refused")
    assert keys(directory.find_by_skill("create_plan", MESH)) == ["agents/b", "agents/c", "agents/a"]
    directory.mark_reachable(directory.get("c"))
    assert keys(directory.find_by_skill("create_plan", MESH)) == ["agents/b", "agents/c", "agents/a"]


async def test_an_earlier_source_stands_before_a_later_one(clock: Clock) -> None:
    directory = await filled(clock, listing("a", source="far"), listing("z"))
    assert keys(directory.find_by_skill("create_plan", MESH)) == ["agents/z", "agents/a"]
    assert keys(directory.list_all()) == ["agents/z", "agents/a"]


async def test_a_skill_outside_the_scopes_is_found_by_nobody_and_never_suggested(clock: Clock) -> None:
    directory = await filled(clock, listing("plan"), listing("shown", "create_plans", visibility="exposed"))
    assert directory.find_by_skill("create_plan", EXPOSED) == ()
    assert directory.skill_ids(EXPOSED) == ("create_plans",)
    assert directory.skill_ids(MESH) == ("create_plan", "create_plans")
    assert directory.suggest_skills("create_plam", EXPOSED) == ("create_plans",)
    with pytest.raises(SkillNotOfferedError) as missed:
        await directory.resolve_skill("create_plan", EXPOSED)
    assert missed.value.near == ("create_plans",)


async def test_a_disabled_agent_is_listed_but_never_found_for_a_call(clock: Clock) -> None:
    directory = await filled(clock, listing("a"), listing("b"))
    directory.set_enabled(directory.get("a"), False)
    assert keys(directory.find_by_skill("create_plan", MESH)) == ["agents/b"]
    assert len(directory.list_all()) == 2
    assert not directory.get("a").enabled
    with pytest.raises(UnknownAgentError):
        await directory.resolve_skill("create_plan", MESH, agent="a")
    directory.set_enabled(directory.get("a"), True)
    assert len(directory.find_by_skill("create_plan", MESH)) == 2


async def test_an_unknown_name_is_refused_with_near_ones(clock: Clock) -> None:
    directory = await filled(clock, listing("plan-agent"))
    assert directory.find("plan-agnet") is None
    with pytest.raises(UnknownAgentError) as missed:
        directory.get("plan-agnet")
    assert missed.value.near == ("plan-agent",)


# One name, several listings


async def test_a_bare_name_means_the_reachable_one_then_source_order_then_version(clock: Clock) -> None:
    directory = await filled(
        clock,
        listing("x", key="agents/x1", version="1.9.0", url="http://one.example"),
        listing("x", key="agents/x2", version="v1.10", url="http://two.example"),
        listing("x", source="far", version="3.0.0", url="http://three.example"),
    )
    assert directory.get("x").key == "agents/x2"
    directory.mark_unreachable(directory.get("x"), "refused")
    assert directory.get("x").key == "agents/x1"
    directory.set_enabled(directory.get("x"), False)
    assert directory.get("x").source == "far"
    assert directory.get("x@home").key == "agents/x2"


async def test_a_source_s_name_may_hold_any_character(clock: Clock) -> None:
    there = "http://user@127.0.0.1:5000"
    directory = await filled(clock, listing("a@b", source=there), sources=[there])
    assert directory.get("a@b") is directory.get(f"a@b@{there}")


async def test_same_names_at_different_places_stay_apart(clock: Clock) -> None:
    directory = await filled(
        clock, listing("x", url="http://one.example"), listing("x", source="far", url="http://two.example")
    )
    assert len(directory.list_all()) == 2
    assert len(await directory.resolve_skill("create_plan", MESH, agent="x")) == 2
    (far,) = await directory.resolve_skill("create_plan", MESH, agent="x@far")
    assert far.source == "far"


async def test_same_names_at_one_origin_are_one_agent_whose_health_is_one(clock: Clock) -> None:
    directory = await filled(
        clock,
        listing("x", url="http://HOST.example/a"),
        listing("x", source="far", url="http://host.example:80"),
    )
    (agent,) = directory.list_all()
    assert agent.source == "home"
    directory.mark_unreachable(agent, "refused")
    assert directory.get("x@far").reachable is False
    assert len(directory.find_by_skill("create_plan", MESH)) == 1


async def test_same_names_with_one_owner_key_are_one_agent(clock: Clock) -> None:
    directory = await filled(
        clock,
        listing("x", url="http://one.example", owner="key-1"),
        listing("x", source="far", url="http://two.example", owner="key-1"),
    )
    assert len(directory.list_all()) == 1


async def test_of_one_agent_in_two_sources_the_later_published_card_counts(clock: Clock) -> None:
    url = "http://one.example"
    directory = await filled(
        clock,
        listing("x", "old_skill", url=url, published_at=NOON),
        listing("x", "new_skill", source="far", url=url, published_at=NOON + timedelta(hours=1)),
    )
    assert directory.find_by_skill("old_skill", MESH) == ()
    assert len(directory.find_by_skill("new_skill", MESH)) == 1


@pytest.mark.parametrize("url", [None, "no url", "http://one.example:port", "http://[::1", "http:///path"])
async def test_urls_without_an_origin_make_no_two_listings_one_agent(clock: Clock, url: str | None) -> None:
    endpoints = (Endpoint("execute", url),) if url is not None else ()
    pair = [listing("x"), listing("x", source="far")]
    pair = [replace(one, record=replace(one.record, endpoints=endpoints)) for one in pair]
    directory = await filled(clock, *pair)
    assert len(directory.list_all()) == 2
    directory.mark_unreachable(pair[0], "refused")
    assert [agent.reachable for agent in directory.list_all()] == [False, None]


# Replacing


async def test_an_older_card_never_replaces_a_newer_one(clock: Clock) -> None:
    directory = await filled(clock, listing("x", version="2", published_at=NOON))
    held = directory.upsert(listing("x", version="1", published_at=NOON - timedelta(seconds=1)))
    assert held.version == "2"
    assert directory.get("x").record.version == "2"
    directory.upsert(listing("x", version="3", published_at=NOON + timedelta(seconds=1)))
    assert directory.get("x").record.version == "3"


@requirement("P-19")
async def test_a_replaced_agent_loses_its_old_skills_and_its_bad_health_but_not_its_owner_s_choice(
    clock: Clock,
) -> None:
    source = MemorySource("home", [listing("x", "old_skill", url="http://one.example:8001")])
    directory = directory_of(clock, source)
    await directory.refresh()
    directory.mark_unreachable(directory.get("x"), "refused")
    source.put(listing("x", "new_skill", url="http://one.example:8002", version="2.0.0"))
    await directory.refresh()
    (found,) = await directory.resolve_skill("new_skill", MESH)
    assert (found.reachable, found.last_error) == (None, None)
    assert directory.find_by_skill("old_skill", MESH) == ()
    directory.set_enabled(found, False)
    source.put(listing("x", "new_skill", url="http://one.example:8003", version="3.0.0"))
    await directory.refresh()
    assert not directory.get("x").enabled


# Misses that say why


async def test_versions_outside_the_range_are_named(clock: Clock) -> None:
    directory = await filled(clock, listing("a", version="1.0.0"), listing("b", version="2.1.0"))
    assert keys(await directory.resolve_skill("create_plan", MESH, version_range=">=2")) == ["agents/b"]
    with pytest.raises(VersionConflictError) as missed:
        await directory.resolve_skill("create_plan", MESH, version_range=">=3")
    assert missed.value.offered == ("1.0.0", "2.1.0")


async def test_a_known_agent_without_the_skill_and_an_unknown_agent_are_told_apart(clock: Clock) -> None:
    directory = await filled(clock, listing("plan-agent"), listing("other", "review_code"))
    with pytest.raises(UnknownAgentError):
        await directory.resolve_skill("create_plan", MESH, agent="nobody")
    with pytest.raises(UnknownSkillError) as missed:
        await directory.resolve_skill("create_plans", MESH, agent="plan-agent")
    assert not isinstance(missed.value, SkillNotOfferedError)
    assert missed.value.near == ("create_plan",)


async def test_a_listing_is_found_by_its_id_only_where_a_look_up_by_skill_may_find_it(clock: Clock) -> None:
    directory = await filled(
        clock, listing("a"), listing("b", "generate_code"), listing("c", visibility="private")
    )
    a, b, c = listing("a").id, listing("b").id, listing("c").id

    async def find(listing_id: ListingKey, view: AgentView | None = None) -> Entry | None:
        return await directory.find_offering(listing_id, "create_plan", MESH, view=view)

    assert await find(a) == directory.find_named("a")
    assert await find(a, AgentView(frozenset(), ("a",))) == directory.find_named("a")
    assert await find(a, AgentView(frozenset(), ("b",))) is None
    assert (await find(b), await find(c), await find(ListingKey("home", "agents/d"))) == (None, None, None)
    directory.upsert(listing("a", source="far", url="http://a.example:8001"))
    twins = [listing_id for listing_id in (a, ListingKey("far", "agents/a", "v1")) if await find(listing_id)]
    assert twins == [one.id for one in directory.find_by_skill("create_plan", MESH)]
    directory.set_enabled(directory.get("a"), False)
    assert await find(a) is None


# What was measured, and what is kept


async def test_since_is_the_first_failure_and_a_success_clears_it(clock: Clock) -> None:
    directory = await filled(clock, listing("x"))
    directory.mark_unreachable(directory.get("x"), "refused")
    began = clock.now()
    clock.seconds += 60
    directory.mark_unreachable(directory.get("x"), DOWN)
    agent = directory.get("x")
    assert (agent.reachable, agent.since) == (False, began)
    assert agent.last_error == "registry home is unreachable: connection refused"
    directory.mark_reachable(agent)
    agent = directory.get("x")
    assert (agent.reachable, agent.since, agent.last_error) == (True, clock.now(), None)


async def test_a_degraded_agent_is_reachable_stands_after_the_healthy_and_says_why(clock: Clock) -> None:
    directory = await filled(clock, listing("a"), listing("b"), listing("c"))
    directory.mark_unreachable(directory.get("b"), "refused")
    directory.mark_degraded(directory.get("a"), "status 502")
    began = clock.now()
    agent = directory.get("a")
    assert (agent.health, agent.reachable, agent.since, agent.last_error) == (
        "degraded",
        True,
        began,
        "status 502",
    )
    assert keys(directory.find_by_skill("create_plan", MESH)) == ["agents/c", "agents/a", "agents/b"]
    clock.seconds += 60
    directory.mark_degraded(agent, "no answer")
    assert (directory.get("a").since, directory.get("a").last_error) == (began, "no answer")
    directory.mark_reachable(agent)
    agent = directory.get("a")
    assert (agent.health, agent.since, agent.last_error) == ("healthy", clock.now(), None)


async def test_health_that_did_not_change_is_told_to_nobody(clock: Clock) -> None:
    directory = await filled(clock, listing("a"))
    told: list[str] = []
    directory.subscribe(lambda change: told.append(change.entry.health))
    for _ in range(3):
        directory.mark_reachable(directory.get("a"))
    for _ in range(3):
        directory.mark_degraded(directory.get("a"), "slow")
    for _ in range(3):
        directory.mark_unreachable(directory.get("a"), "refused")
    assert told == ["healthy", "degraded", "unreachable"]


async def test_a_restart_keeps_agents_measurements_and_choices(
    clock: Clock, open_store: Callable[[], Listings]
) -> None:
    source = MemorySource("home", [listing("a"), listing("b"), listing("c")])
    directory = directory_of(clock, source, store=open_store())
    await directory.refresh()
    directory.mark_unreachable(directory.get("a"), "refused")
    directory.set_enabled(directory.get("b"), False)
    directory.remove(ListingKey("home", "agents/c", "v1"))
    since = directory.get("a").since

    source.failure = DOWN
    again = directory_of(clock, source, store=open_store())
    assert keys(again.list_all()) == ["agents/a", "agents/b"]
    agent = again.get("a")
    assert (agent.reachable, agent.since, agent.last_error) == (False, since, "refused")
    assert not again.get("b").enabled
    assert keys(await again.resolve_skill("create_plan", MESH)) == ["agents/a"]


async def test_losing_the_store_loses_only_measurements(clock: Clock) -> None:
    source = MemorySource("home", [listing("a")])
    first = directory_of(clock, source)
    await first.refresh()
    first.mark_unreachable(first.get("a"), "refused")
    second = directory_of(clock, source)
    assert second.list_all() == ()
    assert keys(await second.resolve_skill("create_plan", MESH)) == ["agents/a"]


async def test_listings_of_a_source_no_longer_configured_are_not_shown_but_remembered(
    clock: Clock, open_store: Callable[[], Listings]
) -> None:
    source = MemorySource("home", [listing("a")])
    directory = directory_of(clock, source, store=open_store())
    await directory.refresh()
    directory.set_enabled(directory.get("a"), False)
    assert directory_of(clock, store=open_store()).list_all() == ()
    back = directory_of(clock, source, store=open_store())
    await back.refresh()
    assert not back.get("a").enabled


async def test_a_source_that_is_added_later_has_its_stored_listings_and_is_not_read_for_them(
    clock: Clock, open_store: Callable[[], Listings]
) -> None:
    home = MemorySource("home", [listing("a")])
    late = MemorySource("late", [listing("b", source="late"), listing("c", source="late")])
    before = directory_of(clock, home, late, store=open_store())
    await before.refresh()
    before.set_enabled(before.get("c"), False)

    changes: list[str] = []
    reads = late.reads
    directory = directory_of(clock, home, store=open_store())
    directory.subscribe(lambda change: changes.append(change.entry.name))
    assert keys(directory.list_all()) == ["agents/a"]
    directory.add_sources([late])
    assert keys(directory.list_all()) == ["agents/a", "agents/b", "agents/c"]
    assert not directory.get("c").enabled
    assert changes == []
    assert late.reads == reads
    assert late.remembered == ["agents/b", "agents/c"]


async def test_a_source_that_is_added_later_is_read_by_the_next_call(clock: Clock) -> None:
    directory = await filled(clock, listing("a"))
    await directory.resolve_skill("create_plan", MESH)
    directory.add_sources([MemorySource("late", [listing("b", source="late")])])
    assert keys(await directory.resolve_skill("create_plan", MESH)) == ["agents/a", "agents/b"]


async def test_a_listing_given_by_hand_ranks_with_its_source_once_that_is_added(clock: Clock) -> None:
    directory = await filled(clock, listing("a"), sources=["home"])
    directory.upsert(listing("z", source="late"))
    assert keys(directory.find_by_skill("create_plan", MESH)) == ["agents/z", "agents/a"]
    assert keys(directory.list_all()) == ["agents/z", "agents/a"]
    directory.add_sources([MemorySource("late", [listing("z", source="late")])])
    assert keys(directory.find_by_skill("create_plan", MESH)) == ["agents/a", "agents/z"]
    assert keys(directory.list_all()) == ["agents/a", "agents/z"]


async def test_a_second_source_of_one_name_is_refused(clock: Clock) -> None:
    directory = directory_of(clock, MemorySource("home"))
    with pytest.raises(InvalidSettingError, match="home"):
        directory.add_sources([MemorySource("away"), MemorySource("home")])
    with pytest.raises(InvalidSettingError, match="late"):
        directory.add_sources([MemorySource("late"), MemorySource("late")])
    assert "away" not in directory.sources
    assert "late" not in directory.sources


async def test_a_listing_given_by_hand_stands_before_all_sources(clock: Clock) -> None:
    directory = await filled(clock, listing("a"))
    directory.upsert(listing("z", source="joined"))
    assert keys(directory.find_by_skill("create_plan", MESH)) == ["agents/z", "agents/a"]
    await directory.refresh()
    assert directory.find("z") is not None


async def test_an_unchanged_listing_is_not_written_again(clock: Clock) -> None:
    class CountingListings(MemoryListings):
        written = 0

        def put_all(self, listings: Sequence[Listing]) -> None:
            self.written += len(listings)
            super().put_all(listings)

        def update_all(self, entries: Sequence[Entry]) -> None:
            self.written += len(entries)
            super().update_all(entries)

    store = CountingListings()
    directory = directory_of(clock, MemorySource("home", [listing("a"), listing("b")]), store=store)
    await directory.refresh()
    await directory.refresh()
    assert store.written == 2
    for _ in range(3):
        directory.mark_reachable(directory.get("a"))
    assert store.written == 3


async def test_a_store_without_room_costs_no_call_and_is_reported(clock: Clock) -> None:
    class FullListings(MemoryListings):
        full = True

        def put_all(self, listings: Sequence[Listing]) -> None:
            if self.full:
                raise StorageFullError("retinue.db")
            super().put_all(listings)

    store = FullListings()
    directory = directory_of(clock, MemorySource("home", [listing("a")]), store=store)
    assert keys(await directory.resolve_skill("create_plan", MESH)) == ["agents/a"]
    (problem,) = directory.problems()
    assert isinstance(problem.error, StorageFullError)
    store.full = False
    directory.mark_reachable(directory.get("a"))
    assert directory.problems() == ()


class BrokenListings(MemoryListings):
    """Can be told to fail, and to forget."""

    broken = False

    def find(self, listing_id: ListingKey) -> Listing | None:
        if self.broken:
            raise StateDamagedError("retinue.db", "disk I/O error", remedy="move it away")
        return super().find(listing_id)

    def put_all(self, listings: Sequence[Listing]) -> None:
        if self.broken:
            raise StateDamagedError("retinue.db", "disk I/O error", remedy="move it away")
        super().put_all(listings)


@pytest.mark.parametrize("loss", ["broken", "forgotten"])
async def test_a_listing_that_the_store_has_lost_is_read_from_its_source(clock: Clock, loss: str) -> None:
    store = BrokenListings([listing("a"), listing("b")])
    source = MemorySource("home", [listing("a"), listing("b")])
    directory = directory_of(clock, source, store=store)
    if loss == "broken":
        store.broken = True
    else:
        store.remove_all([listing("a").id])
    (first, _) = directory.find_by_skill("create_plan", MESH)
    assert await directory.open(first) == listing("a")
    assert await directory.open(first) is await directory.open(first)
    source.failure = DOWN
    if loss == "broken":
        with pytest.raises(StateDamagedError):
            await directory.open(entry_of(listing("b")))
    source.failure = None
    source.remove("agents/b")
    await directory.refresh()
    assert await directory.open(entry_of(listing("b"))) is None


async def test_what_a_store_did_not_take_is_held_until_it_does(clock: Clock) -> None:
    store = BrokenListings()
    store.broken = True
    directory = directory_of(clock, MemorySource("home", [listing("a")]), store=store)
    await directory.refresh()
    directory.mark_unreachable(directory.get("a"), "refused")
    assert list(store.load()) == []
    store.broken = False
    directory.upsert(listing("b"))
    assert list(store.load()) == directory.list_entries()


async def test_whoever_is_told_of_a_listing_may_open_it_though_many_come_at_once(
    clock: Clock, open_store: Callable[[], Listings]
) -> None:
    directory = directory_of(
        clock,
        MemorySource("home", [listing(name) for name in "abcdefgh"]),
        store=open_store(),
        limits=DirectoryLimits(cached_listings=2),
    )
    opened: list[Listing | None] = []
    directory.subscribe(lambda change: opened.append(directory.find_listing(change.entry.id)))
    await directory.refresh()
    assert opened == [listing(name) for name in "abcdefgh"]
    assert list(directory.list_all()) == opened
    directory.mark_unreachable(directory.get("h"), "refused")
    assert opened[-1] == directory.get("h")
    assert directory.get("h").reachable is False


async def test_agents_come_page_by_page_from_anywhere(clock: Clock) -> None:
    several = [
        listing(name, source=source, url=f"http://{name}.{source}")
        for source in ("home", "far")
        for name in "abc"
    ]
    directory = await filled(clock, *several, limits=DirectoryLimits(page_entries=2))
    pages = [page async for page in directory.iterate_pages()]
    assert [one for page in pages for one in page] == directory.list_entries()
    assert keys(directory.list_entries()) == ["agents/a", "agents/b", "agents/c"] * 2
    behind = ListingKey("home", "agents/b", "v1")
    directory.remove(behind)
    directory.upsert(listing("bb"))
    found = [entry.key async for page in directory.iterate_pages(behind) for entry in page]
    assert found == ["agents/bb", "agents/c", "agents/a", "agents/b", "agents/c"]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["home", "far"]), st.integers(0, 9)), max_size=40))
def test_the_order_is_by_source_and_key_whatever_came_and_went(changes: list[tuple[bool, str, int]]) -> None:
    index = ListingIndex({"home": 0, "far": 1}.__getitem__)
    for put, source, number in changes:
        one = entry_of(listing(f"a{number}", source=source))
        if put:
            index.put(one)
        else:
            index.remove(one.id)
        wanted = sorted((entry.id for entry in index), key=lambda i: (i.source == "far", i.key))
        if number % 3:
            assert list(index.list_ids()) == wanted


async def test_watchers_are_told_of_each_change_until_they_leave(clock: Clock) -> None:
    told: list[ListingChange] = []
    directory = directory_of(clock)
    leave = directory.subscribe(told.append)
    agent = listing("a")
    directory.upsert(agent)
    directory.upsert(agent)
    directory.mark_unreachable(agent, "refused")
    directory.upsert(replace(listing("a", version="2"), reachable=True))
    directory.remove(agent.id)
    directory.remove(agent.id)
    leave()
    directory.upsert(agent)
    assert [change.kind for change in told] == ["added", "changed", "changed", "removed"]


def test_a_look_up_costs_the_same_among_many_agents(clock: Clock) -> None:
    many = [listing(f"agent-{i:05}", f"skill-{i % 5000}") for i in range(10_000)]
    directory = Directory(MemoryListings(many), [MemorySource("home")], clock=clock)
    directory.find_by_skill("skill-77", MESH)
    assert directory.find_by_skill("skill-77", MESH) is directory.find_by_skill("skill-77", MESH)
    assert keys(directory.find_by_skill("skill-77", MESH)) == ["agents/agent-00077", "agents/agent-05077"]
