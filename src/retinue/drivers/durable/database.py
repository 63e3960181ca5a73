"""The database of the runs: SQLite or Postgres, its connections and the tables beside the engine's own.

The engine keeps runs and steps; ours are the events, the signals and the leases of the nodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer
from filelock import FileLock

from retinue.core.errors import InvalidSettingError, StateError
from retinue.drivers.durable.logs import divert_log
from retinue.drivers.files import refuse_gone

APPLICATION = "retinue"
VERSION = "engine-1"
"""The form of the journal: raised when recorded runs can no longer be replayed, never with a release."""

PATIENCE_S = 30.0
"""How long one question waits for a database that does not answer."""

FIRST_PATIENCE_S = 4.0
"""The same for the first one: so far nobody has anything to lose, and a wrong url is best said at once."""

IDLE_S = 10.0
"""How long a node may stand still in a transaction on Postgres, holding what others wait for."""

_BUSY_TIMEOUT_MS = 30_000
_THREADS = 8
_LOST = "connection failed"
_T = TypeVar("_T")

_TABLES = """
CREATE TABLE IF NOT EXISTS {events} (
    root TEXT NOT NULL, seq BIGINT NOT NULL, run_id TEXT NOT NULL, kind TEXT NOT NULL, step TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL, facts TEXT NOT NULL, once TEXT, PRIMARY KEY (root, seq));
CREATE UNIQUE INDEX IF NOT EXISTS retinue_events_once ON {events} (run_id, once);
CREATE TABLE IF NOT EXISTS {signals} (
    id {serial}, run_id TEXT NOT NULL, topic TEXT NOT NULL, value TEXT NOT NULL, taken_by TEXT);
CREATE INDEX IF NOT EXISTS retinue_signals_open ON {signals} (run_id, topic, id);
CREATE TABLE IF NOT EXISTS {nodes} (
    executor TEXT PRIMARY KEY, version TEXT NOT NULL, expires DOUBLE PRECISION NOT NULL,
    running BIGINT NOT NULL)
"""


class RunDatabase:
    """Connections to ``url`` (``sqlite:///path`` or ``postgresql://…``) outside of the engine's.

    Nothing is opened before `prepare`. Raises InvalidSettingError for another kind of url.
    """

    def __init__(self, url: str) -> None:
        divert_log()
        self.url = _normalize(url)
        self.is_sqlite = self.url.drivername == "sqlite"
        own = "retinue_" if self.is_sqlite else "retinue."
        self.events, self.signals, self.nodes = f"{own}events", f"{own}signals", f"{own}nodes"
        self.runs = "workflow_status" if self.is_sqlite else "dbos.workflow_status"
        self.now = ":now" if self.is_sqlite else "extract(epoch from clock_timestamp())"
        self.engine = self.open_engine(2 if self.is_sqlite else 4)
        self.client = DBOSClient(
            system_database_engine=self.engine,
            serializer=DBOSPortableJSONSerializer(),
            application_name=APPLICATION,
            lazy=True,
            retry_connection_errors=False,
        )
        # Not the loop's own threads: the engine takes those with it when it is closed.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="runs-database")
        self._prepared = asyncio.Lock()
        self._ready = False

    def open_engine(self, connections: int, *, tested: bool = True) -> sa.Engine:
        """A pool of connections as this database needs them; ``tested`` each time one is taken.

        Whoever repeats what failed anyway, as the engine does, spares the tests.
        """
        if not self.is_sqlite:
            server = sa.create_engine(
                self.url,
                pool_size=connections,
                max_overflow=2 * connections,
                pool_pre_ping=tested,
                connect_args={"connect_timeout": 5, "application_name": APPLICATION},
            )
            sa.event.listen(server, "do_connect", _connect)
            sa.event.listen(server, "connect", _tune_postgres)
            return server
        engine = sa.create_engine(self.url, pool_size=connections, max_overflow=0)
        sa.event.listen(engine, "connect", _tune_sqlite)
        return engine

    async def prepare(self) -> None:
        """Bring the tables to today's form; raises StateError where the database does not answer."""
        async with self._prepared:
            if not self._ready:
                await self.ask(self._migrate, patience_s=FIRST_PATIENCE_S)
                self._ready = True

    async def read(self, question: Callable[[sa.Connection], _T]) -> _T:
        """Ask in a thread; waits out a server that restarts. Raises StateError when it stays away."""

        def ask() -> _T:
            with self.engine.connect() as connection:
                return question(connection)

        return await self.ask(ask)

    async def write(self, change: Callable[[sa.Connection], _T], *, patience_s: float = PATIENCE_S) -> _T:
        """One transaction in a thread: all of it or nothing. Raises as `read`."""

        def make() -> _T:
            with self.engine.connect() as connection:
                if self.is_sqlite:
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                given = change(connection)
                connection.commit()
                return given

        return await self.ask(make, patience_s=patience_s)

    async def ask(self, call: Callable[[], _T], *, patience_s: float = PATIENCE_S) -> _T:
        """Do something with the database in a thread, outside of any run of the caller's."""
        delay, given_up_at = 0.05, time.monotonic() + patience_s
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.run_in_executor(self._threads, Context().run, call)
            except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
                if not _may_pass(error):
                    raise
                if time.monotonic() + delay > given_up_at:
                    raise StateError(
                        f"the database of the runs does not answer: {_first_line(error)}",
                        remedy=f"check {self._shown_url}",
                    ) from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, 1.0)

    @property
    def _shown_url(self) -> str:
        """As it was given, without the password."""
        return self.url.set(drivername=self.url.get_backend_name()).render_as_string()

    def clock(self) -> dict[str, Any]:
        """The parameter that ``self.now`` needs: SQLite has one machine and so one clock."""
        return {"now": time.time()} if self.is_sqlite else {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.client.destroy()
        self.engine.dispose()

    def _migrate(self) -> None:
        if self.is_sqlite:
            path = Path(str(self.url.database))
            # neither the lock nor the database may make a folder that somebody removed
            refuse_gone(path.parent)
            with FileLock(f"{path}.lock"):
                self._make_tables()
        else:
            self._make_tables()

    def _make_tables(self) -> None:
        with self.engine.connect():
            # A new SQLite file gets its journal mode now: migrations are faster with it.
            pass
        DBOS.migrate(self.url.render_as_string(hide_password=False))
        names = {"events": self.events, "signals": self.signals, "nodes": self.nodes}
        serial = "INTEGER PRIMARY KEY AUTOINCREMENT" if self.is_sqlite else "BIGSERIAL PRIMARY KEY"
        with self.engine.begin() as connection:
            if not self.is_sqlite:
                # Two nodes may meet here for the first time.
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('retinue'))")
                connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS retinue")
            for statement in _TABLES.format(serial=serial, **names).split(";"):
                connection.exec_driver_sql(statement)


def _normalize(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise InvalidSettingError(
            "database", "no url", remedy="such as postgresql://user@host/name"
        ) from None
    if parsed.drivername == "sqlite":
        return parsed
    if parsed.drivername.partition("+")[0] in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    raise InvalidSettingError(
        "database", f"{parsed.drivername} is not supported", remedy="use postgresql://… or leave it away"
    )


def _connect(dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
    """Connect; say a failure in the words by which the engine knows that it should try again."""
    try:
        return dialect.connect(*arguments, **options)
    except psycopg.OperationalError as error:
        if str(error).startswith(_LOST):
            raise
        raise psycopg.OperationalError(f"{_LOST}: {error}") from error


def _tune_postgres(connection: Any, _record: Any) -> None:
    """Let the server end a session that stands still in a transaction, as that of a frozen node does."""
    connection.execute(f"SET idle_in_transaction_session_timeout = {round(IDLE_S * 1000)}")
    connection.commit()


def _tune_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = "IMMEDIATE"
    for pragma in (
        f"busy_timeout={_BUSY_TIMEOUT_MS}",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _may_pass(error: sa.exc.DBAPIError | sa.exc.TimeoutError) -> bool:
    """Whether the same may go well the next time: nothing was done, and nothing is wrong with it."""
    if isinstance(error, sa.exc.TimeoutError | sa.exc.OperationalError | sa.exc.InterfaceError):
        return True
    return error.connection_invalidated


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip().split("\n")[0]
