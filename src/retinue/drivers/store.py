"""``retinue.db``: what outlives the hub's process, in one SQLite file.

Nothing in it is a source of truth: listings come again from the registries, so that a damaged file
may be moved away at the cost of measurements, choices and the audit trail. Cards are kept as the
bytes received and parsed again on loading; columns repeat only what is asked for.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import orjson
import structlog

from retinue.core.errors import (
    MalformedArtifactError,
    StateDamagedError,
    StateError,
    StorageFullError,
)
from retinue.core.record import Listing, ListingKey, SignatureState
from retinue.protocols.pallet_card import encode_card, parse_card, render_card

_log = structlog.get_logger("retinue.store")

AUDIT_FLUSH_S = 0.2
AUDIT_FLUSH_ROWS = 200
AUDIT_BUFFER_ROWS = 10_000
"""Rows that wait when the file cannot be written; the oldest are lost beyond that."""

AUDIT_KEEP_ROWS = 100_000

_BUSY_TIMEOUT_S = 5.0
_ALL_SCOPES = frozenset({"mesh", "exposed"})

_MIGRATIONS = (
    """
    CREATE TABLE listings (
        source TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL, version TEXT,
        tag TEXT, digest TEXT, hash TEXT, raw BLOB NOT NULL, rendered INTEGER NOT NULL,
        published_at TEXT, fetched_at TEXT, etag TEXT, owner TEXT, signature TEXT NOT NULL,
        hops TEXT NOT NULL, enabled INTEGER NOT NULL, reachable INTEGER, since TEXT, last_error TEXT,
        PRIMARY KEY (source, key)
    ) WITHOUT ROWID;
    CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, row BLOB NOT NULL);
    """,
)
"""One script per ``user_version``; append, never change one that was released."""

_COLUMNS = (
    "source, key, name, version, tag, digest, hash, raw, rendered, published_at, fetched_at, etag, owner, "
    "signature, hops, enabled, reachable, since, last_error"
)
_PUT = f"INSERT OR REPLACE INTO listings ({_COLUMNS}) VALUES ({', '.join('?' * 19)})"  # noqa: S608
_LOAD = f"SELECT {_COLUMNS} FROM listings ORDER BY source, key"  # noqa: S608

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class SqliteListings:
    """Implements the port ``retinue.mesh.listings.Listings`` on ``path``.

    Raises StateDamagedError where the file is no database of ours, StateError where it cannot be
    opened, StorageFullError where there is no room.
    """

    def __init__(self, path: Path) -> None:
        self._database = _Database(path)

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
        self._database = _Database(path)
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


class _Database:
    """One connection: opened, brought to today's form, its errors in our words."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        with self._own_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        try:
            with self._own_errors():
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._migrate()
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._own_errors():
            yield self._connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of the block, or nothing."""
        with self._lock, self._own_errors(), self._connection:
            yield self._connection

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _migrate(self) -> None:
        version = self._version()
        if version > len(_MIGRATIONS):
            raise StateError(
                f"{self._path} has form {version}; this Retinue knows up to {len(_MIGRATIONS)}",
                remedy="use the newer Retinue, or move the file away; it is rebuilt from the registries",
            )
        while version < len(_MIGRATIONS):
            # Another process may migrate at the same time: whoever is second finds it done.
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                version = self._version()
                if version < len(_MIGRATIONS):
                    for statement in _MIGRATIONS[version].split(";"):
                        self._connection.execute(statement)
                    self._connection.execute(f"PRAGMA user_version = {version + 1}")
                    version += 1

    def _version(self) -> int:
        return cast(int, self._connection.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._explain(error) from error
        except OSError as error:
            raise StateError(f"{self._path} cannot be made: {error.strerror}") from error

    def _explain(self, error: sqlite3.Error) -> StateError:
        code = getattr(error, "sqlite_errorcode", None)
        primary = code & 0xFF if code is not None else None
        if primary == sqlite3.SQLITE_FULL:
            return StorageFullError(str(self._path))
        if primary in _DAMAGED or "no such table" in str(error) or "no such column" in str(error):
            return StateDamagedError(
                str(self._path), str(error), remedy="move it away; it is rebuilt from the registries"
            )
        return StateError(f"{self._path}: {error}", remedy="is it writable, and no other hub at work?")


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
