"""The database of the runs, SQLite or Postgres: connections, transactions with retries, own tables.

The engine's tables store runs and their calls. Our tables store events, signals and the leases of nodes
(`own_tables`).
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import psycopg
import sqlalchemy as sa
import structlog

from retinue.core.errors import InvalidSettingError, StateError, StorageFullError
from retinue.storage.files import create_database, file_mode, hold_lock, is_for_want_of_room, refuse_gone
from retinue.storage.run_store import check_encoding
from retinue.storage.runs_file import TABLE as MARK_TABLE
from retinue.storage.runs_file import Mark, RunsFile, new_mark
from retinue.workflows.durable.dbos_engine import APPLICATION, EngineClient, migrate
from retinue.workflows.durable.sqlite_connections import (
    is_read_only,
    read_only_url,
    set_up_connection,
    set_up_reader,
)
from retinue.workflows.durable.tables.own_tables import OwnTables

RETRY_S = 30.0
"""How long one question waits for a database that does not answer."""

FIRST_RETRY_S = 4.0
"""The same for the first question, because nothing is running yet, and a wrong url is best reported at once.
"""

BRIEF_RETRY_S = 3.0
"""The same where a person waits, and nothing is lost by asking again: lists, and the start of a run."""

FULL_RETRY_S = 1.0
"""The same while the disk is full, which lasts until somebody frees space; the caller gets an error."""

_MIGRATE_S = 60.0
"""How long another process may change the tables of the same file."""

IDLE_S = 10.0
"""How long a session on Postgres may be idle in a transaction, holding locks that others wait for."""

TRANSACTION_S = 120.0
"""How long a transaction may last on Postgres 17 and later: a node that is frozen while it sends a large
value is not idle for the server.
"""

LIMITS_TRANSACTIONS = 17
"""The first version of Postgres that can limit transactions."""

QUIET_S = 10.0
"""The interval between two warnings of the engine about a database that is away."""

OWN_CONNECTIONS = {True: 2, False: 4}
ENGINE_CONNECTIONS = {True: 2, False: 10}
"""Connections outside of the engine and of the engine, by whether the database is SQLite."""

_THREADS = 8
_LOST = "connection failed"
_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")
_log = structlog.get_logger("retinue.runs")
_patience_s: ContextVar[float] = ContextVar("patience_s", default=RETRY_S)


class RunDatabase:
    """The database at ``url``, ``sqlite:///path`` or ``postgresql://…``.

    Nothing is opened before `prepare`. Raises InvalidSettingError for other kinds of url.
    """

    def __init__(self, url: str) -> None:
        redirect_log()
        self.url = _normalize(url)
        self.is_sqlite = self.url.drivername == "sqlite"
        self._file = RunsFile(Path(str(self.url.database))) if self.is_sqlite else None
        self._is_read_only = self._file is not None and is_read_only(self._file.path)
        self.now = ":now" if self.is_sqlite else "extract(epoch from clock_timestamp())"
        self.engine = self.open_engine(OWN_CONNECTIONS[self.is_sqlite])
        self.client = EngineClient(self.engine)
        self._tables = OwnTables(self.engine)
        self.events, self.signals, self.nodes = self._tables.events, self._tables.signals, self._tables.nodes
        self.used_ids = self._tables.used_ids
        self.schedules = self._tables.schedules
        self.triggers, self.deliveries = self._tables.triggers, self._tables.deliveries
        self.artifacts = self._tables.artifacts
        self.hosted = self._tables.hosted
        self.approvals = self._tables.approvals
        self.sessions = self._tables.sessions
        self.call_counts = self._tables.call_counts
        self.policy_digests = self._tables.policy_digests
        self.watches, self.reports = self._tables.watches, self._tables.reports
        # Not the loop's default executor: DBOS replaces it, and shuts its own down when it is closed.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="runs-database")
        self._prepared = asyncio.Lock()
        self._ready = False

    def open_engine(self, connections: int, *, tested: bool = True) -> sa.Engine:
        """A pool of connections; with ``tested``, each connection is tested when it is taken."""
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
            sa.event.listen(server, "do_executemany", _execute_each)
            return server
        if self._file is not None and self._is_read_only:
            reader = sa.create_engine(read_only_url(self._file.path), pool_size=connections, max_overflow=0)
            sa.event.listen(reader, "connect", set_up_reader)
            return reader
        engine = sa.create_engine(self.url, pool_size=connections, max_overflow=0)
        sa.event.listen(engine, "connect", set_up_connection)
        return engine

    def open_engine_pool(self) -> sa.Engine:
        """The connections of the executing engine, which are not tested because it repeats what failed."""
        return self.open_engine(ENGINE_CONNECTIONS[self.is_sqlite], tested=False)

    @contextmanager
    def brief(self) -> Iterator[None]:
        """Questions within wait for `BRIEF_RETRY_S` only."""
        token = _patience_s.set(BRIEF_RETRY_S)
        try:
            yield
        finally:
            _patience_s.reset(token)

    async def prepare(self) -> None:
        """Create or migrate the tables, once.

        Raises StateError if the database does not answer or belongs to a newer release, StateDamagedError
        for damaged or lost runs.
        """
        if self._ready:
            return
        async with self._prepared:
            if not self._ready:
                await self.ask(self._migrate, retry_s=FIRST_RETRY_S)
                self._ready = True

    async def read(
        self, question: Callable[[sa.Connection, *_Args], _T], *args: *_Args, retry_s: float | None = None
    ) -> _T:
        """Run a query in a thread; raises as `ask`."""

        def ask() -> _T:
            with self.engine.connect() as connection:
                return question(connection, *args)

        return await self.ask(ask, retry_s=retry_s)

    async def write(
        self,
        change: Callable[[sa.Connection, *_Args], _T],
        *args: *_Args,
        retry_s: float | None = None,
    ) -> _T:
        """Run one transaction in a thread; raises as `ask`."""

        def make() -> _T:
            with self.engine.connect() as connection:
                if self.is_sqlite:
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                value = change(connection, *args)
                connection.commit()
                return value

        return await self.ask(make, retry_s=retry_s)

    async def ask(self, call: Callable[[*_Args], _T], *args: *_Args, retry_s: float | None = None) -> _T:
        """Call a function in a thread, outside of the context of the caller's run.

        It is called again for at most ``retry_s``, by default `RETRY_S` or less within `brief`, while the
        database cannot be reached. Raises StateError after that.
        """
        if retry_s is None:
            retry_s = _patience_s.get()
        began_at = time.monotonic()
        delay, given_up_at = 0.05, began_at + retry_s
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.run_in_executor(self._threads, Context().run, partial(call, *args))
            except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
                explained = self.explain(error)
                if explained is None:
                    raise
                is_full = isinstance(explained, StorageFullError)
                if is_full:
                    given_up_at = min(given_up_at, began_at + FULL_RETRY_S)
                if self._is_read_only or not _may_pass(error) or time.monotonic() + delay > given_up_at:
                    raise explained from error
            await asyncio.sleep(delay)
            delay = min(2 * delay, 1.0)

    def explain(self, error: Exception) -> StateError | None:
        """The meaning of an error for the database, with the remedy; None for an unrelated error."""
        if not isinstance(error, sa.exc.DBAPIError | sa.exc.TimeoutError):
            return None
        cause = getattr(error, "orig", None)
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if (
            self._file is not None
            and isinstance(cause, sqlite3.Error)
            and is_for_want_of_room(cause, self._file.path.parent)
        ):
            return StorageFullError(str(self._file.path))
        if self._file is not None and code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._file.damaged(_first_line(error))
        if self._file is not None and code == sqlite3.SQLITE_READONLY:
            return StateError(
                f"{self._file.path} can only be read", remedy="use a copy in a folder that can be written"
            )
        if self._file is not None and code == sqlite3.SQLITE_BUSY:
            problem = f"another process holds the lock of {self._file.path}"
            return StateError(
                f"the database of the runs does not answer: {problem}",
                remedy="continue or end that process; a stopped one has state T in: ps -ax -o pid,stat,args",
            )
        if not _may_pass(error):
            return None
        return StateError(
            f"the database of the runs does not answer: {_first_line(error)}",
            remedy=f"check {self._shown_url}",
        )

    def count_up(self, connection: sa.Connection) -> Mark | None:
        """Count in the database, in a transaction of the caller; gives what `remember` keeps."""
        if self._file is None:
            return None
        row = connection.exec_driver_sql(
            f"UPDATE {MARK_TABLE} SET count = count + 1 RETURNING id, count"  # noqa: S608
        ).one()
        return Mark(row[0], row[1])

    async def remember(self, mark: Mark | None) -> None:
        """Store the count in a file next to the database; a full disk keeps the older count."""
        if self._file is None or mark is None:
            return
        try:
            await self.ask(self._file.write_mark, mark)
        except StateError as error:
            _log.warning("mark of the runs not kept", error=error.message)

    @property
    def secret_url(self) -> str:
        """The url with the password."""
        return self.url.render_as_string(hide_password=False)

    @property
    def _shown_url(self) -> str:
        """The url as it was given, without the password."""
        return self.url.set(drivername=self.url.get_backend_name()).render_as_string()

    def clock(self) -> dict[str, Any]:
        """The parameters of ``self.now``: SQLite is used by one machine only, so its clock serves."""
        return {"now": time.time()} if self.is_sqlite else {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.client.close()
        self.engine.dispose()

    def _migrate(self) -> None:
        if self.is_sqlite:
            path = Path(str(self.url.database))
            # Neither the lock nor the database may create a state folder that was removed.
            refuse_gone(path.parent)
            assert self._file is not None
            if self._is_read_only:
                self._tables.check()
                return
            with hold_lock(Path(f"{path}.lock"), mode=file_mode(path.parent), within_s=_MIGRATE_S):
                self._file.check()
                create_database(path)
                self._make_tables()
                self._keep_mark(self._make_mark())
        else:
            self._make_tables()

    def _keep_mark(self, mark: Mark) -> None:
        assert self._file is not None
        if self._file.read_mark() != mark:
            try:
                self._file.write_mark(mark)
            except StorageFullError as error:
                # What is there can be read all the same; what is started is refused where it is stored.
                _log.warning("mark of the runs not kept", error=error.message)

    def _make_mark(self) -> Mark:
        """The mark of this database, created once."""
        with self.engine.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE TABLE IF NOT EXISTS {MARK_TABLE} (id TEXT NOT NULL, count BIGINT NOT NULL)"
            )
            find = f"SELECT id, count FROM {MARK_TABLE}"  # noqa: S608
            row = connection.exec_driver_sql(find).first()
            if row is not None:
                return Mark(row[0], row[1])
            mark = new_mark()
            insert = f"INSERT INTO {MARK_TABLE} (id, count) VALUES (?, ?)"  # noqa: S608
            connection.exec_driver_sql(insert, (mark.id, mark.count))
            return mark

    def _make_tables(self) -> None:
        with self.engine.connect():
            # Sets the journal mode of a new SQLite file, with which migrations are faster.
            pass
        # Before the engine changes anything.
        self._tables.check()
        migrate(self.secret_url)
        self._tables.update()


def redirect_log() -> None:
    """Write the engine's log lines to our log, and nowhere else."""
    log = logging.getLogger("dbos")
    if not any(isinstance(handler, _Redirected) for handler in log.handlers):
        log.handlers = [_Redirected()]
        log.propagate = False


class _Redirected(logging.Handler):
    """The engine's log lines at level debug: it reports cancelled and failed runs as errors.

    It reports a database that is away each time it looks for it; one warning in a while is enough.
    """

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if "atabase" in line and time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + QUIET_S
            _log.warning("engine", message=line.split("\n")[0])
        else:
            _log.debug("engine", message=line)


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
    """Connect; reword failures so that the engine recognises them as temporary and tries again."""
    try:
        connection = dialect.connect(*arguments, **options)
    except psycopg.OperationalError as error:
        if str(error).startswith(_LOST):
            raise
        raise psycopg.OperationalError(f"{_LOST}: {error}") from error
    try:
        check_encoding(connection.info.parameter_status("server_encoding"))
    except InvalidSettingError:
        connection.close()
        raise
    return connection


def _tune_postgres(connection: Any, _record: Any) -> None:
    """Let the server end sessions that are idle in a transaction, such as that of a frozen node."""
    connection.execute(f"SET idle_in_transaction_session_timeout = {round(IDLE_S * 1000)}")
    if connection.info.server_version >= LIMITS_TRANSACTIONS * 10_000:
        connection.execute(f"SET transaction_timeout = {round(TRANSACTION_S * 1000)}")
    connection.commit()


def _execute_each(cursor: Any, statement: str, rows: Any, _context: Any) -> bool:
    """Execute a statement for each row by itself; tells the caller that it is done.

    The driver would send all rows in a pipeline. A session whose client is frozen within a pipeline is not
    idle for the server, so it would keep its locks for as long as the client is frozen.
    """
    for row in rows:
        cursor.execute(statement, row)
    return True


def _may_pass(error: sa.exc.DBAPIError | sa.exc.TimeoutError) -> bool:
    """Whether an error is temporary and nothing was done, so that the call can be repeated."""
    if isinstance(error, sa.exc.TimeoutError | sa.exc.OperationalError | sa.exc.InterfaceError):
        return True
    return error.connection_invalidated


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip().split("\n")[0]
