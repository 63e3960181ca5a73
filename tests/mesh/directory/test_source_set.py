"""When a directory reads its sources, and what it keeps of those that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from retinue.core.errors import (
    MalformedArtifactError,
    RegistryUnreachableError,
    SkillNotOfferedError,
    UnknownSkillError,
)
from retinue.core.record import Listing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.limits import DirectoryLimits
from retinue.mesh.directory.listings import Listings, MemoryListings
from retinue.mesh.directory.sources import Give, Reading, SourceProblem
from retinue.mesh.entry import Entry
from tests.mesh.directory.listings import DOWN, MESH, Clock, directory_of, keys, listing
from tests.requirements import requirement
from tests.support.memory_source import MemorySource

IMPATIENT = DirectoryLimits(expired_wait_s=0.01)


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


async def test_a_source_that_hangs_past_its_time_to_live_does_not_hold_up_look_ups(clock: Clock) -> None:
    source = SlowSource("home", [listing("plan")])
    directory = directory_of(clock, source, limits=IMPATIENT)
    source.let.set()
    await directory.refresh()
    source.let.clear()
    clock.seconds += 301
    assert keys(await directory.resolve_skill("create_plan", MESH)) == ["agents/plan"]
    assert source.reads == 1
    await directory.aclose()


async def test_what_is_known_from_a_former_process_serves_while_a_slow_source_is_read(
    clock: Clock,
) -> None:
    source = SlowSource("home", [listing("plan"), listing("build", "generate_code")])
    directory = directory_of(clock, source, store=MemoryListings([listing("plan")]), limits=IMPATIENT)
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


async def test_a_miss_names_the_sources_that_could_not_be_asked(clock: Clock) -> None:
    dead = MemorySource("far")
    dead.failure = DOWN
    directory = directory_of(clock, MemorySource("home", [listing("plan")]), dead)
    assert keys(await directory.resolve_skill("create_plan", MESH)) == ["agents/plan"]
    with pytest.raises(SkillNotOfferedError) as missed:
        await directory.resolve_skill("deploy", MESH)
    assert missed.value.unasked == ("far",)


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
