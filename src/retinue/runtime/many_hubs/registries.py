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


class _Told:
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
        self._told = {name: _Told() for name in registries}
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
        told = self._told[source]
        if news["cards"] is None:
            told.is_whole = True
        for key, tag, digest in news["cards"] or ():
            listing_id = ListingKey(source, key, tag)
            entry = self._directory.find_entry(listing_id)
            if (None if entry is None else entry.digest) != digest:
                told.cards.setdefault(key, {})[listing_id] = digest
        if told.is_whole or told.cards:
            told.due.set()

    async def read_told(self) -> None:
        """Read the cards that others have told until cancelled; no registry waits for another one."""
        async with asyncio.TaskGroup() as group:
            for source, told in self._told.items():
                group.create_task(self._read_told(source, told))

    async def _read_told(self, source: str, told: _Told) -> None:
        while True:
            await told.due.wait()
            told.due.clear()
            while told.is_whole or told.cards:
                try:
                    await self._read_next(source, told)
                except Exception as error:  # noqa: BLE001 - one failed reading must not end the others
                    _log.warning("changed cards cannot be read", registry=_plain(source), error=str(error))

    async def _read_next(self, source: str, told: _Told) -> None:
        try:
            if told.is_whole:
                told.is_whole, told.cards, told.is_reading = False, {}, True
                await self._directory.sources.read(source)
            else:
                key = next(iter(told.cards))
                told.reading = told.cards.pop(key)
                await self._directory.reread_key(source, key)
        finally:
            told.reading, told.is_reading = {}, False

    def _note(self, change: ListingChange) -> None:
        entry = change.entry
        told = self._told.get(entry.source)
        if told is None or change.measured:
            return
        digest = None if change.kind == "removed" else entry.digest
        if not told.explains(entry.id, digest):
            self._changed[entry.id] = digest
            self.wake()


def _plain(url: str) -> str:
    """The URL without user, password and trailing slash."""
    scheme, mark, rest = url.rstrip("/").partition("://")
    return scheme + mark + rest.rpartition("@")[2]
