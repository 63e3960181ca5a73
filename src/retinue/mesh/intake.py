"""How a reading of a source becomes what is held, while others run.

A hundred thousand keys are looked at some at a time, so that nobody waits for more than a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable

from retinue.core.record import Listing, ListingKey
from retinue.mesh.holdings import Holdings
from retinue.mesh.sources import Reading

BATCH = 100
"""Listings that are written together: some 10 ms, and some 40 ms more where their words are taken in."""

GLANCED = 5_000
"""Entries looked at before others may run: some 5 ms."""


class Intake:
    """Takes the readings of one ``source`` into ``held``, but for the keys in ``overtaken``.

    ``overtaken`` are read by themselves since the reading began, which may know less of them;
    ``reread`` reads one key by itself.
    """

    def __init__(
        self,
        source: str,
        held: Holdings,
        overtaken: Collection[str],
        reread: Callable[[str], Awaitable[None]],
    ) -> None:
        self._source = source
        self._held = held
        self._overtaken = overtaken
        self._reread = reread

    def take_some(self, listings: Iterable[Listing]) -> None:
        """Hold what is new; the rest of its reading is to come."""
        self._held.accept(one for one in listings if one.key not in self._overtaken)

    async def take(self, reading: Reading) -> None:
        """Hold what the reading lists, drop what it neither lists nor has a problem with."""
        for start in range(0, len(reading.listings), BATCH):
            self.take_some(reading.listings[start : start + BATCH])
            await asyncio.sleep(0)
        for key in await self._list_lost(reading):
            if key not in self._overtaken:
                await self._reread(key)
        gone = await self._list_gone(reading)
        for start in range(0, len(gone), BATCH):
            self._held.remove(gone[start : start + BATCH])
            await asyncio.sleep(0)

    async def _list_lost(self, reading: Reading) -> list[str]:
        """What the source gives no more, since it gave it before, and is not held as it was given."""
        lost = []
        for number, (key, digest) in enumerate(reading.unchanged.items()):
            held = self._held.index.find(ListingKey(self._source, key))
            if held is None or held.digest != digest:
                lost.append(key)
            if number % GLANCED == 0:
                await asyncio.sleep(0)
        return lost

    async def _list_gone(self, reading: Reading) -> list[ListingKey]:
        spared = {a.key for a in reading.listings} | {p.key for p in reading.problems}
        if None in spared:
            return []
        gone: list[ListingKey] = []
        ids = self._held.index.list_ids()
        for start in range(0, len(ids), GLANCED):
            gone += [
                i
                for i in ids[start : start + GLANCED]
                if i.source == self._source
                and i.key not in reading.unchanged
                and i.key not in spared
                and i.key not in self._overtaken
            ]
            await asyncio.sleep(0)
        return [i for i in gone if i.key not in self._overtaken]
