"""The one DBOS of this process: launched inside the running loop, with its runs as one workflow.

What a run does is given with `launch`; identity, checkpoints and ownership of runs are the engine's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar
from typing import Any

from dbos import DBOS, DBOSPortableJSONSerializer, SetWorkflowID
from dbos import error as dbos_errors
from dbos._context import get_local_dbos_context

from retinue.core.errors import StateError
from retinue.drivers.durable.database import APPLICATION, VERSION, RunDatabase
from retinue.drivers.durable.leases import queue_of

RUN = "retinue.run"
"""The engine's name of what executes every run; the name of a child's start in its parent's journal."""

MAX_RECOVERIES = 1_000
"""How often a run is taken up again before it counts as what kills its nodes."""

SQLITE_CONNECTIONS = 2
POSTGRES_CONNECTIONS = 10

Execute = Callable[[dict[str, Any], str | None], Awaitable[Any]]

_execute: Execute | None = None
_started_here: ContextVar[str | None] = ContextVar("_started_here", default=None)


@DBOS.workflow(name=RUN, max_recovery_attempts=MAX_RECOVERIES)
async def _run(request: dict[str, Any], root: str | None, started_at: float) -> Any:
    assert _execute is not None, "the engine is closed"
    return await _execute(request, root)


class Engine:
    """The launched engine; made by `launch`, one in a process."""

    def __init__(self, database: RunDatabase, executor: str) -> None:
        self.queue = queue_of(executor)
        connections = SQLITE_CONNECTIONS if database.is_sqlite else POSTGRES_CONNECTIONS
        self._connections = database.open_engine(connections, tested=False)

    @classmethod
    async def launch(cls, database: RunDatabase, executor: str, execute: Execute, *, poll_s: float) -> Engine:
        """Begin to run what belongs to this node, old and new; the database is prepared.

        Raises StateError where this process has launched it already.
        """
        global _execute  # the engine finds what it executes by name, in one registry
        if _execute is not None:
            raise StateError("this process runs workflows already", remedy="close the other runs first")
        _execute = execute
        engine = cls(database, executor)
        DBOS(
            config={
                "name": APPLICATION,
                "system_database_url": database.url.render_as_string(hide_password=False),
                "system_database_engine": engine._connections,
                "application_version": VERSION,
                "executor_id": executor,
                "serializer": DBOSPortableJSONSerializer(),
                "log_level": "WARNING",
                "enable_otlp": False,
                # Nothing here listens; closing waits for so long.
                "notification_listener_polling_interval_sec": 0.1,
            }
        )
        try:
            # Known before the launch, or the engine would find it a second later.
            client = database.client
            await database.ask(
                lambda: client.register_queue(
                    engine.queue, polling_interval_sec=poll_s, on_conflict="always_update"
                )
            )
            DBOS.listen_queues([engine.queue])
            # On the loop's own thread: what is taken from a queue must run on this loop too.
            DBOS.launch()
        except Exception as error:
            await engine.close()
            problem = str(error).split("\n")[0]
            raise StateError(f"workflows cannot be run: {problem}", remedy="check the database") from error
        return engine

    async def start(self, run_id: str, request: dict[str, Any], root: str | None) -> None:
        """Start a run here, outside of any other; one with this id that exists stays what it is."""
        starting = asyncio.create_task(self.start_below(run_id, request, root), context=Context())
        await asyncio.shield(starting)

    async def start_below(self, run_id: str, request: dict[str, Any], root: str | None) -> str:
        """Start a run, inside of a run as its child; gives the id, on replay the recorded one."""
        token = _started_here.set(run_id)
        try:
            with SetWorkflowID(run_id):
                handle = await DBOS.start_workflow_async(_run, request, root, time.time())
        finally:
            _started_here.reset(token)
        return handle.workflow_id

    async def close(self) -> None:
        """Stop; what still runs goes on where it is taken up next."""
        global _execute
        await asyncio.to_thread(DBOS.destroy)
        self._connections.dispose()
        # It had put its own threads under the loop's, and they are gone.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        _execute = None


def is_first_execution(run_id: str) -> bool:
    """Whether this code is part of the execution that a run was started with, not of a later one."""
    return _started_here.get() == run_id


def current_owner() -> str | None:
    """The token of the execution that this code is part of; it stands in the run's row while it owns it."""
    context = get_local_dbos_context()
    return None if context is None else context.owner_xid


def describe_mismatch(error: dbos_errors.DBOSUnexpectedStepError) -> tuple[str, str]:
    """The names of the call that was asked for on replay, and of the one that was recorded."""
    _, _, asked, recorded = error.inputs
    return str(asked), str(recorded)
