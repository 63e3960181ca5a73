"""Where listings outlive a process, whole: the port, and its twin in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from retinue.core.record import Listing, ListingKey, Skill
from retinue.mesh.entry import Entry, entry_of


class Listings(Protocol):
    """A store of listings; losing it loses only measurements and a person's choices.

    Each method raises StateDamagedError, those that write StorageFullError as well.
    """

    def load(self) -> Iterable[Entry]:
        """All that is kept, in short, by source and key."""

    def find(self, listing_id: ListingKey) -> Listing | None:
        """The whole listing; None where none is kept, or it can be read no more."""

    def find_all(self, listing_ids: Collection[ListingKey]) -> Sequence[Listing]:
        """As `find` for each of these, in their order; what would be None is left out."""

    def find_skill(self, entry: Entry, skill_id: str) -> Skill | None:
        """One skill of this listing, at less cost; None where it is not kept, or not with this digest."""

    def put_all(self, listings: Sequence[Listing]) -> None:
        """Keep these, all or none, each in the place of the one with its id."""

    def note_all(self, entries: Sequence[Entry]) -> None:
        """Keep what was chosen and measured of these; those that are not kept are passed over."""

    def remove_all(self, listing_ids: Collection[ListingKey]) -> None:
        """Forget these listings, as far as they are kept."""

    def close(self) -> None:
        """Give back what the store holds; it must not be used afterwards."""


class MemoryListings:
    """The twin in memory; forgets all with its process."""

    def __init__(self, listings: Iterable[Listing] = ()) -> None:
        self._listings = {listing.id: listing for listing in listings}

    def load(self) -> Iterable[Entry]:
        return [entry_of(self._listings[listing_id]) for listing_id in sorted(self._listings)]

    def find(self, listing_id: ListingKey) -> Listing | None:
        return self._listings.get(listing_id)

    def find_all(self, listing_ids: Collection[ListingKey]) -> Sequence[Listing]:
        return [self._listings[listing_id] for listing_id in listing_ids if listing_id in self._listings]

    def find_skill(self, entry: Entry, skill_id: str) -> Skill | None:
        listing = self._listings.get(entry.id)
        if listing is None or listing.digest != entry.digest:
            return None
        return listing.record.find_skill(skill_id)

    def put_all(self, listings: Sequence[Listing]) -> None:
        self._listings.update((listing.id, listing) for listing in listings)

    def note_all(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.id in self._listings:
                self._listings[entry.id] = bring_up_to_date(self._listings[entry.id], entry)

    def remove_all(self, listing_ids: Collection[ListingKey]) -> None:
        for listing_id in listing_ids:
            self._listings.pop(listing_id, None)

    def close(self) -> None:
        return None


def bring_up_to_date(listing: Listing, entry: Entry) -> Listing:
    """``listing`` with what was chosen and measured since, as ``entry`` has it."""
    if (listing.enabled, listing.reachable, listing.since, listing.last_error) == (
        entry.enabled,
        entry.reachable,
        entry.since,
        entry.last_error,
    ):
        return listing
    return replace(
        listing,
        enabled=entry.enabled,
        reachable=entry.reachable,
        since=entry.since,
        last_error=entry.last_error,
    )
