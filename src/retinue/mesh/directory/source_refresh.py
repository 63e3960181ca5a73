"""Reads sources: once for concurrent requests, and no more often than needed.

`SourceRefresher` decides when a source is read; `SourceSync` applies a reading to the listing cache. A
hundred thousand keys are processed in batches, so that other tasks run in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from retinue.core.durations import render_duration
from retinue.core.errors import CardSignatureError, RegistryUnreachableError, RetinueError
from retinue.core.record import Listing, ListingKey
from retinue.mesh.directory.limits import DEFAULT_LIMITS, DirectoryLimits
from retinue.mesh.directory.listing_cache import ListingCache
from retinue.mesh.directory.sources import Reading, Source, SourceProblem

MISS_TTL_S = 1.0
"""Look-ups that find nothing read a source again at most this often."""


RETRY_S = 5.0
"""A source that failed is read again after this time, where its time to live is longer."""


WAIT_FACTOR = 3.0
"""A look-up waits for a source that was always slow this many times as long as its slowest reading."""


BATCH = 100
"""Listings that are written together: about 10 ms, and 40 ms more where their words are indexed."""


YIELD_EVERY = 5_000
"""Entries processed before other tasks run: about 5 ms."""


class SourceSync:
    """Applies the readings of one ``source`` to ``cache``; ``reread`` reads one key by itself.

    ``reread_keys`` holds the keys that were read by themselves since the current reading began. The reading
    may be older than they are, so it does not change them.
    """

    def __init__(self, source: str, held: ListingCache, reread: Callable[[str], Awaitable[None]]) -> None:
        self.reread_keys: set[str] = set()
        self._source = source
        self._cache = held
        self._reread = reread

    def accept(self, listings: Iterable[Listing]) -> None:
        """Store new listings of a reading that is still in progress."""
        self._cache.accept(listing for listing in listings if listing.key not in self.reread_keys)

    async def take(self, reading: Reading) -> None:
        """Store the listings of a reading, and remove every other listing that it reports no problem for."""
        for start in range(0, len(reading.listings), BATCH):
            self.accept(reading.listings[start : start + BATCH])
            await asyncio.sleep(0)
        for key in await self._list_missing(reading):
            if key not in self.reread_keys:
                await self._reread(key)
        gone = await self._list_gone(reading)
        for start in range(0, len(gone), BATCH):
            self._cache.remove(gone[start : start + BATCH])
            await asyncio.sleep(0)

    async def _list_missing(self, reading: Reading) -> list[str]:
        """The keys that the source reports as unchanged, but that the cache does not have in that form."""
        missing = []
        for number, ((key, tag), digest) in enumerate(reading.unchanged.items()):
            held = self._cache.index.find(ListingKey(self._source, key, tag))
            if held is None or held.digest != digest:
                missing.append(key)
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        return list(dict.fromkeys(missing))

    async def _list_gone(self, reading: Reading) -> list[ListingKey]:
        listed = {a.id for a in reading.listings}
        # a card that cannot be read may be readable again soon; one that is not trusted is not used meanwhile
        spared = {p.key for p in reading.problems if not isinstance(p.error, CardSignatureError)}
        if None in spared:
            return []
        gone: list[ListingKey] = []
        ids = self._cache.index.list_ids()
        for start in range(0, len(ids), YIELD_EVERY):
            gone += [
                i
                for i in ids[start : start + YIELD_EVERY]
                if i.source == self._source
                and (i.key, i.tag) not in reading.unchanged
                and i not in listed
                and i.key not in spared
                and i.key not in self.reread_keys
            ]
            await asyncio.sleep(0)
        return [i for i in gone if i.key not in self.reread_keys]


class SourceRefresher:
    """Reads one source of a directory; ``sync`` applies each reading once."""

    def __init__(
        self,
        source: Source,
        sync: SourceSync,
        clock: Callable[[], float],
        limits: DirectoryLimits = DEFAULT_LIMITS,
    ) -> None:
        self.source = source
        self.failure: RetinueError | None = None
        self.problems: dict[str, SourceProblem] = {}
        self.reads = 0
        self.has_kept_listings = False
        """Whether listings of an earlier process are known, which can be used while the source is read."""
        self._sync = sync
        self._clock = clock
        self._miss_wait_s = limits.miss_wait_s
        self._task: asyncio.Task[None] | None = None
        self._began_at = 0.0
        self._slowest_s = 0.0
        self._thorough = True
        self._for_miss = False

    @property
    def has_changed(self) -> bool:
        """Whether the source reports a change; False for a source that cannot detect changes."""
        return self.source.changed()

    @property
    def is_needed(self) -> bool:
        """Whether it has to be read before it is used: it has changed, or nothing is known of it."""
        return self.has_changed or (self.reads == 0 and not self.has_kept_listings)

    def is_expired(self, ttl_s: float) -> bool:
        """Whether the last reading is older than its time to live, and no reading hangs at the moment."""
        if self._is_reading and self._wait_left_s <= 0:
            return False
        limit_s = ttl_s if self.failure is None else min(ttl_s, RETRY_S)
        return self._clock() - self._began_at >= limit_s

    def start(self, *, thorough: bool = True) -> asyncio.Task[None]:
        """The reading in progress, or a new one, which without ``thorough`` only revalidates."""
        if self._task is None or self._task.done():
            self._began_at = self._clock()
            self._for_miss = False
            self._thorough = thorough
            self._sync.reread_keys.clear()
            self._task = asyncio.create_task(self._read(), name=f"read {self.source.name}")
        return self._task

    def add_reread_key(self, key: str) -> None:
        """Record that this key is read by itself from now on."""
        if self._is_reading:
            self._sync.reread_keys.add(key)

    async def read(self, *, thorough: bool = True) -> None:
        """Wait for a reading in progress, then read again, because the former may have missed a change."""
        await self._join()
        await asyncio.shield(self.start(thorough=thorough))

    async def read_if_needed(self) -> None:
        """Wait for a reading in progress, and read again where the source still reports a change."""
        await self._join()
        if self.reads == 0 or self.has_changed:
            await asyncio.shield(self.start())

    async def read_for_miss(self, reads_before: int, asked_at: float) -> None:
        """Read for a look-up that found nothing, unless the source has just been read for another one.

        ``reads_before`` and ``asked_at`` are the number of reads and the time when the look-up began: a
        reading that ended since is as good as a new one. A reading that hangs counts as a failure until it
        ends.
        """
        if self._task is not None and not self._task.done() and not await self._ends_soon(self._task):
            return
        if self._thorough and self.reads > reads_before and asked_at - self._began_at <= MISS_TTL_S:
            return
        if self._for_miss and self._clock() - self._began_at <= MISS_TTL_S and not self.has_changed:
            return
        task = self.start()
        self._for_miss = True
        await self._ends_soon(task)

    async def aclose(self) -> None:
        """Cancel the reading in progress."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def _is_reading(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def _wait_left_s(self) -> float:
        """How much longer a look-up waits for the reading in progress; shorter where the last one failed."""
        usual_s = 0.0 if self.failure is not None else WAIT_FACTOR * self._slowest_s
        return max(self._miss_wait_s, usual_s) - (self._clock() - self._began_at)

    async def _ends_soon(self, task: asyncio.Task[None]) -> bool:
        """Wait for a reading for a limited time; False, with a failure recorded, when it has not ended."""
        await asyncio.wait([task], timeout=max(0.0, self._wait_left_s))
        if task.done():
            await task
            return True
        if self.failure is None:
            waited_s = self._clock() - self._began_at
            cause = f"no answer within {render_duration(waited_s)}, a look-up waits no longer"
            self.failure = RegistryUnreachableError(self.source.name, cause)
        return False

    async def _join(self) -> None:
        if self._task is not None and not self._task.done():
            await asyncio.shield(self._task)

    async def _read(self) -> None:
        try:
            reading = await self.source.read_all(self._sync.accept, thorough=self._thorough)
        except RetinueError as error:
            self.failure = error
        else:
            await self._sync.take(reading)
            self.failure = None
            self._slowest_s = max(self._slowest_s, self._clock() - self._began_at)
            reread = self._sync.reread_keys
            problems = {p.key: p for p in reading.problems if p.key is not None and p.key not in reread}
            self.problems = problems | {k: p for k, p in self.problems.items() if k in reread}
        finally:
            self.reads += 1
