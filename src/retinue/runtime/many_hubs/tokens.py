"""Keeps the issued tokens of all hubs of one database equal: issued at one, accepted at all; so with revoked.

Each hub has them in its own file, so they are accepted while the database is away. The database holds the
SHA-256 of each token, signed with the mesh key. A revoked token stays there as revoked, so that a hub which
was away, or was restored from a backup, drops it. Each hub keeps the ids of revoked tokens as well, so that
a database that is restored from a backup brings none of them back.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import orjson
import structlog

from retinue.core.errors import StateDamagedError, StateError
from retinue.runtime.many_hubs.exchange import Topic
from retinue.storage.files import replace_file, storage_errors
from retinue.storage.mesh_news import MeshNews, Record
from retinue.web.issued_tokens import IssuedToken, TokenFile, parse_token, render_token

WATCH_S = 0.5
"""Seconds between two looks at the file of tokens, each of which is one stat call."""

SYNCHRONIZE_S = 60.0
"""The longest time between two looks at the database, which may have been restored from a backup."""

MERGE_WITHIN_S = 1.0
"""How long to wait for a command that holds the lock of the file; after that the next round tries again."""

_KIND = "token"
_SHARED = "shared_tokens.json"

_log = structlog.get_logger("retinue.many_hubs")


class _Known(NamedTuple):
    """The tokens of its database as a hub remembers them, by id.

    ``shared`` were in the file and in the database at the last look; one that is missing in the file since
    was revoked here. ``revoked`` are never accepted again.
    """

    shared: frozenset[str] = frozenset()
    revoked: frozenset[str] = frozenset()


class SharedTokens(Topic):
    """The tokens of the folder ``keys``, in step with those of the database."""

    name = "tokens"

    def __init__(
        self, news: MeshNews, keys: Path, mesh_key: bytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._news = news
        self._keys = keys
        self._file = TokenFile(keys)
        self._mesh_key = mesh_key
        self._clock = clock
        self._read_at = clock()
        self._is_stale = True
        self._has_news = False
        self._written: Sequence[Record] = ()
        self._seen: tuple[int, int, int] | None = None

    async def connected(self) -> None:
        self._is_stale = True

    async def watch(self) -> None:
        """Look for changes of the file until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(WATCH_S)

    def look(self) -> None:
        """Have the tokens synchronized if the file has changed since the last look."""
        if self._stamp() != self._seen:
            self._is_stale = True
            self.wake()

    async def take(self) -> Sequence[bytes]:
        if self._is_stale or self._clock() - self._read_at >= SYNCHRONIZE_S:
            self._is_stale = False
            try:
                self._has_news |= await self.synchronize()
                self._read_at = self._clock()
            except StateDamagedError as error:
                _log.warning("tokens are not shared", error=error.message)
            except BaseException:
                self._is_stale = True
                raise
        has_news, self._has_news = self._has_news, False
        return (b"1",) if has_news else ()

    async def hear(self, body: bytes) -> None:
        self._is_stale = True
        self.wake()

    async def synchronize(self) -> bool:
        """Bring file and database in step; whether others must hear of it. Raises StateError."""
        records = await self._news.read_records(_KIND)
        rows = {row.id: row for row in records if self._is_signed(row)}
        # a change of the file from here on is looked at in the next round
        self._seen = self._stamp()
        held = {token.id: token for token in self._file.list_all()}
        known = self._read_known()
        removed = {token_id for token_id, row in rows.items() if row.is_removed}
        revoked = known.revoked | (known.shared - held.keys()) | removed
        unshared = held.keys() - rows.keys() - revoked
        written = [self._render(token) for token_id, token in held.items() if token_id in unshared]
        written += [
            self._sign(Record(token_id, row.body, "", is_removed=True))
            for token_id, row in rows.items()
            if token_id in revoked and not row.is_removed
        ]
        if written:
            await self._news.write_records(_KIND, written)
        # what is written again and again, because another hub has another key, is told once
        is_news = bool(written) and written != self._written
        self._written = written or self._written
        dropped = held.keys() & revoked
        added = {
            token_id: parse_token(orjson.loads(row.body))
            for token_id, row in rows.items()
            if token_id not in held and token_id not in revoked
        }
        if dropped or added:
            # in a thread, because a command may hold the lock of the file
            merge = partial(self._file.merge, added.values(), dropped, within_s=MERGE_WITHIN_S)
            try:
                await asyncio.to_thread(merge)
            except StateDamagedError:
                raise
            except StateError as error:
                # the next round tries again; until then this hub gives signs of life
                _log.warning("tokens of other hubs wait", error=error.message, remedy=error.remedy)
                self._is_stale = True
                return is_news
            _log.info("tokens of other hubs", added=len(added), revoked=len(dropped))
        self._write_known(_Known(frozenset(held.keys() - dropped | added.keys()), revoked))
        return is_news

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

    def _read_known(self) -> _Known:
        path = self._keys / _SHARED
        try:
            known = orjson.loads(path.read_bytes())
            return _Known(*(frozenset(map(str, known[name])) for name in _Known._fields))
        except FileNotFoundError:
            return _Known()
        except (OSError, orjson.JSONDecodeError, TypeError, KeyError) as error:
            _log.warning("not known which tokens were revoked", file=str(path), problem=str(error))
            return _Known()

    def _write_known(self, known: _Known) -> None:
        if known != self._read_known():
            path = self._keys / _SHARED
            with storage_errors(path):
                body = orjson.dumps({name: sorted(ids) for name, ids in known._asdict().items()})
                replace_file(path, body, mode=0o600)
