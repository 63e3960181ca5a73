"""The sources of a directory: reads each when it is due, and single keys on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from retinue.core.errors import RetinueError
from retinue.core.record import ListingKey
from retinue.mesh.directory.limits import DEFAULT_LIMITS, DirectoryLimits
from retinue.mesh.directory.listing_cache import ListingCache
from retinue.mesh.directory.source_refresh import SourceRefresher, SourceSync
from retinue.mesh.directory.sources import Source, SourceProblem

LOOK_S = 0.05
"""Calls look for a change of a source at most this often, because a look costs a stat call."""


class SourceSet:
    """Reads the added sources into ``cache``; ``ttl_s`` = seconds after which a list is read again.

    Call `aclose` at the end.
    """

    def __init__(
        self,
        cache: ListingCache,
        clock: Callable[[], float],
        ttl_s: float,
        limits: DirectoryLimits = DEFAULT_LIMITS,
    ) -> None:
        self.ttl_s = ttl_s
        self._limits = limits
        self._cache = cache
        self._clock = clock
        self._refreshers: dict[str, SourceRefresher] = {}
        self._current_at = float("-inf")  # when a look at all sources found none that had to be read
        self._rereads: dict[ListingKey, asyncio.Task[None]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._refreshers

    def __len__(self) -> int:
        return len(self._refreshers)

    def add(self, source: Source) -> None:
        """Read this source from now on, too; its stored listings are in the cache's index already."""

        async def reread(key: str) -> None:
            await self._reread(refresher, ListingKey(source.name, key))

        refresher = self._refreshers[source.name] = SourceRefresher(
            source, SourceSync(source.name, self._cache, reread), self._clock, self._limits
        )
        kept = [entry for entry in self._cache.index if entry.source == source.name]
        refresher.has_kept_listings = bool(kept)
        source.remember(kept)
        self._current_at = float("-inf")

    async def ensure_fresh(self, *, for_call: bool = False) -> None:
        """As `Directory.ensure_fresh`."""
        at = self._clock()
        if for_call and at - self._current_at < LOOK_S:
            return
        refreshers = self._refreshers.values()
        needed = [refresher for refresher in refreshers if refresher.is_needed]
        others = [refresher for refresher in refreshers if refresher not in needed]
        expired = [
            refresher for refresher in others if refresher.reads == 0 or refresher.is_expired(self.ttl_s)
        ]
        if not (needed or expired):
            self._current_at = at
        if expired:
            readings = [refresher.start() for refresher in expired]
            await asyncio.wait(readings, timeout=self._limits.expired_wait_s)
        if needed:
            await asyncio.gather(*(refresher.read_if_needed() for refresher in needed))

    async def read_all(self, *, thorough: bool) -> None:
        """Read every source now. Without ``thorough``, only revalidate."""
        await asyncio.gather(*(refresher.read(thorough=thorough) for refresher in self._refreshers.values()))

    async def read(self, source: str) -> None:
        """Revalidate one source now; an unknown one is left out."""
        refresher = self._refreshers.get(source)
        if refresher is not None:
            await refresher.read(thorough=False)

    def count_reads(self) -> dict[str, int]:
        """How often each source was read."""
        return {name: refresher.reads for name, refresher in self._refreshers.items()}

    async def read_for_miss(self, reads: Mapping[str, int], asked_at: float) -> None:
        """Read the sources again for a look-up of ``asked_at``, which found nothing after these reads."""
        await asyncio.gather(
            *(
                refresher.read_for_miss(reads.get(name, 0), asked_at)
                for name, refresher in self._refreshers.items()
            )
        )

    async def reread(self, listing_id: ListingKey) -> None:
        """Read the key of a listing again, once for all who ask meanwhile. A failure changes nothing."""
        refresher = self._refreshers.get(listing_id.source)
        if refresher is not None:
            place = listing_id._replace(tag="")
            await asyncio.shield(self._rereads.get(place) or self._start_reread(refresher, place))

    async def read_key(self, source: str, key: str) -> None:
        """As `reread`, but never uses a reading that began before the call."""
        refresher, listing_id = self._refreshers.get(source), ListingKey(source, key)
        if refresher is not None:
            while (task := self._rereads.get(listing_id)) is not None:
                await asyncio.wait([task])
            await asyncio.shield(self._start_reread(refresher, listing_id))

    def failures(self) -> dict[str, RetinueError | None]:
        """Each source, with why its last reading failed; None where it did not."""
        return {name: refresher.failure for name, refresher in self._refreshers.items()}

    def problems(self) -> list[SourceProblem]:
        """The sources and single listings that could not be read, and why."""
        return [
            problem
            for name, refresher in self._refreshers.items()
            for problem in (
                *([SourceProblem(name, None, refresher.failure)] if refresher.failure else ()),
                *refresher.problems.values(),
            )
        ]

    async def aclose(self) -> None:
        """Stop reading."""
        for refresher in self._refreshers.values():
            await refresher.aclose()
        rereads = list(self._rereads.values())
        for task in rereads:
            task.cancel()
        await asyncio.gather(*rereads, return_exceptions=True)

    def _start_reread(self, refresher: SourceRefresher, listing_id: ListingKey) -> asyncio.Task[None]:
        task = asyncio.create_task(self._reread(refresher, listing_id), name=f"reread {listing_id.key}")
        self._rereads[listing_id] = task
        task.add_done_callback(lambda _: self._rereads.pop(listing_id, None))
        return task

    async def _reread(self, refresher: SourceRefresher, listing_id: ListingKey) -> None:
        refresher.add_reread_key(listing_id.key)
        try:
            listings = await refresher.source.read_key(listing_id.key)
        except RetinueError as error:
            refresher.problems[listing_id.key] = SourceProblem(listing_id.source, listing_id.key, error)
            return
        refresher.problems.pop(listing_id.key, None)
        for listing in listings:
            self._cache.accept([listing])
            self._cache.keep_in_memory(listing)
        listed = {listing.id for listing in listings}
        held = self._cache.index.list_tags(listing_id.source, listing_id.key)
        self._cache.remove([entry.id for entry in held if entry.id not in listed])
