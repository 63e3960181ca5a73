"""Changes of cards: those of others are read beside the exchange, and own ones are told meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import orjson

from retinue.core.record import Listing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.runtime.many_hubs.registries import RegistryChanges
from tests.mesh.scripted import make_listing
from tests.support.memory_source import MemorySource

SLOW, OTHER = "http://slow:5000", "http://other:5000"
LATE_S = 60.0


class GatedSource(MemorySource):
    """Reads no key before ``gate`` is set; ``begun`` tells that a reading has begun."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def read_key(self, key: str) -> Sequence[Listing]:
        self.begun.set()
        await self.gate.wait()
        return await super().read_key(key)


def listing_at(source: str, name: str, digest: str) -> Listing:
    return replace(make_listing(name, digest=digest), source=source, tag="v1.0.0")


def told_by_others(listing: Listing) -> bytes:
    return orjson.dumps(
        {"registry": listing.source, "cards": [(listing.key, listing.tag, listing.digest)]},
    )


@asynccontextmanager
async def reading(changes: RegistryChanges) -> AsyncIterator[None]:
    task = asyncio.create_task(changes.read_pending())
    try:
        async with asyncio.timeout(LATE_S):
            yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until_listed(directory: Directory, name: str) -> None:
    while directory.find_named(name) is None:
        await asyncio.sleep(0.01)


async def test_a_slow_registry_delays_neither_the_exchange_nor_other_registries() -> None:
    slow, other = GatedSource(SLOW), MemorySource(OTHER)
    directory = Directory(MemoryListings(), [slow, other])
    changes = RegistryChanges(directory, [SLOW, OTHER])
    for source in (slow, other):
        source.put(listing_at(source.name, f"at {source.name}", "sha256:1"))
    async with reading(changes):
        for name in (SLOW, OTHER):
            await changes.hear(told_by_others(listing_at(name, f"at {name}", "sha256:1")))
        await slow.begun.wait()
        await until_listed(directory, f"at {OTHER}")
        assert directory.find_named(f"at {SLOW}") is None
        slow.gate.set()
        await until_listed(directory, f"at {SLOW}")
    await directory.aclose()


async def test_own_changes_are_told_while_those_of_others_are_read() -> None:
    slow = GatedSource(SLOW)
    directory = Directory(MemoryListings(), [slow])
    changes = RegistryChanges(directory, [SLOW])
    foreign = listing_at(SLOW, "foreign", "sha256:1")
    slow.put(foreign)
    async with reading(changes):
        await changes.hear(told_by_others(foreign))
        await slow.begun.wait()
        directory.upsert(listing_at(SLOW, "own", "sha256:2"))
        slow.gate.set()
        await until_listed(directory, "foreign")
        (message,) = await changes.take()
        assert [card[0] for card in orjson.loads(message)["cards"]] == ["agents/own"]
    await directory.aclose()
