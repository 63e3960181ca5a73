"""Where listings outlive a process: the port, and its twin in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from retinue.core.record import Listing, ListingKey


class Listings(Protocol):
    """A store of listings; losing it loses only measurements and a person's choices."""

    def load(self) -> Iterable[Listing]:
        """All that is kept, by source and key; raises StateDamagedError."""

    def put_all(self, listings: Sequence[Listing]) -> None:
        """Keep these, all or none, each in the place of the one with its id.

        Raises StorageFullError or StateDamagedError.
        """

    def remove(self, listing_id: ListingKey) -> None:
        """Forget the listing, if it is kept."""

    def close(self) -> None:
        """Give back what the store holds; it must not be used afterwards."""


class MemoryListings:
    """The twin in memory; forgets all with its process."""

    def __init__(self, listings: Iterable[Listing] = ()) -> None:
        self._listings = {listing.id: listing for listing in listings}

    def load(self) -> Iterable[Listing]:
        return sorted(self._listings.values(), key=lambda a: (a.source, a.key))

    def put_all(self, listings: Sequence[Listing]) -> None:
        self._listings.update((listing.id, listing) for listing in listings)

    def remove(self, listing_id: ListingKey) -> None:
        self._listings.pop(listing_id, None)

    def close(self) -> None:
        return None
