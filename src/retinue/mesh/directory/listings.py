"""Stores of whole listings: the port, and an implementation in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from retinue.core.record import Listing, ListingKey, Skill
from retinue.mesh.entry import Entry, entry_of


class Listings(Protocol):
    """A store of whole listings. Losing it loses only measurements, and which agents were disabled.

    Each method raises StateDamagedError; methods that write also raise StorageFullError.
    """

    def load(self) -> Iterable[Entry]:
        """The entries of all listings, by source and key."""

    def find(self, listing_id: ListingKey) -> Listing | None:
        """The whole listing; None where it is not stored or cannot be read."""

    def find_all(self, listing_ids: Collection[ListingKey]) -> Sequence[Listing]:
        """As `find` for each id, in their order, without missing listings."""

    def find_skill(self, entry: Entry, skill_id: str) -> Skill | None:
        """One skill, cheaper than the listing; None where it is not stored with the entry's digest."""

    def put_all(self, listings: Sequence[Listing]) -> None:
        """Store these listings, all or none; each replaces the one with its id."""

    def update_all(self, entries: Sequence[Entry]) -> None:
        """Store the choices and measurements of these entries; skip listings that are not stored."""

    def remove_all(self, listing_ids: Collection[ListingKey]) -> None:
        """Remove these listings, as far as they are stored."""

    def close(self) -> None:
        """Close the store; it must not be used afterwards."""


class MemoryListings:
    """A store in memory, which ends with its process."""

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

    def update_all(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.id in self._listings:
                self._listings[entry.id] = with_measurements(self._listings[entry.id], entry)

    def remove_all(self, listing_ids: Collection[ListingKey]) -> None:
        for listing_id in listing_ids:
            self._listings.pop(listing_id, None)

    def close(self) -> None:
        return None


def with_measurements(listing: Listing, entry: Entry) -> Listing:
    """``listing`` with the choices and measurements of ``entry``."""
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
