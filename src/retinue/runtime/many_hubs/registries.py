"""Tells other members which cards of a shared registry have changed, so that they read these at once."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

import orjson
import structlog

from retinue.core.record import ListingKey
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.runtime.many_hubs.exchange import Topic

MAX_CARDS = 200
"""Changed cards of one message; of a registry with more of them, everything is looked at."""

_log = structlog.get_logger("retinue.many_hubs")


class _PendingReads:
    """What others have told of one registry and is not read yet, by key, with the digest of each tag.

    ``reading`` is the card that is read now, and ``is_reading`` that the whole registry is.
    """

    def __init__(self) -> None:
        self.cards: dict[str, dict[ListingKey, str | None]] = {}
        self.reading: Mapping[ListingKey, str | None] = {}
        self.is_whole = self.is_reading = False
        self.due = asyncio.Event()

    def explains(self, listing_id: ListingKey, digest: str | None) -> bool:
        """Whether a change is one that others have told."""
        return self.is_reading or (listing_id in self.reading and self.reading[listing_id] == digest)


class RegistryChanges(Topic):
    """The changes of cards in ``registries``, which are the URLs of registries that others may share."""

    name = "cards"

    def __init__(self, directory: Directory, registries: Collection[str]) -> None:
        self._directory = directory
        self._registries = {_plain(name): name for name in registries}
        self._pending = {name: _PendingReads() for name in registries}
        self._changed: dict[ListingKey, str | None] = {}
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
        pending = self._pending[source]
        if news["cards"] is None:
            pending.is_whole = True
        for key, tag, digest in news["cards"] or ():
            listing_id = ListingKey(source, key, tag)
            entry = self._directory.find_entry(listing_id)
            if (None if entry is None else entry.digest) != digest:
                pending.cards.setdefault(key, {})[listing_id] = digest
        if pending.is_whole or pending.cards:
            pending.due.set()

    async def read_pending(self) -> None:
        """Read the cards that others have told until cancelled; no registry waits for another one."""
        async with asyncio.TaskGroup() as group:
            for source, pending in self._pending.items():
                group.create_task(self._read_pending(source, pending))

    async def _read_pending(self, source: str, pending: _PendingReads) -> None:
        while True:
            await pending.due.wait()
            pending.due.clear()
            while pending.is_whole or pending.cards:
                try:
                    await self._read_next(source, pending)
                except Exception as error:  # noqa: BLE001 - one failed reading must not end the others
                    _log.warning("changed cards cannot be read", registry=_plain(source), error=str(error))

    async def _read_next(self, source: str, pending: _PendingReads) -> None:
        try:
            if pending.is_whole:
                pending.is_whole, pending.cards, pending.is_reading = False, {}, True
                await self._directory.sources.read(source)
            else:
                key = next(iter(pending.cards))
                pending.reading = pending.cards.pop(key)
                await self._directory.reread_key(source, key)
        finally:
            pending.reading, pending.is_reading = {}, False

    def _note(self, change: ListingChange) -> None:
        entry = change.entry
        pending = self._pending.get(entry.source)
        if pending is None or change.measured:
            return
        digest = None if change.kind == "removed" else entry.digest
        if not pending.explains(entry.id, digest):
            self._changed[entry.id] = digest
            self.wake()


def _plain(url: str) -> str:
    """The URL without user, password and trailing slash."""
    scheme, mark, rest = url.rstrip("/").partition("://")
    return scheme + mark + rest.rpartition("@")[2]
