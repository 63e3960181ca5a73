"""A source of listings in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from retinue.core.errors import RetinueError
from retinue.core.record import Listing
from retinue.mesh.directory.sources import Give, Reading, Source, SourceProblem
from retinue.mesh.entry import Entry


class MemorySource(Source):
    """Gives the listings put into it, and raises ``failure`` if that is set.

    ``remembered`` has the keys that the directory had stored when the source was added to it.
    """

    def __init__(self, name: str, listings: Iterable[Listing] = ()) -> None:
        self.name = name
        self.problems: tuple[SourceProblem, ...] = ()
        self.failure: RetinueError | None = None
        self.reads = 0
        self.remembered: list[str] = []
        self._listings = {listing.id: listing for listing in listings}

    def put(self, listing: Listing) -> None:
        """Add a listing; it replaces the one with the same key and tag."""
        self._listings[listing.id] = listing

    def remove(self, key: str) -> None:
        """Remove the listings with this key."""
        for listing_id in [one for one in self._listings if one.key == key]:
            del self._listings[listing_id]

    def remember(self, held: Iterable[Entry]) -> None:
        self.remembered = [entry.key for entry in held]

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        broken = {problem.key for problem in self.problems}
        listings = tuple(self._listings[one] for one in sorted(self._listings) if one.key not in broken)
        return Reading(listings, self.problems)

    async def read_key(self, key: str) -> Sequence[Listing]:
        if self.failure is not None:
            raise self.failure
        return tuple(one for one in self._listings.values() if one.key == key)
