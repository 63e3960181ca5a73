"""Keeps the issued tokens of all hubs of one database equal: issued at one, accepted at all; so with revoked.

Each hub has them in its own file, so they are accepted while the database is away. The database holds the
SHA-256 of each token, signed with the mesh key. A revoked token stays there as revoked, so that a hub which
was away, or was restored from a backup, drops it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import orjson
import structlog

from retinue.core.errors import StateDamagedError
from retinue.runtime.many_hubs.exchange import Topic
from retinue.storage.files import replace_file, storage_errors
from retinue.storage.mesh_news import MeshNews, Record
from retinue.web.issued_tokens import IssuedToken, TokenFile, parse_token, render_token

WATCH_S = 0.5
"""Seconds between two looks at the file of tokens, each of which is one stat call."""

_KIND = "token"
_SHARED = "shared_tokens.json"
"""The ids of the tokens that were in the database at the last look; who is missing since was revoked here."""

_log = structlog.get_logger("retinue.many_hubs")


class SharedTokens(Topic):
    """The tokens of the folder ``keys``, in step with those of the database."""

    name = "tokens"

    def __init__(self, news: MeshNews, keys: Path, mesh_key: bytes) -> None:
        self._news = news
        self._keys = keys
        self._file = TokenFile(keys)
        self._mesh_key = mesh_key
        self._is_stale = True
        self._has_news = False
        self._seen: tuple[int, int, int] | None = None

    async def connected(self) -> None:
        self._is_stale = True

    async def watch(self) -> None:
        """Look for changes of the file until cancelled."""
        while True:
            if self._stamp() != self._seen:
                self._is_stale = True
                self.wake()
            await asyncio.sleep(WATCH_S)

    async def take(self) -> Sequence[bytes]:
        if self._is_stale:
            self._is_stale = False
            try:
                self._has_news = await self.synchronize()
            except StateDamagedError as error:
                _log.warning("tokens are not shared", error=error.message)
        has_news, self._has_news = self._has_news, False
        return (b"1",) if has_news else ()

    async def hear(self, body: bytes) -> None:
        await self.synchronize()

    async def synchronize(self) -> bool:
        """Bring file and database in step; whether the database has changed."""
        rows = {row.id: row for row in await self._news.read_records(_KIND)}
        rows = {token_id: row for token_id, row in rows.items() if self._is_signed(row)}
        stamp = self._stamp()
        held = {token.id: token for token in self._file.list_all()}
        shared = self._read_shared()
        written = [self._render(token) for token_id, token in held.items() if token_id not in rows]
        written += [
            self._sign(Record(token_id, row.body, "", is_removed=True))
            for token_id, row in rows.items()
            if token_id in shared and token_id not in held and not row.is_removed
        ]
        if written:
            await self._news.write_records(_KIND, written)
        revoked = [token_id for token_id in held if token_id in rows and rows[token_id].is_removed]
        added = [
            parse_token(orjson.loads(row.body))
            for token_id, row in rows.items()
            if not row.is_removed and token_id not in held and token_id not in shared
        ]
        if revoked or added:
            self._file.merge(added, revoked)
            stamp = self._stamp()
            _log.info("tokens of other hubs", added=len(added), revoked=len(revoked))
        current = {token_id for token_id in held if token_id not in revoked}
        self._write_shared(current | {token.id for token in added})
        self._seen = stamp
        return bool(written)

    def _render(self, token: IssuedToken) -> Record:
        return self._sign(Record(token.id, orjson.dumps(render_token(token)), ""))

    def _sign(self, row: Record) -> Record:
        text = orjson.dumps(["retinue token", row.id, row.is_removed, row.body.decode()])
        signature = hmac.new(self._mesh_key, text, sha256).hexdigest()
        return Record(row.id, row.body, signature, row.is_removed)

    def _is_signed(self, row: Record) -> bool:
        if hmac.compare_digest(self._sign(row).signature, row.signature):
            return True
        _log.warning("a token in the database is not signed with the key of this mesh", token=row.id)
        return False

    def _stamp(self) -> tuple[int, int, int] | None:
        with suppress(OSError):
            status = (self._keys / "tokens.json").stat()
            return (status.st_mtime_ns, status.st_ino, status.st_size)
        return None

    def _read_shared(self) -> frozenset[str]:
        try:
            return frozenset(map(str, orjson.loads((self._keys / _SHARED).read_bytes())))
        except (OSError, orjson.JSONDecodeError, TypeError):
            return frozenset()

    def _write_shared(self, ids: set[str]) -> None:
        if ids != self._read_shared():
            path = self._keys / _SHARED
            with storage_errors(path):
                replace_file(path, orjson.dumps(sorted(ids)), mode=0o600)
