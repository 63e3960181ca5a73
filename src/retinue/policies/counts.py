"""Counts calls for policies with ``@effect("limit")``: at most so many in each window that ends now."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from retinue.core.errors import BusyError

if TYPE_CHECKING:  # runs keep counts where the engine of policies is not installed
    from retinue.policies.obligations import CountedBy
    from retinue.policies.policy_set import Policy

MAX_KEYS = 100_000
"""Counts that a process keeps; a new one is refused then, because to forget one would permit its calls."""


@dataclass(frozen=True, slots=True)
class Count:
    """The limit of calls under ``key``: at most ``calls`` calls in ``window_s`` seconds."""

    key: str
    calls: int
    window_s: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """The count that has no place for a call, and the seconds until it has one."""

    count: Count
    wait_s: float


class CallCounts(Protocol):
    """Keeps the times of counted calls: those of one process, or those of all that share a database."""

    async def take(self, counts: Sequence[Count]) -> Refusal | None:
        """Count one call under each key, or under none of them if one has no place for it."""

    async def find_refusal(self, counts: Sequence[Count]) -> Refusal | None:
        """The refusal that `take` would give now; counts nothing."""

    async def give_back(self, counts: Sequence[Count]) -> None:
        """Take back the call that was counted last under each key."""


class MemoryCounts:
    """The counts of one process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._times: dict[str, list[float]] = {}
        self._windows: dict[str, float] = {}

    async def take(self, counts: Sequence[Count]) -> Refusal | None:
        now = self._clock()
        for count in counts:
            if count.key not in self._times and len(self._times) >= MAX_KEYS:
                self._sweep(now)
                if len(self._times) >= MAX_KEYS:
                    raise BusyError(f"this process counts the calls of {MAX_KEYS:,} callers", 60.0)
        refusal, taken = take_all(counts, self._times, now)
        self._times |= taken
        self._windows |= {count.key: count.window_s for count in counts}
        return refusal

    async def find_refusal(self, counts: Sequence[Count]) -> Refusal | None:
        return take_all(counts, self._times, self._clock())[0]

    async def give_back(self, counts: Sequence[Count]) -> None:
        for count in counts:
            if times := self._times.get(count.key):
                times.pop()

    def _sweep(self, now: float) -> None:
        old = [
            key for key, times in self._times.items() if not times or times[-1] <= now - self._windows[key]
        ]
        for key in old:
            del self._times[key], self._windows[key]


def take_all(
    counts: Sequence[Count], known: Mapping[str, Sequence[float]], now: float
) -> tuple[Refusal | None, dict[str, list[float]]]:
    """The times of each key with one call more; or the refusal of the call that waits longest, and no times.

    A time in the future, as of a clock that was set back, counts as now.
    """
    taken: dict[str, list[float]] = {}
    refusal: Refusal | None = None
    for count in counts:
        times = [min(at, now) for at in known.get(count.key, ()) if at > now - count.window_s]
        if len(times) >= count.calls:
            wait_s = times[len(times) - count.calls] + count.window_s - now
            if refusal is None or wait_s > refusal.wait_s:
                refusal = Refusal(count, wait_s)
        taken[count.key] = [*times, now]
    return refusal, {} if refusal else taken


@dataclass(frozen=True, slots=True)
class PolicyLimits:
    """The limits of one call: ``counts`` with what is limited to what, for the caller that is refused.

    `check` and `take` raise BusyError where a limit is reached.
    """

    open_counts: Callable[[], Awaitable[CallCounts]]
    counts: Mapping[Count, str]

    async def check(self) -> None:
        """Refuse the call that `take` would refuse now; it is not counted."""
        self._refuse(await (await self.open_counts()).find_refusal(list(self.counts)))

    async def take(self) -> None:
        """Count the call under all limits, or under none."""
        self._refuse(await (await self.open_counts()).take(list(self.counts)))

    async def give_back(self) -> None:
        """Take back the call that was counted last, because it does not run."""
        await (await self.open_counts()).give_back(list(self.counts))

    def _refuse(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            raise BusyError(self.counts[refusal.count], refusal.wait_s)


def make_count(policy: Policy, facts: Mapping[CountedBy, str]) -> Count:
    """The count of a policy for a call with these facts."""
    assert policy.limit is not None
    values = "\0".join(facts[name] for name in policy.limit.by)
    key = sha256(f"{policy.id}\0{values}".encode("utf-8", "surrogatepass")).hexdigest()[:40]
    return Count(key, policy.limit.calls, policy.limit.window_s)
