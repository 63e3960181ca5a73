"""Reads receipts at the cards of registries, each card from time to time, of trusted issuers only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import structlog

from retinue.core.errors import RetinueError
from retinue.hub.receipts.book import CardPlace, ReceiptBook, Refused, place_of
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.oci.attached_receipts import AttachingRegistry, read_receipts
from retinue.storage.receipt_store import ReceiptFile

AT_ONCE = 200
"""Cards of one round; the others wait for the next one."""

SIDE_BY_SIDE = 4

_log = structlog.get_logger("retinue.receipts")


class ReceiptReader:
    """Reads the receipts of the agents of ``registries`` into a book, and stores what is new in ``file``.

    Nothing is fetched while ``list_issuers`` gives no key.
    """

    def __init__(
        self,
        directory: Directory,
        registries: Mapping[str, AttachingRegistry],
        book: ReceiptBook,
        file: ReceiptFile,
        every_s: float,
        *,
        on_change: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._registries = registries
        self._book = book
        self._file = file
        self._every_s = every_s
        self._on_change = on_change
        self._monotonic = monotonic
        self._read_at: dict[tuple[str, CardPlace], float] = {}
        self._issuers: frozenset[str] = frozenset()

    async def read_due(self) -> int:
        """Read the cards that are due; returns how many."""
        if not self._note_issuers():
            return 0
        entries = [entry async for page in self._directory.iterate_pages() for entry in page]
        places = {_place(entry) for entry in entries}
        self._read_at = {place: at for place, at in self._read_at.items() if place in places}
        self._book.keep_only(places)
        oldest = self._monotonic() - self._every_s
        due = [entry for entry in entries if self._has(entry) and self._last(entry) <= oldest]
        await self._read_all(due[:AT_ONCE])
        return len(due[:AT_ONCE])

    async def read_now(self, entries: Sequence[Entry]) -> None:
        """Read the receipts of these agents, as far as they are of registries."""
        if self._note_issuers():
            await self._read_all([entry for entry in entries if self._has(entry)])

    def _note_issuers(self) -> bool:
        """Whether there is a key whose receipts count; after a change of the keys all cards are due."""
        issuers = self._book.list_issuers()
        if issuers != self._issuers:
            self._read_at.clear()
            self._issuers = issuers
        return bool(issuers)

    def _has(self, entry: Entry) -> bool:
        return entry.source in self._registries and entry.digest is not None

    def _last(self, entry: Entry) -> float:
        return self._read_at.get(_place(entry), float("-inf"))

    async def _read_all(self, entries: Sequence[Entry]) -> None:
        waiting = iter(entries)
        is_new: list[bool] = []

        async def work(waiting: Iterator[Entry]) -> None:
            for entry in waiting:
                self._read_at[_place(entry)] = self._monotonic()
                try:
                    is_new.append(await self._read(entry))
                except RetinueError as error:
                    _log.info("receipts not read", agent=entry.name, error=error.message)

        await asyncio.gather(*(work(waiting) for _ in range(min(SIDE_BY_SIDE, len(entries)))))
        if any(is_new):
            self._on_change()
            await asyncio.to_thread(self._file.write_cards, self._book.to_json())

    async def _read(self, entry: Entry) -> bool:
        registry, place = self._registries[entry.source], place_of(entry)
        attached = await read_receipts(registry, place.repository, place.digest, self._issuers)
        refused = [Refused(*row) for row in attached.refused]
        return self._book.take(place, attached.receipts, refused, source=entry.source)


def _place(entry: Entry) -> tuple[str, CardPlace]:
    return entry.source, place_of(entry)
