"""The listings that were wanted last, whole: reading one from a store costs some 100 µs."""

from __future__ import annotations

from collections import OrderedDict

from retinue.core.record import Listing, ListingKey
from retinue.mesh.entry import Entry
from retinue.mesh.listings import bring_up_to_date

KEEP = 2_048
"""Some 20 MB of cards of a usual size."""


class Recall:
    """At most ``keep`` listings; the one that was not asked for longest makes room."""

    def __init__(self, keep: int = KEEP) -> None:
        self._keep = keep
        self._listings: OrderedDict[ListingKey, Listing] = OrderedDict()

    def find(self, listing_id: ListingKey) -> Listing | None:
        listing = self._listings.get(listing_id)
        if listing is not None:
            self._listings.move_to_end(listing_id)
        return listing

    def put(self, listing: Listing) -> None:
        """Keep a listing that was asked for."""
        self._listings[listing.id] = listing
        self._listings.move_to_end(listing.id)
        if len(self._listings) > self._keep:
            self._listings.popitem(last=False)

    def renew(self, listing: Listing) -> None:
        """Keep a listing that is new; it displaces none that was asked for, but the one of its id."""
        if listing.id in self._listings or len(self._listings) < self._keep:
            self._listings[listing.id] = listing

    def note(self, entry: Entry) -> None:
        """Let the listing say what was chosen and measured since."""
        listing = self._listings.get(entry.id)
        if listing is not None:
            self._listings[entry.id] = bring_up_to_date(listing, entry)

    def remove(self, listing_id: ListingKey) -> None:
        self._listings.pop(listing_id, None)
