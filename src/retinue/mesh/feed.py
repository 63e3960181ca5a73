"""When a source is read: once for all who ask at the same time, and not oftener than needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from retinue.core.errors import RegistryUnreachableError, RetinueError
from retinue.mesh.sources import Reading, RevalidatedSource, Source, SourceProblem, WatchedSource

MISS_TTL_S = 1.0
"""Look-ups that miss re-read a source at most this often."""

RETRY_S = 5.0
"""A source that failed is asked again after this time, where its time to live is longer."""

MISS_GRACE_S = 2.0
"""A look-up that misses waits so long for a source that hangs; the reading goes on behind it."""

SLOWNESS = 3.0
"""A source that never was quick is waited for so many times its slowest reading."""


class Feed:
    """One source of a directory; ``take`` receives each reading, once."""

    def __init__(
        self, source: Source, take: Callable[[Reading], Awaitable[None]], clock: Callable[[], float]
    ) -> None:
        self.source = source
        self.failure: RetinueError | None = None
        self.problems: dict[str, SourceProblem] = {}
        self.reads = 0
        self.is_warm = False
        """Whether listings of it were kept from before, which may serve while it is read."""
        self.overtaken: set[str] = set()
        """Keys that were read by themselves since the reading in flight began: it may know less of them."""
        self._take = take
        self._clock = clock
        self._watch = source if isinstance(source, WatchedSource) else None
        self._task: asyncio.Task[None] | None = None
        self._began_at = 0.0
        self._slowest_s = 0.0
        self._thorough = True
        self._for_miss = False

    @property
    def has_changed(self) -> bool:
        """Whether the source itself says so; False for one that cannot tell."""
        return self._watch is not None and self._watch.changed()

    def is_expired(self, ttl_s: float) -> bool:
        """Whether the last reading is older than its time to live, and none hangs in its place."""
        if self._is_reading and self._patience_left_s <= 0:
            return False
        limit_s = ttl_s if self.failure is None else min(ttl_s, RETRY_S)
        return self._clock() - self._began_at >= limit_s

    def start(self, *, thorough: bool = True) -> asyncio.Task[None]:
        """The reading in flight, or a new one; only revalidating where not ``thorough``."""
        if self._task is None or self._task.done():
            self._began_at = self._clock()
            self._for_miss = False
            self._thorough = thorough
            self.overtaken.clear()
            self._task = asyncio.create_task(self._read(), name=f"read {self.source.name}")
        return self._task

    def overtake(self, key: str) -> None:
        """Note that this key is read by itself from now on."""
        if self._is_reading:
            self.overtaken.add(key)

    async def read(self, *, thorough: bool = True) -> None:
        """Read the source, from now on: a reading already in flight may have missed something."""
        await self._join()
        await asyncio.shield(self.start(thorough=thorough))

    async def read_if_needed(self) -> None:
        """Join a reading in flight, and read once more where the source still says that it changed."""
        await self._join()
        if self.reads == 0 or self.has_changed:
            await asyncio.shield(self.start())

    async def read_for_miss(self, reads_before: int, asked_at: float) -> None:
        """Read on behalf of a look-up that missed, unless one has just been read for such.

        ``reads_before`` and ``asked_at`` are the count of reads and the time when the look-up began:
        a reading that ended since is as good as a new one. One that hangs is a failure until it ends.
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
        """Stop the reading in flight."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def _is_reading(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def _patience_left_s(self) -> float:
        """How much longer a miss waits for the reading in flight; little where the last one failed."""
        usual_s = 0.0 if self.failure is not None else SLOWNESS * self._slowest_s
        return max(MISS_GRACE_S, usual_s) - (self._clock() - self._began_at)

    async def _ends_soon(self, task: asyncio.Task[None]) -> bool:
        """Wait for a reading as long as it is worth it; False, with a failure noted, when it goes on."""
        await asyncio.wait([task], timeout=max(0.0, self._patience_left_s))
        if task.done():
            await task
            return True
        if self.failure is None:
            waited_s = self._clock() - self._began_at
            cause = f"no answer within {waited_s:.0f} s, a look-up waits no longer"
            self.failure = RegistryUnreachableError(self.source.name, cause)
        return False

    async def _join(self) -> None:
        if self._task is not None and not self._task.done():
            await asyncio.shield(self._task)

    async def _read(self) -> None:
        try:
            if not self._thorough and isinstance(self.source, RevalidatedSource):
                reading = await self.source.revalidate()
            else:
                reading = await self.source.read_all()
        except RetinueError as error:
            self.failure = error
        else:
            await self._take(reading)
            self.failure = None
            self._slowest_s = max(self._slowest_s, self._clock() - self._began_at)
            told = {p.key: p for p in reading.problems if p.key is not None and p.key not in self.overtaken}
            self.problems = told | {k: p for k, p in self.problems.items() if k in self.overtaken}
        finally:
            self.reads += 1
