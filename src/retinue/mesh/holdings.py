"""What a directory holds: every listing in short, the store that keeps them whole, the last of them at hand.

What was chosen and measured of an agent outlives a new card of it. A store that fails costs
measurements, never a call: what it did not take is held here until it does.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from retinue.core.errors import StateError
from retinue.core.record import Listing, ListingKey, Skill
from retinue.mesh.entry import Entry, entry_of
from retinue.mesh.listing_index import ListingIndex
from retinue.mesh.listings import Listings, bring_up_to_date
from retinue.mesh.recall import Recall

_RETRIED = 500
_MANY = 5_000
_GROWN = 1.25


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a listing; ``changed`` is told of measurements as well."""

    kind: Literal["added", "changed", "removed"]
    entry: Entry


class Holdings:
    """``is_shown`` tells whether a source is configured: listings of others are remembered, no more."""

    def __init__(
        self,
        store: Listings,
        source_rank: Callable[[str], int],
        is_shown: Callable[[str], bool],
        tell: Callable[[Change], None],
    ) -> None:
        self.index = ListingIndex(source_rank)
        self.failure: StateError | None = None
        self._store = store
        self._tell = tell
        self._recall = Recall()
        self._unsaved: dict[ListingKey, Listing] = {}
        self._remembered: dict[ListingKey, Entry] = {}
        self._spared = 0
        with _no_collection():
            for entry in store.load():
                if is_shown(entry.source):
                    self.index.put(entry)
                else:
                    self._remembered[entry.id] = entry
            self._spare()

    def open(self, listing_id: ListingKey) -> Listing | None:
        """The whole listing; None when it is gone, or was lost. Raises StateError."""
        entry = self.index.find(listing_id)
        if entry is None:
            return None
        unsaved = self._unsaved.get(listing_id)
        if unsaved is not None:
            return bring_up_to_date(unsaved, entry)
        listing = self._recall.find(listing_id)
        if listing is None:
            kept = self._store.find(listing_id)
            if kept is None or kept.digest != entry.digest:
                self.remove([listing_id])
                return None
            listing = bring_up_to_date(kept, entry)
            self._recall.put(listing)
        return listing

    def open_all(self, entries: Collection[Entry]) -> list[Listing]:
        """As `open`, of many that are wanted once, such as those of a page. Raises StateError."""
        found = {e.id: self._unsaved.get(e.id) or self._recall.find(e.id) for e in entries}
        absent = [listing_id for listing_id, listing in found.items() if listing is None]
        found.update((listing.id, listing) for listing in self._store.find_all(absent))
        whole = [(found[e.id], e) for e in entries]
        return [bring_up_to_date(one, e) for one, e in whole if one is not None and one.digest == e.digest]

    def find_skill(self, entry: Entry, skill_id: str) -> Skill | None:
        """One skill of what is held, without opening the listing. Raises StateError."""
        listing = self._unsaved.get(entry.id) or self._recall.find(entry.id)
        if listing is not None and listing.digest == entry.digest:
            return listing.record.find_skill(skill_id)
        return self._store.find_skill(entry, skill_id)

    def keep_at_hand(self, listing: Listing) -> None:
        """Let `open` give this listing without the store, if it is the one that is held."""
        entry = self.index.find(listing.id)
        if entry is not None and entry.digest == listing.digest:
            self._recall.put(bring_up_to_date(listing, entry))

    def accept(self, listings: Iterable[Listing]) -> list[Entry]:
        """Add or replace listings; returns what holds now of each.

        One published earlier never replaces a later one.
        """
        held: list[Entry] = []
        new: list[Listing] = []
        for listing in listings:
            current = self.index.find(listing.id)
            if current is not None and (_is_older(listing, current) or self._is_known(listing, current)):
                held.append(current)
                continue
            before = current or self._remembered.pop(listing.id, None)
            accepted = carry_over(listing, before) if before is not None else listing
            entry = entry_of(accepted)
            self.index.put(entry)
            self._recall.renew(accepted)
            # whoever is told of it may want to open it before it is written
            self._unsaved[accepted.id] = accepted
            new.append(accepted)
            held.append(entry)
            self._tell(Change("added" if current is None else "changed", entry))
        if new:
            self._write(new)
            self._spare()
        return held

    def note(self, entries: Iterable[Entry]) -> None:
        """Hold what was chosen or measured."""
        changed = list(entries)
        for entry in changed:
            self.index.put(entry)
            self._recall.note(entry)
            self._tell(Change("changed", entry))
        if changed:
            self._attempt(lambda: self._store.note_all(changed))
            if self._unsaved and self.failure is None:
                self._write(())

    def remove(self, listing_ids: Collection[ListingKey]) -> None:
        """Take listings out, as far as they are there."""
        self._attempt(lambda: self._store.remove_all(listing_ids))
        for listing_id in listing_ids:
            entry = self.index.find(listing_id)
            self._remembered.pop(listing_id, None)
            self._unsaved.pop(listing_id, None)
            self._recall.remove(listing_id)
            if entry is not None:
                self.index.remove(listing_id)
                self._tell(Change("removed", entry))

    def _spare(self) -> None:
        """Let no collection of garbage walk over what is held, which would stop the process for a while.

        Only after it has grown much: garbage that lies about at that moment is spared as well.
        """
        if len(self.index) >= max(_MANY, _GROWN * self._spared):
            self._spared = len(self.index)
            gc.freeze()

    def _is_known(self, new: Listing, held: Entry) -> bool:
        """Whether ``new`` tells nothing that is not held."""
        if new.reachable is not None and new.reachable != held.reachable:
            return False
        if new.tag != held.tag or new.digest != held.digest:
            return False
        if new.digest is not None:
            return True
        try:
            whole = self.open(held.id)
        except StateError:
            return False
        return whole is not None and whole.record == new.record

    def _write(self, listings: Sequence[Listing]) -> None:
        waiting = {i: self._unsaved[i] for i in islice(self._unsaved, _RETRIED)}
        for listing_id, listing in waiting.items():
            entry = self.index.find(listing_id)
            waiting[listing_id] = bring_up_to_date(listing, entry) if entry is not None else listing
        waiting.update((listing.id, listing) for listing in listings)
        self._attempt(lambda: self._store.put_all(list(waiting.values())))
        if self.failure is not None:
            self._unsaved.update(waiting)
        else:
            for listing_id in waiting:
                self._unsaved.pop(listing_id, None)

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StateError as error:
            self.failure = error
        else:
            self.failure = None


@contextmanager
def _no_collection() -> Iterator[None]:
    """While many objects are made that stay, looking for garbage among them takes longer than they do."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def carry_over(new: Listing, before: Entry) -> Listing:
    """``new`` with what was chosen and, while it is at the same place, measured before."""
    kept = replace(new, enabled=before.enabled)
    moved = new.digest != before.digest or new.url != before.url
    if moved or new.reachable is not None:
        return kept
    return replace(kept, reachable=before.reachable, since=before.since, last_error=before.last_error)


def _is_older(new: Listing, held: Entry) -> bool:
    """Whether ``new`` was published before; False where either time is unknown."""
    if new.published_at is None or held.published_at is None:
        return False
    return new.published_at < held.published_at
