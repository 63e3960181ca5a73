"""A source that hangs: who misses waits for it a moment, longer where it was never quick, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from retinue.core.errors import RegistryUnreachableError, SkillNotOfferedError
from retinue.mesh.directory.directory import TTL_S, Directory
from retinue.mesh.directory.limits import DEFAULT_LIMITS, DirectoryLimits
from retinue.mesh.directory.listing_cache import ListingCache
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.source_refresh import (
    RETRY_S,
    WAIT_FACTOR,
    SourceRefresher,
    SourceSync,
)
from retinue.mesh.directory.sources import Give, Reading
from tests.mesh.scripted import FakeClock, make_listing, make_skill
from tests.requirements import requirement
from tests.support.memory_source import MemorySource

MESH = frozenset({"exposed", "mesh"})
WITHIN_S = 60
IMPATIENT = DirectoryLimits(miss_wait_s=0.05)


class Stoppable(MemorySource):
    """Answers as long as ``going`` is set; ``takes_s`` passes meanwhile."""

    def __init__(self, name: str, clock: FakeClock, takes_s: float = 0.0) -> None:
        super().__init__(name, [make_listing("plan-agent")])
        self.going, self.asked = asyncio.Event(), asyncio.Event()
        self.going.set()
        self.takes_s = takes_s
        self._clock = clock

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        self.asked.set()
        await self.going.wait()
        self._clock.pass_time(self.takes_s)
        return await super().read_all()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def stoppable(clock: FakeClock) -> Stoppable:
    return Stoppable("home", clock)


@pytest.fixture
async def directory(clock: FakeClock, stoppable: Stoppable) -> AsyncIterator[Directory]:
    opened = Directory(MemoryListings(), [MemorySource("near"), stoppable], clock=clock, limits=IMPATIENT)
    await opened.refresh()
    yield opened
    await opened.aclose()


async def miss(directory: Directory) -> SkillNotOfferedError:
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(SkillNotOfferedError) as missed:
            await directory.resolve_skill("deploy", MESH)
    return missed.value


@requirement("P-30")
async def test_a_miss_does_not_wait_for_a_source_that_hangs_and_names_it(
    directory: Directory, stoppable: Stoppable, clock: FakeClock
) -> None:
    stoppable.going.clear()
    clock.pass_time(2.0)
    assert (await miss(directory)).unasked == ("home",)
    (problem,) = directory.problems()
    assert type(problem.error) is RegistryUnreachableError
    # Whom it named before is called all the same.
    (found,) = await directory.resolve_skill("create_plan", MESH)
    assert found.name == "plan-agent"


async def test_the_reading_goes_on_and_what_it_finds_is_known(
    directory: Directory, stoppable: Stoppable, clock: FakeClock
) -> None:
    stoppable.put(make_listing("deploy-agent", make_skill("deploy")))
    known = asyncio.Event()
    directory.subscribe(lambda _: known.set())
    stoppable.going.clear()
    clock.pass_time(2.0)
    await miss(directory)
    stoppable.going.set()
    async with asyncio.timeout(WITHIN_S):
        await known.wait()
        (found,) = await directory.resolve_skill("deploy", MESH)
        await directory.refresh()  # which joins the reading on its way to its end
    assert found.name == "deploy-agent"
    assert directory.problems() == ()


async def test_the_next_who_miss_do_not_wait_for_it_again(stoppable: Stoppable, clock: FakeClock) -> None:
    patient = DirectoryLimits(miss_wait_s=2.0 * WITHIN_S)
    directory = Directory(MemoryListings(), [stoppable], clock=clock, limits=patient)
    await directory.refresh()
    stoppable.asked.clear()
    stoppable.going.clear()
    reading = asyncio.create_task(directory.refresh())
    await stoppable.asked.wait()
    clock.pass_time(patient.miss_wait_s + 1)
    for _ in range(2):
        assert (await miss(directory)).unasked == ("home",)
    await directory.aclose()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_source_that_never_was_quick_is_waited_for(
    directory: Directory, stoppable: Stoppable, clock: FakeClock
) -> None:
    stoppable.takes_s = 20.0
    await directory.refresh()
    stoppable.put(make_listing("deploy-agent", make_skill("deploy")))
    stoppable.going.clear()
    stoppable.asked.clear()
    clock.pass_time(2.0)
    looking = asyncio.create_task(directory.resolve_skill("deploy", MESH))
    await stoppable.asked.wait()
    assert not (await asyncio.wait([looking], timeout=0.1))[0]
    stoppable.going.set()
    async with asyncio.timeout(WITHIN_S):
        (found,) = await looking
    assert found.name == "deploy-agent"


async def test_a_source_that_is_added_during_a_look_up_that_misses_is_read_for_it(
    stoppable: Stoppable, clock: FakeClock
) -> None:
    directory = Directory(MemoryListings(), [stoppable], clock=clock, limits=IMPATIENT)
    await directory.refresh()
    clock.pass_time(TTL_S)
    stoppable.asked.clear()
    stoppable.going.clear()
    looking = asyncio.create_task(directory.resolve_skill("translate", MESH))
    await stoppable.asked.wait()
    late = replace(make_listing("late-agent", make_skill("translate")), source="late")
    directory.add_sources([MemorySource("late", [late])])
    stoppable.going.set()
    async with asyncio.timeout(WITHIN_S):
        (found,) = await looking
    assert found.name == "late-agent"


async def test_a_reading_that_hangs_makes_nobody_else_wait_for_a_fresh_one(
    stoppable: Stoppable, clock: FakeClock
) -> None:
    async def reread(_: str) -> None: ...

    held = ListingCache(MemoryListings(), lambda _: 0, lambda _: None)
    refresher = SourceRefresher(stoppable, SourceSync("home", held, reread), clock)
    stoppable.going.clear()
    refresher.start()
    assert refresher.is_expired(0.0)
    clock.pass_time(max(RETRY_S, WAIT_FACTOR * DEFAULT_LIMITS.miss_wait_s) + 1)
    assert not refresher.is_expired(RETRY_S)
    await refresher.aclose()
    assert refresher.is_expired(RETRY_S)
