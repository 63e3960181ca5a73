"""What the hubs and workers of one mesh tell each other through their Postgres database.

A member writes that it lives, sends news, and reads those of the others, in one transaction. ``LISTEN`` wakes
it when another one has sent something. News are kept for some minutes, so that a member whose connection was
lost misses none. Records, such as issued tokens, stay.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from retinue.core.errors import StateError

if TYPE_CHECKING:
    from psycopg import AsyncConnection

DEAD_S = 6.0
"""A member that has not written for this time is dead."""

KEPT_S = 300
"""How long news are kept."""

_CHANNEL = "retinue_news"
_LOCK = 7412032
"""Serializes what members send, so that the numbers of news grow in the order in which they can be read."""

_CONNECT_TIMEOUT_S = 5
_STATEMENT_TIMEOUT_MS = 5_000

_TABLES = (
    """CREATE TABLE IF NOT EXISTS retinue_members (
        id TEXT PRIMARY KEY, kind TEXT NOT NULL, url TEXT, at TIMESTAMPTZ NOT NULL
    )""",
    # what is lost when the server crashes is found again by probes and refreshes; then its numbers begin at 1
    """CREATE UNLOGGED TABLE IF NOT EXISTS retinue_news (
        id BIGSERIAL PRIMARY KEY, member TEXT NOT NULL, topic TEXT NOT NULL, body BYTEA NOT NULL,
        at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
    )""",
    # lost with the news, so that a member notices that their numbers have begun again
    "CREATE UNLOGGED TABLE IF NOT EXISTS retinue_news_epoch (id TEXT PRIMARY KEY)",
    """CREATE TABLE IF NOT EXISTS retinue_records (
        kind TEXT NOT NULL, id TEXT NOT NULL, body BYTEA NOT NULL, signature TEXT NOT NULL,
        is_removed BOOLEAN NOT NULL, PRIMARY KEY (kind, id)
    )""",
)


@dataclass(frozen=True, slots=True)
class News:
    """One message of another member to all."""

    topic: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A record that all members share; ``is_removed`` = its body holds for nobody any more."""

    id: str
    body: bytes
    signature: str
    is_removed: bool = False


class MeshNews:
    """The connections of one member; every method raises StateError where the database does not answer."""

    def __init__(
        self, url: str, member: str, kind: str, member_url: str | None, *, dead_s: float = DEAD_S
    ) -> None:
        self._url = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._member = member
        self._kind = kind
        self._member_url = member_url
        self._dead_s = dead_s
        self._last: int | None = None
        self._epoch: str | None = None
        self._connection: AsyncConnection[Any] | None = None
        self._listening: AsyncConnection[Any] | None = None
        self._lock = asyncio.Lock()

    async def exchange(self, news: Sequence[News]) -> tuple[Sequence[News], Sequence[str]]:
        """Send news, and read those of the others since the last exchange, with the ids of living members."""
        async with self._transaction() as connection:
            if news:
                await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                cursor = connection.cursor()
                await cursor.executemany(
                    "INSERT INTO retinue_news (member, topic, body) VALUES (%s, %s, %s)",
                    [(self._member, message.topic, message.body) for message in news],
                )
                await connection.execute(f"NOTIFY {_CHANNEL}")
            await connection.execute(
                "INSERT INTO retinue_members (id, kind, url, at) VALUES (%s, %s, %s, clock_timestamp()) "
                "ON CONFLICT (id) DO UPDATE SET at = excluded.at",
                (self._member, self._kind, self._member_url),
            )
            members = await connection.execute(
                "SELECT id FROM retinue_members WHERE at > clock_timestamp() - make_interval(secs => %s)",
                (self._dead_s,),
            )
            living = [str(row[0]) for row in await members.fetchall()]
            if self._last is None:
                newest = await connection.execute("SELECT coalesce(max(id), 0) FROM retinue_news")
                self._last = cast(Any, await newest.fetchone())[0]
            unread = await connection.execute(
                "SELECT id, member, topic, body FROM retinue_news WHERE id > %s ORDER BY id", (self._last,)
            )
            rows = await unread.fetchall()
        if rows:
            self._last = rows[-1][0]
        return [News(row[2], bytes(row[3])) for row in rows if row[1] != self._member], living

    async def leave(self) -> None:
        """Tell that this member has ended."""
        async with self._transaction() as connection:
            await connection.execute("DELETE FROM retinue_members WHERE id = %s", (self._member,))
            await connection.execute(f"NOTIFY {_CHANNEL}")

    async def clean(self) -> None:
        """Delete old news and members that have been dead for as long."""
        async with self._transaction() as connection:
            for table in ("retinue_news", "retinue_members"):
                await connection.execute(
                    f"DELETE FROM {table} WHERE at < clock_timestamp() - make_interval(secs => %s)",  # noqa: S608
                    (KEPT_S,),
                )

    async def read_records(self, kind: str) -> Sequence[Record]:
        """All records of a kind."""
        async with self._transaction() as connection:
            cursor = await connection.execute(
                "SELECT id, body, signature, is_removed FROM retinue_records WHERE kind = %s", (kind,)
            )
            return [Record(row[0], bytes(row[1]), row[2], row[3]) for row in await cursor.fetchall()]

    async def write_records(self, kind: str, records: Sequence[Record]) -> None:
        """Store records, each in place of the one with its id; one that was removed stays removed."""
        async with self._transaction() as connection:
            await connection.cursor().executemany(
                "INSERT INTO retinue_records (kind, id, body, signature, is_removed) "
                "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body, "
                "signature = excluded.signature, is_removed = excluded.is_removed "
                "WHERE NOT retinue_records.is_removed",
                [(kind, record.id, record.body, record.signature, record.is_removed) for record in records],
            )

    async def wait(self, timeout_s: float) -> None:
        """Wait until a member has sent something, or for the time."""
        from psycopg import Error

        try:
            if self._listening is None:
                self._listening = await self._connect()
                await self._listening.set_autocommit(True)
                await self._listening.execute(f"LISTEN {_CHANNEL}")
                return  # what was sent before is read now
            async for _ in self._listening.notifies(timeout=timeout_s, stop_after=1):
                return
        except (Error, OSError) as error:
            await self.aclose()
            raise _explain(error) from error

    async def aclose(self) -> None:
        """Close the connections; the next use opens them again."""
        opened, self._connection, self._listening = (self._connection, self._listening), None, None
        for connection in opened:
            if connection is not None:
                await connection.close()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection[Any]]:
        # imported here, because most processes have no server
        from psycopg import Error

        async with self._lock:
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                    await self._prepare(self._connection)
                async with self._connection.transaction():
                    yield self._connection
            except (Error, OSError) as error:
                await self.aclose()
                raise _explain(error) from error

    async def _connect(self) -> AsyncConnection[Any]:
        from psycopg import AsyncConnection

        return await AsyncConnection.connect(
            self._url,
            connect_timeout=_CONNECT_TIMEOUT_S,
            options=f"-c statement_timeout={_STATEMENT_TIMEOUT_MS}",
        )

    async def _prepare(self, connection: AsyncConnection[Any]) -> None:
        async with connection.transaction():
            # two members that start at once would both create the tables
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            for statement in _TABLES:
                await connection.execute(cast(Any, statement))
            await connection.execute(
                "INSERT INTO retinue_news_epoch SELECT %s WHERE NOT EXISTS (SELECT FROM retinue_news_epoch)",
                (uuid.uuid4().hex,),
            )
            current = await connection.execute("SELECT id FROM retinue_news_epoch")
            epoch = str(cast(Any, await current.fetchone())[0])
        if self._last is not None and epoch != self._epoch:
            self._last = 0
        self._epoch = epoch


def _explain(error: Exception) -> StateError:
    lines = str(error).splitlines() or [type(error).__name__]
    return StateError(
        f"the news of other hubs in the database: {lines[0]}",
        remedy="check the setting database, and that the server answers",
    )
