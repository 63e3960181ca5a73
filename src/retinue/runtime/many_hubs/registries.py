"""Tells other members which cards of a shared registry have changed, so that they read these at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import orjson

from retinue.core.record import ListingKey
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.runtime.many_hubs.exchange import Topic

MAX_CARDS = 200
"""Changed cards of one message; of a registry with more of them, everything is looked at."""


class RegistryChanges(Topic):
    """The changes of cards in ``registries``, which are the URLs of registries that others may share."""

    name = "cards"

    def __init__(self, directory: Directory, registries: Collection[str]) -> None:
        self._directory = directory
        self._registries = {_plain(name): name for name in registries}
        self._changed: dict[ListingKey, str | None] = {}
        self._is_hearing = False
        directory.subscribe(self._note)

    async def take(self) -> Sequence[bytes]:
        changed, self._changed = self._changed, {}
        by_registry: dict[str, list[tuple[str, str, str | None]]] = {}
        for listing_id, digest in changed.items():
            by_registry.setdefault(listing_id.source, []).append((listing_id.key, listing_id.tag, digest))
        return [
            orjson.dumps({"registry": _plain(name), "cards": cards if len(cards) <= MAX_CARDS else None})
            for name, cards in by_registry.items()
        ]

    async def hear(self, body: bytes) -> None:
        news = orjson.loads(body)
        source = self._registries.get(news["registry"])
        if source is None:
            return
        self._is_hearing = True
        try:
            if news["cards"] is None:
                await self._directory.sources.read(source)
                return
            stale = {key for key, tag, digest in news["cards"] if self._is_stale(source, key, tag, digest)}
            for key in sorted(stale):
                await self._directory.reread_key(source, key)
        finally:
            self._is_hearing = False

    def _is_stale(self, source: str, key: str, tag: str, digest: str | None) -> bool:
        entry = self._directory.find_entry(ListingKey(source, key, tag))
        return (None if entry is None else entry.digest) != digest

    def _note(self, change: ListingChange) -> None:
        entry = change.entry
        if self._is_hearing or change.measured or entry.source not in self._registries.values():
            return
        self._changed[entry.id] = None if change.kind == "removed" else entry.digest
        self.wake()


def _plain(url: str) -> str:
    """The URL without user, password and trailing slash."""
    scheme, mark, rest = url.rstrip("/").partition("://")
    return scheme + mark + rest.rpartition("@")[2]
