"""The listings of a directory: an index of all entries, a store of whole listings, and a cache of them.

Choices and measurements of an agent outlive a new card of it. A failing store costs measurements, never a
call: what it did not accept stays in memory until it does.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import structlog
from cachetools import LRUCache

from retinue.core.errors import StateError
from retinue.core.record import Listing, ListingKey, Skill
from retinue.core.trust import Trust
from retinue.mesh.directory.limits import DEFAULT_LIMITS
from retinue.mesh.directory.listing_index import ListingIndex
from retinue.mesh.directory.listings import Listings, with_measurements
from retinue.mesh.directory.overrides import ListingOverride
from retinue.mesh.entry import Entry, entry_of
from retinue.mesh.foreign_records import clean_record

_RETRIED = 500
"""Unsaved listings that are written together with new ones."""

_FREEZE_FROM = 5_000
"""Entries from which on they are excluded from garbage collection …"""

_FREEZE_GROWTH = 1.25
"""… again when their number has grown by this factor."""

_log = structlog.get_logger("retinue.directory")


@dataclass(frozen=True, slots=True)
class ListingChange:
    """A change of a listing; ``measured`` = only measurements changed.

    ``before`` is the entry that a new card has replaced.
    """

    kind: Literal["added", "changed", "removed"]
    entry: Entry
    measured: bool = False
    before: Entry | None = None

    def list_left(self) -> Iterator[Entry]:
        """The entry of an agent that this listing had and has no more: it is gone, or has moved."""
        if self.kind == "removed":
            yield self.entry
        elif self.before is not None and (self.before.url, self.before.name) != (
            self.entry.url,
            self.entry.name,
        ):
            yield self.before


class ListingCache:
    """The listings of one directory.

    It indexes the stored listings of the sources that `show` names; those of other sources stay in the store
    but are not indexed. ``source_trust`` gives the trust in the agents of a source by its name. ``notify`` is
    called after each change.
    """

    def __init__(
        self,
        store: Listings,
        source_rank: Callable[[str], int],
        notify: Callable[[ListingChange], None],
        overrides: Sequence[ListingOverride] = (),
        max_cached: int = DEFAULT_LIMITS.cached_listings,
        source_trust: Callable[[str], Trust] = lambda source: Trust.OWN_MESH,
    ) -> None:
        self.index = ListingIndex(source_rank)
        self.failure: StateError | None = None
        self._store = store
        self._source_trust = source_trust
        self._notify = notify
        self._overrides = tuple(overrides)
        self._cached: LRUCache[ListingKey, Listing] = LRUCache(max_cached)
        self._unsaved: dict[ListingKey, Listing] = {}
        self._not_shown: dict[str, dict[ListingKey, Entry]] = {}
        self._notes: dict[ListingKey, tuple[str, ...]] = {}
        self._frozen_at = 0
        with _no_garbage_collection():
            for entry in store.load():
                self._not_shown.setdefault(entry.source, {})[entry.id] = entry

    def show(self, source: str) -> None:
        """Index the stored listings of this source; ``notify`` is not called for them.

        Call it before the source is read, so that listings of an earlier process are found and need not be
        read again.
        """
        with _no_garbage_collection():
            # listings that were added before their source have its trust from now on
            added = [entry for entry in self.index if entry.source == source]
            for entry in (*added, *self._not_shown.pop(source, {}).values()):
                self._cached.pop(entry.id, None)
                self.index.put(self._override_entry(entry))
            self._freeze()

    def open(self, listing_id: ListingKey) -> Listing | None:
        """The whole listing; None after its removal or when the store has lost it. Raises StateError."""
        entry = self.index.find(listing_id)
        if entry is None:
            return None
        unsaved = self._unsaved.get(listing_id)
        if unsaved is not None:
            return with_measurements(self._override(unsaved), entry)
        listing = self._cached.get(listing_id)
        if listing is None:
            kept = self._store.find(listing_id)
            if kept is None or kept.digest != entry.digest:
                self.remove([listing_id])
                return None
            listing = with_measurements(self._override(kept), entry)
            self._cached[listing_id] = listing
        return listing

    def open_all(self, entries: Collection[Entry]) -> list[Listing]:
        """As `open` for many listings that are needed once, such as those of a page. Raises StateError."""
        listings = {e.id: self._unsaved.get(e.id) or self._cached.get(e.id) for e in entries}
        absent = [listing_id for listing_id, listing in listings.items() if listing is None]
        listings.update((listing.id, listing) for listing in self._store.find_all(absent))
        whole = [(listings[e.id], e) for e in entries]
        return [
            with_measurements(self._override(listing), e)
            for listing, e in whole
            if listing is not None and listing.digest == e.digest
        ]

    def find_skill(self, entry: Entry, skill_id: str) -> Skill | None:
        """One skill of an entry's listing, without opening the listing. Raises StateError."""
        listing = self._unsaved.get(entry.id) or self._cached.get(entry.id)
        if listing is None and self._is_overridden(entry):
            listing = self.open(entry.id)
        if listing is not None and listing.digest == entry.digest:
            return self._override(listing).record.find_skill(skill_id)
        return self._store.find_skill(entry, skill_id)

    def keep_in_memory(self, listing: Listing) -> None:
        """Cache this listing for `open`, if it is the current one."""
        entry = self.index.find(listing.id)
        if entry is not None and entry.digest == listing.digest:
            self._cached[listing.id] = with_measurements(self._override(listing), entry)

    def accept(self, listings: Iterable[Listing]) -> list[Entry]:
        """Add or replace listings; returns the current entry of each.

        A listing that was published earlier does not replace a later one.
        """
        accepted: list[Entry] = []
        new: list[Listing] = []
        for listing in map(self._clean, listings):
            current = self.index.find(listing.id)
            if current is not None and (_is_older(listing, current) or self._is_known(listing, current)):
                accepted.append(current)
                continue
            before = current or self._pop_not_shown(listing.id)
            stored = carry_over(listing, before) if before is not None else listing
            shown = self._override(stored)
            entry = entry_of(shown)
            self.index.put(entry)
            if shown.id in self._cached or len(self._cached) < self._cached.maxsize:
                # A new listing does not displace one that was asked for.
                self._cached[shown.id] = shown
            # An observer may open the listing before it is written.
            self._unsaved[stored.id] = stored
            new.append(stored)
            accepted.append(entry)
            self._notify(ListingChange("added" if current is None else "changed", entry, before=current))
        if new:
            self._write(new)
            self._freeze()
        return accepted

    def update(self, entries: Iterable[Entry]) -> None:
        """Replace entries by ones with other choices or measurements."""
        changed = list(entries)
        for entry in changed:
            before = self.index.find(entry.id)
            self.index.put(entry)
            if (listing := self._cached.get(entry.id)) is not None:
                self._cached[entry.id] = with_measurements(listing, entry)
            measured = before is not None and before.enabled == entry.enabled
            self._notify(ListingChange("changed", entry, measured))
        if changed:
            self._attempt(lambda: self._store.update_all(changed))
            if self._unsaved and self.failure is None:
                self._write(())

    def remove(self, listing_ids: Collection[ListingKey]) -> None:
        """Remove listings, as far as they exist."""
        self._attempt(lambda: self._store.remove_all(listing_ids))
        for listing_id in listing_ids:
            entry = self.index.find(listing_id)
            self._pop_not_shown(listing_id)
            self._unsaved.pop(listing_id, None)
            self._cached.pop(listing_id, None)
            self._notes.pop(listing_id, None)
            if entry is not None:
                self.index.remove(listing_id)
                self._notify(ListingChange("removed", entry))

    def list_notes(self) -> list[tuple[ListingKey, str]]:
        """The changes of listings before they were taken in, as one text for each."""
        return [(listing_id, "; ".join(notes)) for listing_id, notes in self._notes.items()]

    def _clean(self, listing: Listing) -> Listing:
        """The listing fit to be shown; a card with its bytes has been checked by its source."""
        if listing.raw:
            return listing
        record, notes = clean_record(listing.record)
        if notes != self._notes.get(listing.id, ()):
            _log.warning("listing cleaned", source=listing.source, key=listing.key, notes=list(notes))
        if notes:
            self._notes[listing.id] = notes
        else:
            self._notes.pop(listing.id, None)
        return listing if record is listing.record else replace(listing, record=record)

    def _pop_not_shown(self, listing_id: ListingKey) -> Entry | None:
        return self._not_shown.get(listing_id.source, {}).pop(listing_id, None)

    def _override(self, listing: Listing) -> Listing:
        trust = self._source_trust(listing.source)
        if listing.source_trust is not trust:
            listing = replace(listing, source_trust=trust)
        for override in self._overrides:
            listing = override.apply(listing)
        return listing

    def _is_overridden(self, entry: Entry) -> bool:
        return any(override.concerns(entry) for override in self._overrides)

    def _override_entry(self, entry: Entry) -> Entry:
        """A stored entry with the override applied; unchanged where the store has lost its card."""
        trust = self._source_trust(entry.source)
        if entry.source_trust is not trust:
            entry = replace(entry, source_trust=trust)
        kept = self._store.find(entry.id) if self._is_overridden(entry) else None
        return entry if kept is None else entry_of(with_measurements(self._override(kept), entry))

    def _freeze(self) -> None:
        """Exclude the entries from garbage collection, which would stop the process while it walks over them.

        Done only after much growth, because garbage that exists at that moment is excluded as well.
        """
        if len(self.index) >= max(_FREEZE_FROM, _FREEZE_GROWTH * self._frozen_at):
            self._frozen_at = len(self.index)
            gc.freeze()

    def _is_known(self, new: Listing, current: Entry) -> bool:
        """Whether ``new`` differs in nothing from the current listing."""
        if new.reachable is not None and new.reachable != current.reachable:
            return False
        if new.tag != current.tag or new.digest != current.digest:
            return False
        if new.digest is not None and new.signature == "none":
            return True
        try:
            whole = self.open(current.id)
        except StateError:
            return False
        if new.digest is not None:
            # the same card may be trusted now, or no more
            return whole is not None and whole.signature == new.signature
        return whole is not None and whole.record == self._override(new).record

    def _write(self, listings: Sequence[Listing]) -> None:
        waiting = {i: self._unsaved[i] for i in islice(self._unsaved, _RETRIED)}
        for listing_id, listing in waiting.items():
            entry = self.index.find(listing_id)
            waiting[listing_id] = with_measurements(listing, entry) if entry is not None else listing
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
def _no_garbage_collection() -> Iterator[None]:
    """No garbage collection meanwhile, because it takes longer than creating many objects that all stay
    alive.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def carry_over(new: Listing, before: Entry) -> Listing:
    """``new`` with the choice of ``before``, and its measurements where digest and url are the same."""
    kept = replace(new, enabled=before.enabled)
    moved = new.digest != before.digest or new.url != before.url
    if moved or new.reachable is not None:
        return kept
    return replace(kept, reachable=before.reachable, since=before.since, last_error=before.last_error)


def _is_older(new: Listing, current: Entry) -> bool:
    """Whether ``new`` was published before the current listing; False where either time is unknown."""
    if new.published_at is None or current.published_at is None:
        return False
    return new.published_at < current.published_at
