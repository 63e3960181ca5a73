"""Keeps which entries fit a view, a range of versions and labels, while the entries change.

The first use of a selection walks over all entries, in pages. Later uses look only at the entries that have
changed since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from cachetools import LRUCache

from retinue.core.record import ListingKey
from retinue.mesh.directory.listing_index import ListingIndex
from retinue.mesh.directory.routing import has_labels
from retinue.mesh.directory.versions import parse_version_range
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import AgentView

MAX_KEPT = 16
"""Selections that are kept, if their entries are fewer than `MAX_ENTRIES` together."""

MAX_ENTRIES = 400_000
"""Entries in all kept selections: about 20 MB."""

MAX_CHANGES = 20_000
"""Changes after which a selection is made anew at its next use."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The enabled entries of agents that are not ``closed`` and fit ``globs``, the range and the labels.

    ``globs`` () = agents of any name. A label with the value ``*`` may have any value.
    """

    closed: frozenset[str] = frozenset()
    globs: tuple[str, ...] = ()
    version_range: str | None = None
    labels: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(
        cls,
        view: AgentView | None,
        version_range: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Selection:
        """The selection of what a caller with this view asks for. Raises InvalidSettingError for a range."""
        if version_range is not None:
            parse_version_range(version_range)
        closed, globs = (frozenset[str](), ()) if view is None else (view.closed, view.globs)
        return cls(closed, globs, version_range, frozenset((labels or {}).items()))

    def make_test(self) -> Callable[[Entry], bool]:
        """The function that tells whether an entry is selected."""
        is_limited = bool(self.closed or self.globs)
        view, labels = AgentView(self.closed, self.globs), dict(self.labels)
        versions = None if self.version_range is None else parse_version_range(self.version_range)

        def fits(entry: Entry) -> bool:
            return (
                entry.enabled
                and (not is_limited or view(entry.name))
                and (versions is None or versions.fits(entry.version))
                and (not labels or has_labels(entry, labels))
            )

        return fits


@dataclass(slots=True)
class _Kept:
    """The entries of one selection; the ``changed`` ones are looked at before the next use."""

    fits: Callable[[Entry], bool]
    ids: set[ListingKey] = field(default_factory=set)
    changed: set[ListingKey] = field(default_factory=set)


class KeptSelections:
    """The selections of the entries of ``index`` that were used last; `note` tells it each change."""

    def __init__(
        self, index: ListingIndex, page_entries: int, *, kept: int = MAX_KEPT, entries: int = MAX_ENTRIES
    ) -> None:
        self._index = index
        self._page_entries = page_entries
        self._max_entries = entries
        self._kept: LRUCache[Selection, _Kept] = LRUCache(kept)
        self._made: list[_Kept] = []
        """The selections that are being made."""

    def note(self, listing_id: ListingKey) -> None:
        """Look at an entry again before the next use; it was added, changed or removed."""
        for made in self._made:
            made.changed.add(listing_id)
        for selection, kept in list(self._kept.items()) if self._kept else ():
            kept.changed.add(listing_id)
            if len(kept.changed) > MAX_CHANGES:
                del self._kept[selection]

    def clear(self) -> None:
        """Keep nothing, because entries have changed that `note` was not told of."""
        self._kept.clear()

    async def list_ids(self, selection: Selection) -> Set[ListingKey]:
        """The ids of the selected entries, valid until the next change; other tasks run meanwhile."""
        kept = self._kept.get(selection)
        if kept is None:
            kept = await self._make(selection)
        return self._catch_up(kept)

    def list_ids_now(self, selection: Selection) -> Set[ListingKey]:
        """As `list_ids`, at once."""
        kept = self._kept.get(selection)
        if kept is None:
            kept = _Kept(selection.make_test(), changed=set(self._index.list_ids()))
            self._keep(selection, kept)
        return self._catch_up(kept)

    def _catch_up(self, kept: _Kept) -> Set[ListingKey]:
        while kept.changed:
            self._look_at(kept, kept.changed.pop())
        return kept.ids

    async def _make(self, selection: Selection) -> _Kept:
        kept = _Kept(selection.make_test())
        self._made.append(kept)
        try:
            ids = self._index.list_ids()
            for start in range(0, len(ids), self._page_entries):
                for listing_id in ids[start : start + self._page_entries]:
                    self._look_at(kept, listing_id)
                await asyncio.sleep(0)
        finally:
            self._made.remove(kept)
        self._keep(selection, kept)
        return kept

    def _keep(self, selection: Selection, kept: _Kept) -> None:
        self._kept[selection] = kept
        while (
            len(self._kept) > 1 and sum(len(other.ids) for other in self._kept.values()) > self._max_entries
        ):
            self._kept.popitem()

    def _look_at(self, kept: _Kept, listing_id: ListingKey) -> None:
        entry = self._index.find(listing_id)
        if entry is not None and kept.fits(entry):
            kept.ids.add(listing_id)
        else:
            kept.ids.discard(listing_id)
