"""``retinue.db``: what outlives the hub's process, in one SQLite file.

Nothing in it is a source of truth: listings come again from the registries, so that a damaged file
may be moved away at the cost of measurements, choices and the audit trail. Cards are kept as the
bytes received and parsed again on loading; columns repeat only what is asked for.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import orjson
import structlog

from retinue.core.errors import (
    MalformedArtifactError,
    StateError,
)
from retinue.core.record import Listing, ListingKey, SignatureState
from retinue.drivers.database import Database
from retinue.protocols.pallet_card import encode_card, parse_card, render_card

_log = structlog.get_logger("retinue.store")

AUDIT_FLUSH_S = 0.2
AUDIT_FLUSH_ROWS = 200
AUDIT_BUFFER_ROWS = 10_000
"""Rows that wait when the file cannot be written; the oldest are lost beyond that."""

AUDIT_KEEP_ROWS = 100_000

_ALL_SCOPES = frozenset({"mesh", "exposed"})

_COLUMNS = (
    "source, key, name, version, tag, digest, hash, raw, rendered, published_at, fetched_at, etag, owner, "
    "signature, hops, enabled, reachable, since, last_error"
)
_PUT = f"INSERT OR REPLACE INTO listings ({_COLUMNS}) VALUES ({', '.join('?' * 19)})"  # noqa: S608
_LOAD = f"SELECT {_COLUMNS} FROM listings ORDER BY source, key"  # noqa: S608


class SqliteListings:
    """Implements the port ``retinue.mesh.listings.Listings`` on ``path``.

    Raises StateDamagedError where the file is no database of ours, StateError where it cannot be
    opened, StorageFullError where there is no room.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path)

    def load(self) -> Iterator[Listing]:
        with self._database.reading() as connection:
            for row in connection.execute(_LOAD):
                try:
                    listing = _parse_row(row)
                except (MalformedArtifactError, ValueError) as error:
                    # Written under other rules; its source gives it again in today's form.
                    _log.warning("listing dropped", source=row["source"], key=row["key"], error=str(error))
                    continue
                yield listing

    def put_all(self, listings: Sequence[Listing]) -> None:
        rows = [_render_row(listing) for listing in listings]
        with self._database.writing() as connection:
            connection.executemany(_PUT, rows)

    def remove(self, listing_id: ListingKey) -> None:
        with self._database.writing() as connection:
            connection.execute(
                "DELETE FROM listings WHERE source = ? AND key = ?", (listing_id.source, listing_id.key)
            )

    def close(self) -> None:
        self._database.close()


class SqliteAudit:
    """Implements the port ``retinue.mesh.audit.AuditLog`` on ``path``, with the newest rows kept.

    Rows are written in batches, a moment after they came; `close` writes the rest. A file that
    cannot be written never fails a call: rows wait in memory, then the oldest are dropped.
    """

    def __init__(self, path: Path, *, keep_rows: int = AUDIT_KEEP_ROWS) -> None:
        self._database = Database(path)
        self._keep_rows = keep_rows
        self._waiting: deque[bytes] = deque(maxlen=AUDIT_BUFFER_ROWS)
        self._timer: asyncio.TimerHandle | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        self._waiting.append(orjson.dumps(dict(row), default=str))
        if len(self._waiting) % AUDIT_FLUSH_ROWS == 0:
            self._flush()
        elif self._timer is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                self._flush()
            else:
                self._timer = loop.call_later(AUDIT_FLUSH_S, self._flush)

    def recent(self, limit: int) -> Sequence[Mapping[str, Any]]:
        self._flush()
        with self._database.reading() as connection:
            rows = connection.execute("SELECT row FROM audit ORDER BY id DESC LIMIT ?", (limit,)).fetchall()
        return [orjson.loads(row["row"]) for row in rows]

    def close(self) -> None:
        """Write what waits, and give the file back."""
        self._flush()
        self._database.close()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        try:
            with self._database.writing() as connection:
                connection.executemany("INSERT INTO audit (row) VALUES (?)", [(r,) for r in self._waiting])
                connection.execute(
                    "DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", (self._keep_rows,)
                )
        except StateError as error:
            _log.warning("audit rows wait", rows=len(self._waiting), error=str(error))
        else:
            self._waiting.clear()


def _render_row(listing: Listing) -> tuple[object, ...]:
    record = listing.record
    raw = listing.raw or encode_card(render_card(record, scopes=_ALL_SCOPES))
    return (
        listing.source,
        listing.key,
        record.name,
        record.version,
        listing.tag,
        listing.digest,
        listing.hash,
        raw,
        not listing.raw,
        _render_time(listing.published_at),
        _render_time(listing.fetched_at),
        listing.etag,
        listing.owner,
        listing.signature,
        orjson.dumps(listing.hops).decode(),
        listing.enabled,
        listing.reachable,
        _render_time(listing.since),
        listing.last_error,
    )


def _parse_row(row: sqlite3.Row) -> Listing:
    raw: bytes = row["raw"]
    return Listing(
        record=parse_card(raw, reference=row["key"]),
        source=row["source"],
        key=row["key"],
        tag=row["tag"],
        digest=row["digest"],
        hash=row["hash"],
        raw=b"" if row["rendered"] else raw,
        published_at=_parse_time(row["published_at"]),
        fetched_at=_parse_time(row["fetched_at"]),
        etag=row["etag"],
        owner=row["owner"],
        signature=cast(SignatureState, row["signature"]),
        hops=tuple(orjson.loads(row["hops"])),
        enabled=bool(row["enabled"]),
        reachable=None if row["reachable"] is None else bool(row["reachable"]),
        since=_parse_time(row["since"]),
        last_error=row["last_error"],
    )


def _render_time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None
