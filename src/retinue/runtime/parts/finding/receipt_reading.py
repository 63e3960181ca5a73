"""Reads receipts at the cards of registries, each card from time to time, of trusted issuers only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import orjson
import structlog

from retinue.core.errors import RetinueError
from retinue.hub.receipts.book import CardPlace, Publisher, ReceiptBook, Refused, place_of
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.oci.attached_receipts import AttachingRegistry, find_signers, read_receipts
from retinue.oci.client.http_registry import HttpRegistry
from retinue.storage.receipt_store import ReceiptFile
from retinue.web.http_client import HttpClient
from retinue.web.rejections import JWKS_PATH
from retinue.web.transport import TransportError

AT_ONCE = 200
"""Cards of one round; the others wait for the next one."""

SIDE_BY_SIDE = 4

HOST_TIMEOUT_S = 3.0
MAX_KEYS_BYTES = 64 * 1024

_log = structlog.get_logger("retinue.receipts")


class ReceiptReader:
    """Reads the receipts of the agents of ``registries`` into a book, and stores what is new in ``file``.

    Nothing is fetched while ``list_issuers`` gives no key.
    """

    def __init__(
        self,
        directory: Directory,
        registries: Mapping[str, AttachingRegistry],
        http: HttpClient,
        book: ReceiptBook,
        file: ReceiptFile,
        every_s: float,
        *,
        on_change: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._registries = registries
        self._http = http
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
        self._book.keep_only({place for _, place in places})
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
        waiting, hosts = iter(entries), _Hosts(self._http)
        is_new: list[bool] = []

        async def work(waiting: Iterator[Entry]) -> None:
            for entry in waiting:
                self._read_at[_place(entry)] = self._monotonic()
                try:
                    is_new.append(await self._read(entry, hosts))
                except RetinueError as error:
                    _log.info("receipts not read", agent=entry.name, error=error.message)

        await asyncio.gather(*(work(waiting) for _ in range(min(SIDE_BY_SIDE, len(entries)))))
        if any(is_new):
            self._on_change()
            await asyncio.to_thread(self._file.write_cards, self._book.to_json())

    async def _read(self, entry: Entry, hosts: _Hosts) -> bool:
        registry, place = self._registries[entry.source], place_of(entry)
        attached = await read_receipts(registry, place.repository, place.digest, self._issuers)
        publisher = None
        if attached.receipts or self._book.has_receipts(place):
            publisher = await _find_publisher(entry, registry, hosts)
        refused = [Refused(*row) for row in attached.refused]
        return self._book.take(place, attached.receipts, publisher, refused)


async def _find_publisher(entry: Entry, registry: AttachingRegistry, hosts: _Hosts) -> Publisher:
    """The keys that signed the card, and those of the hub of its registry and of the state of its agent."""
    signers = await find_signers(registry, entry.key, entry.digest or "")
    urls = [entry.url or ""]
    if isinstance(registry, HttpRegistry):
        urls.append(registry.name)
    held = [await hosts.list_keys(url) for url in urls if "://" in url]
    keys = frozenset(key_id for key_ids in held if key_ids is not None for key_id in key_ids)
    return Publisher(signers, keys, is_known=None not in held)


class _Hosts:
    """The ids of the keys that servers publish for signatures of cards; each is asked once."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self._keys: dict[str, frozenset[str] | None] = {}

    async def list_keys(self, url: str) -> frozenset[str] | None:
        """The keys that the server of a URL publishes; None if it does not answer."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        if origin not in self._keys:
            self._keys[origin] = await self._fetch(origin)
        return self._keys[origin]

    async def _fetch(self, origin: str) -> frozenset[str] | None:
        try:
            reply = await self._http.request(
                "GET",
                origin + JWKS_PATH,
                timeout_s=HOST_TIMEOUT_S,
                max_response_bytes=MAX_KEYS_BYTES,
                what="the keys of a host",
            )
        except (TransportError, RetinueError) as error:
            _log.debug("host not asked for its keys", origin=origin, error=str(error))
            return None
        if reply.status != 200:
            return None if reply.status >= 500 else frozenset()
        try:
            rows = orjson.loads(reply.body)["keys"]
            return frozenset(str(row["kid"]) for row in rows)
        except (ValueError, KeyError, TypeError):
            return frozenset()


def _place(entry: Entry) -> tuple[str, CardPlace]:
    return entry.source, place_of(entry)
