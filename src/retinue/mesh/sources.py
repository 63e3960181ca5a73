"""The port through which the directory learns of agents, and its twin in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from retinue.core.errors import RetinueError
from retinue.core.record import Listing
from retinue.mesh.entry import Entry


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """Something that a source could not tell; ``key`` is None when it could not be asked at all."""

    source: str
    key: str | None
    error: RetinueError


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source said at one time: everything that it lists, less what ``problems`` name.

    ``unchanged`` are keys, with their digests, of listings that are as the source gave them before,
    in a reading, by ``read_one``, or in a former process (`RememberingSource`).
    """

    listings: tuple[Listing, ...]
    problems: tuple[SourceProblem, ...] = ()
    unchanged: Mapping[str, str] = field(default_factory=dict)


class Source(Protocol):
    """A place that lists agents: an OCI registry, a KOI network."""

    @property
    def name(self) -> str:
        """What its listings carry as ``source``; unique in a directory."""

    async def read_all(self) -> Reading:
        """Everything that is listed now.

        Raises RetinueError when the source cannot be asked at all; a single listing that cannot be
        read is a problem of the Reading instead.
        """

    async def read_one(self, key: str) -> Listing | None:
        """The whole listing of this key as it is now, changed or not, None when there is none.

        Raises RetinueError.
        """


@runtime_checkable
class WatchedSource(Source, Protocol):
    """A source that can tell cheaply, without waiting, that it has changed."""

    def changed(self) -> bool:
        """Whether something may have changed since the last `read_all` began."""


@runtime_checkable
class RevalidatedSource(Source, Protocol):
    """A source that can be asked more cheaply when everything is only to be kept fresh."""

    async def revalidate(self) -> Reading:
        """As `read_all`; may leave out for some minutes what is seldom and dear to find out."""


@runtime_checkable
class GradualSource(Source, Protocol):
    """A source that can give listings while it reads, so that they need not all be held at once."""

    def give_to(self, take: Callable[[Sequence[Listing]], None]) -> None:
        """Give what is new to ``take``, some at a time; `Reading.listings` is what is left then."""


@runtime_checkable
class RememberingSource(Source, Protocol):
    """A source that gives a listing again only when it changed."""

    def remember(self, held: Iterable[Entry]) -> None:
        """What is held of this source from before: it need not be given again."""


class MemorySource:
    """The twin in memory: lists what it was given, and fails when told to."""

    def __init__(self, name: str, listings: Iterable[Listing] = ()) -> None:
        self.name = name
        self.problems: tuple[SourceProblem, ...] = ()
        self.failure: RetinueError | None = None
        self.reads = 0
        self._listings = {listing.key: listing for listing in listings}

    def put(self, listing: Listing) -> None:
        """List it from now on, in the place of the one of its key."""
        self._listings[listing.key] = listing

    def remove(self, key: str) -> None:
        """List it no more."""
        self._listings.pop(key, None)

    async def read_all(self) -> Reading:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        broken = {problem.key for problem in self.problems}
        listings = tuple(self._listings[key] for key in sorted(self._listings) if key not in broken)
        return Reading(listings, self.problems)

    async def read_one(self, key: str) -> Listing | None:
        if self.failure is not None:
            raise self.failure
        return self._listings.get(key)
