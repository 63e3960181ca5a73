"""The directory: who is listed, who is found, when sources are read, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.errors import (
    MalformedArtifactError,
    RegistryUnreachableError,
    SkillNotOfferedError,
    StateDamagedError,
    StorageFullError,
    UnknownAgentError,
    UnknownSkillError,
    VersionConflictError,
)
from retinue.core.record import AgentRecord, Candidate, Endpoint, Listing, ListingKey, Skill, Visibility
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.directory.listing_index import ListingIndex
from retinue.mesh.directory.listings import Listings, MemoryListings
from retinue.mesh.directory.sources import Give, Reading, SourceProblem
from retinue.mesh.entry import Entry, entry_of
from retinue.storage.listing_store import SqliteListings
from tests.requirements import requirement
from tests.support.memory_source import MemorySource

MESH = frozenset({"exposed", "mesh"})
EXPOSED = frozenset({"exposed"})
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DOWN = RegistryUnreachableError("home", "connection refused")


def listing(
    name: str,
    *skills: str,
    source: str = "home",
    key: str | None = None,
    url: str | None = None,
    version: str | None = "1.0.0",
    published_at: datetime | None = None,
    owner: str | None = None,
    visibility: Visibility = "mesh",
) -> Listing:
    offered = tuple(Skill(s, visibility=visibility) for s in skills or ("create_plan",))
    address = url or f"http://{name}.example:8001"
    record = AgentRecord(name, version=version, endpoints=(Endpoint("execute", address),), skills=offered)
    raw = encode_card(render_card(record, scopes=MESH))
    return Listing(
        record,
        source,
        key or f"agents/{name}",
        tag="v1",
        digest=f"sha256:{name}:{version}:{address}:{offered}",
        raw=raw,
        published_at=published_at,
        owner=owner,
    )


@dataclass
class Clock:
    """Seconds for the directory, moved by hand."""

    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Listings]]:
    """Opens the same store again and again, as one process after the other would."""
    memory = MemoryListings()
    opened: list[Listings] = []

    def open_again() -> Listings:
        store = memory if request.param == "memory" else SqliteListings(tmp_path / "retinue.db")
        opened.append(store)
        return store

    yield open_again
    for store in opened:
        store.close()


def directory_of(clock: Clock, *sources: MemorySource, store: Listings | None = None) -> Directory:
    return Directory(store or MemoryListings(), sources, clock=clock, now=clock.now)


async def filled(clock: Clock, *listings: Listing, sources: Sequence[str] = ("home", "far")) -> Directory:
    """A directory over sources that list these."""
    directory = directory_of(
        clock, *(MemorySource(s, [a for a in listings if a.source == s]) for s in sources)
    )
    await directory.refresh()
    return directory


def keys(listings: Sequence[Candidate]) -> list[str]:
    return [one.key for one in listings]


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


@requirement("P-19")
async def test_after_a_failed_call_the_card_is_read_again_and_the_new_url_counts(clock: Clock) -> None:
    source = MemorySource("home", [listing("x", url="http://one.example:8001")])
    directory = directory_of(clock, source)
    (stale,) = await directory.resolve_skill("create_plan", MESH)
    source.put(listing("x", url="http://one.example:8002"))
    fresh = await directory.reread(stale)
    assert fresh is not None
    assert fresh.record.url == "http://one.example:8002"
    directory.mark_unreachable(stale, "refused")
    assert directory.get("x").reachable is None
    source.remove("agents/x")
    assert await directory.reread(fresh) is None
    assert directory.find("x") is None
    assert source.reads == 1


async def test_rereading_from_a_source_that_is_down_changes_nothing_and_is_reported(clock: Clock) -> None:
    source = MemorySource("home", [listing("x")])
    directory = directory_of(clock, source)
    await directory.refresh()
    source.failure = DOWN
    assert await directory.reread(directory.get("x")) is directory.get("x")
    assert directory.problems() == (SourceProblem("home", "agents/x", DOWN),)
    source.failure = None
    await directory.reread(directory.get("x"))
    assert directory.problems() == ()


# When sources are read


@requirement("P-01")
async def test_within_its_time_to_live_a_look_up_reads_no_source(clock: Clock) -> None:
    source = MemorySource("home", [listing("plan"), listing("build", "generate_code")])
    directory = directory_of(clock, source)
    await directory.resolve_skill("create_plan", MESH)
    clock.seconds += 299
    await directory.resolve_skill("generate_code", MESH)
    assert source.reads == 1
    clock.seconds += 1
    await directory.resolve_skill("generate_code", MESH)
    assert source.reads == 2


@requirement("P-01")
async def test_a_look_up_that_misses_reads_the_sources_again_before_it_fails(clock: Clock) -> None:
    source = MemorySource("home", [listing("plan")])
    directory = directory_of(clock, source)
    await directory.resolve_skill("create_plan", MESH)
    with pytest.raises(SkillNotOfferedError) as missed:
        await directory.resolve_skill("create_plam", MESH)
    assert source.reads == 2
    assert isinstance(missed.value, UnknownSkillError)
    assert missed.value.near == ("create_plan",)


@requirement("P-19")
async def test_an_agent_published_since_is_found_by_the_miss_itself(clock: Clock) -> None:
    source = MemorySource("home")
    directory = directory_of(clock, source)
    await directory.refresh()
    source.put(listing("plan"))
    assert keys(await directory.resolve_skill("create_plan", MESH)) == ["agents/plan"]


@pytest.mark.parametrize("warm", [True, False])
async def test_a_hundred_misses_at_once_read_once_and_none_follows_within_a_second(
    clock: Clock, warm: bool
) -> None:
    source = MemorySource("home", [listing("plan")])
    directory = directory_of(clock, source)
    if warm:
        await directory.refresh()
    before = source.reads
    misses = (directory.resolve_skill(f"skill-{i}", MESH) for i in range(100))
    outcomes = await asyncio.gather(*misses, return_exceptions=True)
    assert all(isinstance(outcome, SkillNotOfferedError) for outcome in outcomes)
    assert source.reads == before + 1
    if warm:
        clock.seconds += 0.9
        with pytest.raises(SkillNotOfferedError):
            await directory.resolve_skill("nothing", MESH)
        assert source.reads == before + 1
    clock.seconds += 1.1
    with pytest.raises(SkillNotOfferedError):
        await directory.resolve_skill("nothing", MESH)
    assert source.reads == before + 2


class SlowSource(MemorySource):
    """Answers when it is let."""

    def __init__(self, name: str, listings: Sequence[Listing] = ()) -> None:
        super().__init__(name, listings)
        self.let = asyncio.Event()
        self.asked = asyncio.Event()

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        self.asked.set()
        await self.let.wait()
        return await super().read_all()


async def test_a_look_up_given_up_does_not_end_the_reading_for_the_others(clock: Clock) -> None:
    source = SlowSource("home", [listing("plan")])
    directory = directory_of(clock, source)
    impatient = asyncio.create_task(directory.resolve_skill("create_plan", MESH))
    patient = asyncio.create_task(directory.resolve_skill("create_plan", MESH))
    await source.asked.wait()
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    source.let.set()
    assert keys(await patient) == ["agents/plan"]
    assert source.reads == 1


async def test_a_source_that_hangs_past_its_time_to_live_does_not_hold_up_look_ups(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.mesh.directory.source_set.GRACE_S", 0.01)
    source = SlowSource("home", [listing("plan")])
    directory = directory_of(clock, source)
    source.let.set()
    await directory.refresh()
    source.let.clear()
    clock.seconds += 301
    assert keys(await directory.resolve_skill("create_plan", MESH)) == ["agents/plan"]
    assert source.reads == 1
    await directory.aclose()


async def test_what_is_known_from_a_former_process_serves_while_a_slow_source_is_read(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.mesh.directory.source_set.GRACE_S", 0.01)
    source = SlowSource("home", [listing("plan"), listing("build", "generate_code")])
    directory = directory_of(clock, source, store=MemoryListings([listing("plan")]))
    assert keys(await directory.resolve_skill("create_plan", MESH)) == ["agents/plan"]
    assert source.reads == 0
    missed = asyncio.create_task(directory.resolve_skill("generate_code", MESH))
    await asyncio.sleep(0)
    source.let.set()
    assert keys(await missed) == ["agents/build"]
    await directory.aclose()


async def test_a_refresh_reads_anew_even_while_another_reading_is_on_its_way(clock: Clock) -> None:
    source = SlowSource("home")
    directory = directory_of(clock, source)
    first = asyncio.create_task(directory.refresh())
    await source.asked.wait()
    second = asyncio.create_task(directory.refresh())
    await asyncio.sleep(0)
    source.let.set()
    await asyncio.gather(first, second)
    assert source.reads == 2


class WatchedMemorySource(MemorySource):
    """Knows that it was written to."""

    dirty = False

    def put(self, listing: Listing) -> None:
        super().put(listing)
        self.dirty = True

    def changed(self) -> bool:
        return self.dirty

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        self.dirty = False
        return await super().read_all()


@requirement("P-19")
async def test_a_source_that_says_it_changed_is_read_by_the_next_look_up_and_by_calls_within_50_ms(
    clock: Clock,
) -> None:
    source = WatchedMemorySource("home", [listing("x", url="http://one.example:8001")])
    directory = directory_of(clock, source)
    await directory.resolve_skill("create_plan", MESH)
    source.put(listing("x", url="http://one.example:8002"))
    await directory.ensure_fresh()
    (found,) = await directory.resolve_skill("create_plan", MESH)
    assert found.url == "http://one.example:8002"
    source.put(listing("x", url="http://one.example:8003"))
    clock.seconds += 0.06
    (found,) = await directory.resolve_skill("create_plan", MESH)
    assert found.url == "http://one.example:8003"
    await directory.resolve_skill("create_plan", MESH)
    assert source.reads == 3


async def test_a_call_that_finds_nothing_looks_at_a_source_that_changed_a_moment_ago(clock: Clock) -> None:
    source = WatchedMemorySource("home", [listing("x", url="http://one.example:8001")])
    directory = directory_of(clock, source)
    await directory.resolve_skill("create_plan", MESH)
    source.put(listing("y", "generate_code", url="http://one.example:8002"))
    (found,) = await directory.resolve_skill("generate_code", MESH)
    assert found.name == "y"


async def test_closing_ends_readings_on_their_way(clock: Clock) -> None:
    class SilentSource(SlowSource):
        asked_for_one = asyncio.Event()

        async def read_key(self, key: str) -> Sequence[Listing]:
            self.asked_for_one.set()
            await self.let.wait()
            return ()

    source = SilentSource("home", [listing("x")])
    source.let.set()
    directory = directory_of(clock, source)
    await directory.refresh()
    source.let.clear()
    source.asked.clear()
    waiting = [asyncio.create_task(directory.refresh()), asyncio.create_task(directory.reread(listing("x")))]
    await source.asked.wait()
    await source.asked_for_one.wait()
    await directory.aclose()
    for task in waiting:
        with pytest.raises(asyncio.CancelledError):
            await task
    assert directory.find("x") is not None


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


async def test_a_miss_names_the_sources_that_could_not_be_asked(clock: Clock) -> None:
    dead = MemorySource("far")
    dead.failure = DOWN
    directory = directory_of(clock, MemorySource("home", [listing("plan")]), dead)
    assert keys(await directory.resolve_skill("create_plan", MESH)) == ["agents/plan"]
    with pytest.raises(SkillNotOfferedError) as missed:
        await directory.resolve_skill("deploy", MESH)
    assert missed.value.unasked == ("far",)


# Failing sources


async def test_a_source_that_goes_down_keeps_its_agents_and_the_problem_is_told(clock: Clock) -> None:
    source = MemorySource("home", [listing("plan")])
    directory = directory_of(clock, source)
    await directory.refresh()
    source.failure = DOWN
    clock.seconds += 301
    assert keys(await directory.resolve_skill("create_plan", MESH)) == ["agents/plan"]
    assert directory.problems() == (SourceProblem("home", None, DOWN),)
    source.failure = None
    clock.seconds += 6
    await directory.resolve_skill("create_plan", MESH)
    assert directory.problems() == ()


async def test_one_bad_listing_keeps_its_stale_form_and_the_rest_is_true(clock: Clock) -> None:
    source = MemorySource("home", [listing("a"), listing("b"), listing("c")])
    directory = directory_of(clock, source)
    await directory.refresh()
    bad = SourceProblem("home", "agents/a", MalformedArtifactError("agents/a:v1", "no JSON"))
    source.problems = (bad,)
    source.remove("agents/b")
    await directory.refresh()
    assert keys(directory.list_all()) == ["agents/a", "agents/c"]
    assert directory.problems() == (bad,)


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
    clock: Clock, open_store: Callable[[], Listings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.mesh.directory.listing_cache._CACHED", 2)
    directory = directory_of(
        clock, MemorySource("home", [listing(name) for name in "abcdefgh"]), store=open_store()
    )
    opened: list[Listing | None] = []
    directory.subscribe(lambda change: opened.append(directory.find_listing(change.entry.id)))
    await directory.refresh()
    assert opened == [listing(name) for name in "abcdefgh"]
    assert list(directory.list_all()) == opened
    directory.mark_unreachable(directory.get("h"), "refused")
    assert opened[-1] == directory.get("h")
    assert directory.get("h").reachable is False


class UnchangingSource(MemorySource):
    """Gives a listing again only where it is new, as a registry does."""

    def __init__(self, name: str, listings: Sequence[Listing] = ()) -> None:
        super().__init__(name, listings)
        self.given: dict[str, str] = {}
        self.read_alone: list[str] = []

    def remember(self, held: Iterable[Entry]) -> None:
        self.given = {entry.key: entry.digest or "" for entry in held}

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        found = await super().read_all()
        new = tuple(one for one in found.listings if self.given.get(one.key) != one.digest)
        self.given = {one.key: one.digest or "" for one in found.listings}
        return Reading(
            new,
            found.problems,
            {(k, "v1"): d for k, d in self.given.items() if k not in {n.key for n in new}},
        )

    async def read_key(self, key: str) -> Sequence[Listing]:
        self.read_alone.append(key)
        return await super().read_key(key)


async def test_what_is_unchanged_stays_and_what_is_listed_no_more_goes(
    clock: Clock, open_store: Callable[[], Listings]
) -> None:
    source = UnchangingSource("home", [listing("a"), listing("b")])
    await directory_of(clock, source, store=open_store()).refresh()
    directory = directory_of(clock, source, store=open_store())
    assert source.given.keys() == {"agents/a", "agents/b"}
    source.remove("agents/b")
    source.put(listing("c"))
    await directory.refresh()
    assert keys(directory.list_entries()) == ["agents/a", "agents/c"]
    assert source.read_alone == []


async def test_what_a_source_takes_for_held_and_is_not_is_read_by_itself(clock: Clock) -> None:
    source = UnchangingSource("home", [listing("a"), listing("b"), listing("c")])
    directory = directory_of(clock, source)
    await directory.refresh()
    directory.remove(listing("a").id)
    directory.upsert(replace(listing("b"), digest="sha256:other"))
    await directory.refresh()
    assert source.read_alone == ["agents/a", "agents/b"]
    assert [one.digest for one in directory.list_all()] == [listing(name).digest for name in "abc"]


async def test_a_source_may_give_by_and_by_what_it_reads(clock: Clock) -> None:
    class Gradual(MemorySource):
        async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
            (first, *rest) = (await super().read_all()).listings
            assert give is not None
            give([first])
            assert directory.find(first.name) == first
            return Reading(tuple(rest), (), {(first.key, "v1"): first.digest or ""})

    source = Gradual("home", [listing("a"), listing("b")])
    directory = directory_of(clock, source)
    await directory.refresh()
    assert keys(directory.list_entries()) == ["agents/a", "agents/b"]


async def test_agents_come_page_by_page_from_anywhere(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.mesh.directory.directory.YIELD_EVERY", 2)
    several = [
        listing(name, source=source, url=f"http://{name}.{source}")
        for source in ("home", "far")
        for name in "abc"
    ]
    directory = await filled(clock, *several)
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


class SlowReading(MemorySource):
    """A source whose reading of everything is answered late, with what held when it began."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.began = asyncio.Event()
        self.gate = asyncio.Event()

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        found = await super().read_all()
        self.began.set()
        await self.gate.wait()
        return found


@requirement("P-30")
async def test_a_key_that_was_read_by_itself_is_not_undone_by_an_older_reading_of_all() -> None:
    source = SlowReading("one")
    gone, moved = listing("gone", source="one"), listing("moved", source="one")
    source.put(gone)
    source.put(moved)
    directory = Directory(MemoryListings(), [source])
    refreshing = asyncio.create_task(directory.refresh())
    await source.began.wait()
    source.remove(gone.key)
    source.put(listing("moved", source="one", version="9.0.0"))
    source.put(listing("new", source="one"))
    for key in (gone.key, moved.key, listing("new", source="one").key):
        await directory.reread_key("one", key)
    source.gate.set()
    await refreshing
    assert sorted(a.record.name for a in directory.list_all()) == ["moved", "new"]
    assert directory.get("moved").record.version == "9.0.0"
    await directory.aclose()


async def test_a_source_that_fails_for_one_key_changes_nothing_and_says_so() -> None:
    source = MemorySource("one", [listing("x", source="one")])
    directory = Directory(MemoryListings(), [source])
    await directory.refresh()
    source.failure = RegistryUnreachableError("one", "refused")
    assert await directory.reread_key("one", listing("x").key) is not None
    assert [p.key for p in directory.problems()] == [listing("x").key]
    assert await directory.reread_key("unknown", "x") is None
    await directory.aclose()
