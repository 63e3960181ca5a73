"""Stores listings in ``retinue.db``.

Listings are a cache: the registries are the source of truth. Moving a damaged file away loses only health
records, the user's choices and the audit log.

The table ``cards`` holds each card as the bytes received; it is parsed when the whole listing is needed. The
table ``listings`` holds the columns that a directory keeps in memory, so opening a hundred thousand listings
parses no card. Rows written by another version are rebuilt from their cards.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import orjson
import structlog

from retinue.cards.pallet_card import encode_card, parse_card, parse_skill, render_card
from retinue.core.errors import MalformedArtifactError
from retinue.core.record import Listing, ListingKey, SignatureState, Skill
from retinue.mesh.entry import Entry, entry_of, make_entry
from retinue.storage.database import Database

_log = structlog.get_logger("retinue.store")

_ALL_SCOPES = frozenset({"mesh", "exposed"})

FORM = f"2 {version('retinue')}"
"""Changes whenever the same card could yield other columns; rows of another form are rebuilt."""

_REBUILT_AT_ONCE = 500

_SHORT = (
    "source, key, name, version, url, tag, digest, owner, published_at, skills, kinds, roles, labels, "
    "enabled, reachable, since, last_error, deprecated, weight, signature"
)
_WHOLE = (
    "source, key, raw, rendered, fetched_at, cards.signature, "
    "tag, digest, owner, published_at, enabled, reachable, since, last_error"
)
_PUT = f"INSERT OR REPLACE INTO listings ({_SHORT}, form) VALUES ({', '.join('?' * 21)})"  # noqa: S608
# the columns hash, etag and hops of the table have no readers yet
_PUT_CARD = (
    "INSERT OR REPLACE INTO cards (source, key, tag, raw, rendered, fetched_at, signature, hops) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, '[]')"
)
_UPDATE_HEALTH = (
    "UPDATE listings SET enabled = ?, reachable = ?, since = ?, last_error = ? "
    "WHERE source = ? AND key = ? AND tag = ?"
)
_LOAD = f"SELECT {_SHORT} FROM listings WHERE form = ? ORDER BY source, key, tag"  # noqa: S608
_OPEN = f"SELECT {_WHOLE} FROM listings JOIN cards USING (source, key, tag)"  # noqa: S608
_FIND = f"{_OPEN} WHERE source = ? AND key = ? AND tag = ?"
_FIND_CARD = (
    "SELECT raw FROM listings JOIN cards USING (source, key, tag) "
    "WHERE source = ? AND key = ? AND tag = ? AND digest IS ?"
)
_FIND_OLD = f"{_OPEN} WHERE form <> ? LIMIT {_REBUILT_AT_ONCE}"


class SqliteListings:
    """Listings in the file ``path``; implements ``retinue.mesh.directory.listings.Listings``.

    Raises StateDamagedError when the file is not a Retinue database, StateError when it cannot be opened,
    StorageFullError when the disk is full. With ``follows`` another process writes the file, and what this
    one would write is dropped.
    """

    def __init__(self, path: Path, *, follows: bool = False) -> None:
        self._follows = follows
        self._database = Database(path)
        try:
            if not follows:
                self._rebuild_rows()
        except BaseException:
            self._database.close()
            raise

    def load(self) -> Iterator[Entry]:
        with self._database.reading() as connection:
            cursor = connection.cursor()
            cursor.row_factory = None
            for row in cursor.execute(_LOAD, (FORM,)):
                try:
                    entry = _parse_entry(row)
                except ValueError as error:
                    # corrupt row; the next refresh of its source restores it
                    _log.warning("listing dropped", source=row[0], key=row[1], error=str(error))
                    continue
                yield entry

    def find(self, listing_id: ListingKey) -> Listing | None:
        with self._database.reading() as connection:
            row = connection.execute(_FIND, listing_id).fetchone()
        return None if row is None else _open_row(row)

    def find_all(self, listing_ids: Collection[ListingKey]) -> Sequence[Listing]:
        listings = (self.find(listing_id) for listing_id in listing_ids)
        return [listing for listing in listings if listing is not None]

    def find_skill(self, entry: Entry, skill_id: str) -> Skill | None:
        with self._database.reading() as connection:
            row = connection.execute(_FIND_CARD, (*entry.id, entry.digest)).fetchone()
        try:
            return None if row is None else parse_skill(row["raw"], skill_id, reference=entry.key)
        except MalformedArtifactError:
            return None

    def put_all(self, listings: Sequence[Listing]) -> None:
        if self._follows:
            return
        entries = [_render_entry(entry_of(listing)) for listing in listings]
        cards = [_render_card(listing) for listing in listings]
        with self._database.writing() as connection:
            connection.executemany(_PUT, entries)
            connection.executemany(_PUT_CARD, cards)

    def update_all(self, entries: Sequence[Entry]) -> None:
        if self._follows:
            return
        rows = [(e.enabled, e.reachable, _render_time(e.since), e.last_error, *e.id) for e in entries]
        with self._database.writing() as connection:
            connection.executemany(_UPDATE_HEALTH, rows)

    def remove_all(self, listing_ids: Collection[ListingKey]) -> None:
        if self._follows:
            return
        with self._database.writing() as connection:
            for table in ("listings", "cards"):
                connection.executemany(
                    f"DELETE FROM {table} WHERE source = ? AND key = ? AND tag = ?",  # noqa: S608
                    listing_ids,
                )

    def close(self) -> None:
        self._database.close()

    def _rebuild_rows(self) -> None:
        """Rebuild the columns of rows that another version wrote from their cards."""
        while True:
            with self._database.reading() as connection:
                rows = connection.execute(_FIND_OLD, (FORM,)).fetchall()
            if not rows:
                return
            opened = {ListingKey(row["source"], row["key"], row["tag"]): _open_row(row) for row in rows}
            self.put_all([listing for listing in opened.values() if listing is not None])
            self.remove_all([listing_id for listing_id, listing in opened.items() if listing is None])


def _render_entry(entry: Entry) -> tuple[object, ...]:
    return (
        entry.source,
        entry.key,
        entry.name,
        entry.version,
        entry.url,
        entry.id.tag,
        entry.digest,
        entry.owner,
        _render_time(entry.published_at),
        orjson.dumps(entry.skills).decode(),
        entry.kinds,
        orjson.dumps(entry.roles).decode() if entry.roles else None,
        orjson.dumps(dict(entry.labels)).decode() if entry.labels else None,
        entry.enabled,
        entry.reachable,
        _render_time(entry.since),
        entry.last_error,
        entry.deprecated,
        entry.weight,
        entry.signature,
        FORM,
    )


def _render_card(listing: Listing) -> tuple[object, ...]:
    return (
        listing.source,
        listing.key,
        listing.id.tag,
        listing.raw or encode_card(render_card(listing.record, scopes=_ALL_SCOPES)),
        not listing.raw,
        _render_time(listing.fetched_at),
        listing.signature,
    )


def _parse_entry(row: tuple[Any, ...]) -> Entry:
    source, key, name, version, url, tag, digest, owner, published_at, skills, kinds, roles, labels = row[:13]
    enabled, reachable, since, last_error, deprecated, weight, signature = row[13:]
    return make_entry(
        ListingKey(source, key, tag),
        name,
        version,
        url,
        tag or None,
        digest,
        owner,
        _parse_time(published_at),
        orjson.loads(skills),
        kinds,
        tuple((role, kind) for role, kind in orjson.loads(roles)) if roles else (),
        orjson.loads(labels) if labels else {},
        bool(enabled),
        None if reachable is None else bool(reachable),
        _parse_time(since),
        last_error,
        bool(deprecated),
        weight,
        signature,
    )


def _open_row(row: sqlite3.Row) -> Listing | None:
    """The whole listing; None, with a log line, when its card cannot be parsed."""
    try:
        return _parse_row(row)
    except (MalformedArtifactError, ValueError) as error:
        # Written under older rules; the next refresh of its source restores it.
        _log.warning("listing dropped", source=row["source"], key=row["key"], error=str(error))
        return None


def _parse_row(row: sqlite3.Row) -> Listing:
    raw: bytes = row["raw"]
    return Listing(
        record=parse_card(raw, reference=row["key"]),
        source=row["source"],
        key=row["key"],
        tag=row["tag"] or None,
        digest=row["digest"],
        raw=b"" if row["rendered"] else raw,
        published_at=_parse_time(row["published_at"]),
        fetched_at=_parse_time(row["fetched_at"]),
        owner=row["owner"],
        signature=cast(SignatureState, row["signature"]),
        enabled=bool(row["enabled"]),
        reachable=None if row["reachable"] is None else bool(row["reachable"]),
        since=_parse_time(row["since"]),
        last_error=row["last_error"],
    )


def _render_time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None
