"""The only module that knows DBOS: its API, its private names, the columns of its tables.

The rest of the package works with the classes of this module. `EngineClient` reads and changes the stored
runs from any process; `Engine` executes runs, once per process; `run_step` records one call of a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
import sqlalchemy as sa
from dbos import (
    DBOS,
    DBOSClient,
    DBOSPortableJSONSerializer,
    PortableWorkflowError,
    SetWorkflowID,
    WorkflowStatus,
    _dbos,
)
from dbos import error as dbos_errors
from dbos._context import get_local_dbos_context
from dbos._core import WorkflowHandleAsyncTask
from dbos._dbos import StepReservation
from dbos._serialization import DBOSPortableJSON, deserialize_exception, deserialize_value
from dbos._sys_db import OperationResultInternal, WorkflowStatusString

from retinue.core.errors import StateError
from retinue.workflows.durable.recorded_calls import PATCHED, EngineCall, RecordedCalls
from retinue.workflows.runs.records import RunStatus

APPLICATION = "retinue"
VERSION = "engine-1"
"""The form of the journal: it changes when stored runs cannot be replayed any more, not with releases."""

RUN = "retinue.run"
"""The engine's name of the function that executes every run; also that of a child's start in a journal."""

MAX_RECOVERIES = 1_000
"""How often a run is taken over before it is given up as the cause of its nodes' crashes."""

QUEUE_PREFIX = "node:"
"""Each node takes runs from a queue of its own, so that runs can be assigned to a node."""

LOST_BATCH = 2_000
"""The number of lost runs that one statement reassigns."""

STATUSES: Mapping[RunStatus, tuple[str, ...]] = {
    "running": ("PENDING", "ENQUEUED", "DELAYED"),
    "done": ("SUCCESS",),
    "failed": ("ERROR", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"),
    "cancelled": ("CANCELLED",),
}
STATUS_OF = {row: status for status, rows in STATUSES.items() for row in rows}
_IDS_PER_STATEMENT = 4_000

StoredRun = WorkflowStatus
"""A row of the engine's table of runs, with its input, and its output or error."""

StoredFailure = PortableWorkflowError
"""The exception that ends a run as failed; stored with its ``code`` and ``data``."""

EngineError = dbos_errors.DBOSException
"""Any failure that the engine itself reports."""

TakenOverError = dbos_errors.DBOSWorkflowConflictIDError
"""Ends an execution whose run belongs to another one (`taken_over`)."""

Reservation = StepReservation
"""The number of a call that was taken before the call is made."""


class RunLetGoError(BaseException):
    """The database did not answer: this execution stops, and the run is taken up again later.

    A BaseException, so that neither a body nor the engine's journal takes it for an outcome.
    """


class RunPassedOnError(RunLetGoError):
    """This node cannot execute the run: it is queued at the node ``executor``."""

    def __init__(self, executor: str) -> None:
        super().__init__(f"passed on to {executor}")
        self.executor = executor


class ReplayError(Exception):
    """A body asked for another call than the recorded one, whose name is ``recorded`` where it is known."""

    def __init__(self, problem: str, recorded: str | None = None) -> None:
        super().__init__(problem)
        self.recorded = recorded


class EngineClient:
    """Stored runs, read and changed without executing any. All methods block: call them in a thread."""

    def __init__(self, connections: sa.Engine) -> None:
        schema = "" if connections.dialect.name == "sqlite" else "dbos."
        self._table = f"{schema}workflow_status"
        self._calls_table = f"{schema}operation_outputs"
        # a frozen node may hold the row of one run, which must not keep all other lost runs waiting
        self._locking = "" if connections.dialect.name == "sqlite" else "FOR NO KEY UPDATE SKIP LOCKED"
        self._connections = connections
        self._serializer = DBOSPortableJSONSerializer()
        self._client = DBOSClient(
            system_database_engine=connections,
            serializer=self._serializer,
            application_name=APPLICATION,
            lazy=True,
            retry_connection_errors=False,
        )

    def close(self) -> None:
        self._client.destroy()

    def find(self, ids: Sequence[str]) -> list[StoredRun]:
        """The existing runs among these."""
        return self._client.list_workflows(workflow_ids=list(ids))

    def list_page(self, status: RunStatus | None, children: bool, limit: int, offset: int) -> list[StoredRun]:
        """One page of all runs, newest first."""
        return self._client.list_workflows(
            status=None if status is None else list(STATUSES[status]),
            has_parent=None if children else False,
            sort_desc=True,
            limit=limit,
            offset=offset,
        )

    def list_ended(
        self, connection: sa.Connection, before: float, keep: int, limit: int
    ) -> list[tuple[str, float]]:
        """Ended outermost runs that ended before a time or are not among the newest ``keep``, oldest first.

        With the time of the end, in seconds since 1970.
        """
        rows = [row for row, status in STATUS_OF.items() if status != "running"]
        ended = (
            f"SELECT workflow_uuid AS id, coalesce(completed_at, created_at) AS at FROM {self._table} "  # noqa: S608
            "WHERE parent_workflow_id IS NULL AND status IN :rows"
        )
        numbered = f"SELECT id, at, row_number() OVER (ORDER BY at DESC, id) AS place FROM ({ended}) AS ended"  # noqa: S608
        query = sa.text(
            f"SELECT id, at FROM ({numbered}) AS numbered WHERE at < :before OR place > :keep "  # noqa: S608
            "ORDER BY at, id LIMIT :limit"
        ).bindparams(sa.bindparam("rows", expanding=True))
        parameters = {"rows": rows, "before": before * 1000, "keep": keep, "limit": limit}
        return [(row.id, row.at / 1000) for row in connection.execute(query, parameters)]

    def list_faults(self, connection: sa.Connection, word: str) -> list[tuple[str, StoredFailure]]:
        """The failures of outermost runs whose stored form holds a word, with the ids of the runs."""
        outputs = f"{self._table.removesuffix('workflow_status')}workflow_output"
        query = sa.text(
            "SELECT runs.workflow_uuid AS id, coalesce(ends.error, runs.error) AS error, serialization "  # noqa: S608
            f"FROM {self._table} AS runs "
            f"LEFT JOIN {outputs} AS ends ON ends.workflow_uuid = runs.workflow_uuid "
            "WHERE runs.status = 'ERROR' AND runs.parent_workflow_id IS NULL "
            "AND coalesce(ends.error, runs.error) LIKE :pattern"
        )
        failures = (
            (row.id, deserialize_exception(row.error, row.serialization, self._serializer))
            for row in connection.execute(query, {"pattern": f"%{word}%"})
        )
        return [(run_id, failure) for run_id, failure in failures if isinstance(failure, StoredFailure)]

    def count_by_status(self, connection: sa.Connection) -> dict[RunStatus, int]:
        """How many outermost runs are stored, by status."""
        query = f"SELECT status, count(*) FROM {self._table} WHERE parent_workflow_id IS NULL GROUP BY status"  # noqa: S608
        counts = dict.fromkeys(STATUSES, 0)
        for row, count in connection.execute(sa.text(query)):
            if (status := STATUS_OF.get(row)) is not None:
                counts[status] += int(count)
        return counts

    def list_calls(self, run_id: str, outputs: bool) -> list[EngineCall]:
        """The recorded calls of a run, in order."""
        return [
            EngineCall(
                step["function_id"], step["function_name"], step["child_workflow_id"], step.get("output")
            )
            for step in self._client.list_workflow_steps(run_id, load_output=outputs)
        ]

    def list_recorded(self, run_id: str, after: int, limit: int) -> list[EngineCall]:
        """The recorded calls of a run with numbers above ``after``, in order; at most ``limit``.

        Without those that the engine recorded as an error, which it raises itself.
        """
        statement = sa.text(
            "SELECT function_id, function_name, child_workflow_id, output, serialization, "  # noqa: S608
            f"error IS NOT NULL AS is_error FROM {self._calls_table} "
            "WHERE workflow_uuid = :run_id AND function_id > :after ORDER BY function_id LIMIT :limit"
        )
        parameters = {"run_id": run_id, "after": after, "limit": limit}
        with self._connections.connect() as connection:
            rows = connection.execute(statement, parameters).fetchall()
        return [
            EngineCall(
                number,
                name,
                child_id,
                deserialize_value(output, form, self._serializer),
                is_error=bool(error),
            )
            for number, name, child_id, output, form, error in rows
        ]

    def list_calls_of(self, ids: Sequence[str]) -> dict[str, list[EngineCall]]:
        """As `list_calls` for many runs at once, with outputs. The engine itself asks for each run alone."""
        statement = sa.text(
            "SELECT workflow_uuid, function_id, function_name, child_workflow_id, output, serialization "  # noqa: S608
            f"FROM {self._calls_table} WHERE workflow_uuid IN :ids ORDER BY workflow_uuid, function_id"
        ).bindparams(sa.bindparam("ids", expanding=True))
        calls: dict[str, list[EngineCall]] = {run_id: [] for run_id in ids}
        with self._connections.connect() as connection:
            for start in range(0, len(ids), _IDS_PER_STATEMENT):
                part = {"ids": list(ids[start : start + _IDS_PER_STATEMENT])}
                for run_id, number, name, child_id, output, form in connection.execute(statement, part):
                    value = deserialize_value(output, form, self._serializer)
                    calls[run_id].append(EngineCall(number, name, child_id, value))
        return calls

    def enqueue(self, run_id: str, args: Sequence[Any], executor: str) -> None:
        """Queue a new run at a node; one that exists stays as it is."""
        options: Any = {
            "workflow_name": RUN,
            "queue_name": queue_of(executor),
            "workflow_id": run_id,
            "app_version": VERSION,
        }
        self._client.enqueue(options, *args)

    def fork(self, run_id: str, first: int, new_run_id: str, executor: str) -> bool:
        """Queue a copy of a run that keeps the calls before number ``first``; False where its id is taken."""
        try:
            with SetWorkflowID(new_run_id):
                self._client.fork_workflow(
                    run_id, first, application_version=VERSION, queue_name=queue_of(executor)
                )
        except sa.exc.IntegrityError:
            return False
        return True

    def resume(self, ids: Sequence[str], executor: str) -> None:
        """Queue cancelled runs at a node."""
        self._client.resume_workflows(list(ids), queue_name=queue_of(executor))

    def reopen(self, connection: sa.Connection, run_id: str, executor: str) -> bool:
        """Queue a failed run at a node, to continue behind its last recorded call; False for others.

        The engine itself resumes no failed runs.
        """
        statement = sa.text(
            f"UPDATE {self._table} SET status = 'ENQUEUED', owner_xid = NULL, error = NULL, "  # noqa: S608
            "started_at_epoch_ms = NULL, completed_at = NULL, recovery_attempts = 0, queue_name = :queue "
            "WHERE workflow_uuid = :run_id AND status = 'ERROR'"
        )
        parameters = {"queue": queue_of(executor), "run_id": run_id}
        return connection.execute(statement, parameters).rowcount == 1

    def give_up(self, connection: sa.Connection, run_id: str) -> bool:
        """Mark a failed run as cancelled; False for others."""
        statement = sa.text(
            f"UPDATE {self._table} SET status = 'CANCELLED' "  # noqa: S608
            "WHERE workflow_uuid = :run_id AND status = 'ERROR'"
        )
        return connection.execute(statement, {"run_id": run_id}).rowcount == 1

    def cancel(self, ids: Sequence[str]) -> None:
        """Mark runs and all below them as cancelled."""
        self._client.cancel_workflows(list(ids), cancel_children=True)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete runs and all below them."""
        self._client.delete_workflows(list(ids), delete_children=True)

    def register_queue(self, executor: str, poll_s: float) -> None:
        self._client.register_queue(
            queue_of(executor), polling_interval_sec=poll_s, on_conflict="always_update"
        )

    def list_cancelled(self, connection: sa.Connection, ids: Sequence[str]) -> frozenset[str]:
        """The cancelled runs among these; cheap enough for frequent calls with many ids."""
        query = sa.text(
            f"SELECT workflow_uuid FROM {self._table} "  # noqa: S608
            "WHERE status = 'CANCELLED' AND workflow_uuid IN :ids"
        ).bindparams(sa.bindparam("ids", expanding=True))
        names: set[str] = set()
        for start in range(0, len(ids), _IDS_PER_STATEMENT):
            some = {"ids": ids[start : start + _IDS_PER_STATEMENT]}
            names.update(connection.execute(query, some).scalars())
        return frozenset(names)

    def list_going_on(self, connection: sa.Connection, ids: Sequence[str]) -> dict[str, bool]:
        """Whether each stored run among these goes on."""
        query = sa.text(
            f"SELECT workflow_uuid AS id, status FROM {self._table} WHERE workflow_uuid IN :ids"  # noqa: S608
        ).bindparams(sa.bindparam("ids", expanding=True))
        rows = connection.execute(query, {"ids": list(ids)})
        return {row.id: STATUS_OF.get(row.status) == "running" for row in rows}

    def find_owner(self, connection: sa.Connection, run_id: str) -> str | None:
        """The token of the execution that a run belongs to."""
        query = sa.text(f"SELECT owner_xid FROM {self._table} WHERE workflow_uuid = :run_id")  # noqa: S608
        owner: str | None = connection.execute(query, {"run_id": run_id}).scalar()
        return owner

    def measure(self, connection: sa.Connection, root: str, events: str) -> int:
        """The bytes that a run and all below it have stored, here and in the table of ``events``."""
        below = f"SELECT run_id FROM {events} WHERE root = :root"  # noqa: S608
        runs = f"workflow_uuid = :root OR workflow_uuid IN ({below})"
        prefix = self._table.removesuffix("workflow_status")
        total = 0
        for table, columns, condition in (
            (f"{prefix}workflow_input", ("inputs",), runs),
            (f"{prefix}workflow_output", ("output", "error"), runs),
            (f"{prefix}operation_outputs", ("output", "error"), runs),
            (events, ("facts",), "root = :root"),
        ):
            size = " + ".join(f"coalesce(length({column}), 0)" for column in columns)
            query = f"SELECT coalesce(sum({size}), 0) FROM {table} WHERE {condition}"  # noqa: S608
            total += int(connection.execute(sa.text(query), {"root": root}).scalar() or 0)
        return total

    def requeue(self, connection: sa.Connection, run_id: str, owner: str | None, executor: str) -> None:
        """Queue a run at a node, if it still belongs to this execution, which did not crash in it."""
        condition = "workflow_uuid = :run_id AND status = 'PENDING' AND owner_xid = :owner"
        statement = self._requeue(condition, "recovery_attempts = 0, ")
        connection.execute(statement, {"queue": queue_of(executor), "run_id": run_id, "owner": owner})

    def list_lost(
        self, connection: sa.Connection, living: str, names: Mapping[str, Any], only: Sequence[str] | None
    ) -> list[str]:
        """Runs executed by or queued at nodes that are not ``living``; with ``only``, at these nodes.

        ``living`` is a query for the executors of the living nodes, ``names`` its parameters. The rows are
        locked; a row that another transaction has locked is left out.
        """
        rows = connection.execute(
            sa.text(
                "SELECT workflow_uuid, coalesce(executor_id, '') AS executor, queue_name AS queue "  # noqa: S608
                f"FROM {self._table} WHERE {_lost(living)} LIMIT {LOST_BATCH} {self._locking}"
            ),
            {**names, "journal": VERSION},
        )
        queues = {queue_of(executor) for executor in only or ()}
        return [
            row.workflow_uuid for row in rows if only is None or row.executor in only or row.queue in queues
        ]

    def requeue_lost(
        self,
        connection: sa.Connection,
        living: str,
        names: Mapping[str, Any],
        runs: Sequence[str],
        executor: str,
    ) -> int:
        """Queue these runs at a node, those that are still lost; returns how many."""
        statement = self._requeue(f"workflow_uuid IN :runs AND {_lost(living)}")
        parameters = {**names, "journal": VERSION, "queue": queue_of(executor), "runs": runs}
        return connection.execute(
            statement.bindparams(sa.bindparam("runs", expanding=True)), parameters
        ).rowcount

    def _requeue(self, condition: str, change: str = "") -> sa.TextClause:
        return sa.text(
            f"UPDATE {self._table} SET {change}status = 'ENQUEUED', owner_xid = NULL, "  # noqa: S608
            f"started_at_epoch_ms = NULL, queue_name = :queue WHERE {condition}"
        )


@dataclass(frozen=True, slots=True)
class Invocation:
    """One execution that the engine begins, with what the run was started with.

    ``owner`` is its token, which the run's row holds for as long as the run belongs to it.
    """

    run_id: str
    owner: str | None
    args: Sequence[Any]


@dataclass(frozen=True, slots=True)
class EngineStart:
    """A run that was started, or exists; ``task`` is its execution here, None where it has none."""

    run_id: str
    task: asyncio.Future[Any] | None


Execute = Callable[[Invocation], Awaitable[Any]]
"""Executes a run; returns its output, or raises a `StoredFailure` or one of this module's errors."""


class Engine:
    """The launched engine, one in a process; made by `launch`."""

    def __init__(self, connections: sa.Engine, run: Callable[..., Any]) -> None:
        self._connections = connections
        self._run = run

    @classmethod
    async def launch(cls, connections: sa.Engine, url: str, executor: str, execute: Execute) -> Engine:
        """Execute the runs that belong to this node, old and new.

        The database is prepared and the node's queue registered. ``connections`` are closed with the engine.
        Raises StateError where this process has launched the engine already.
        """
        if _dbos._dbos_global_instance is not None:
            raise StateError("this process runs workflows already", remedy="close the other runs first")

        async def run(*args: Any) -> Any:
            context = get_local_dbos_context()
            assert context is not None
            return await execute(Invocation(context.workflow_id, context.owner_xid, args))

        DBOS(
            config={
                "name": APPLICATION,
                "system_database_url": url,
                "system_database_engine": connections,
                "application_version": VERSION,
                "executor_id": executor,
                "serializer": DBOSPortableJSONSerializer(),
                "log_level": "WARNING",
                "enable_otlp": False,
                # Nothing listens for notifications; closing waits for this long.
                "notification_listener_polling_interval_sec": 0.1,
            }
        )
        engine = cls(connections, DBOS.workflow(name=RUN, max_recovery_attempts=MAX_RECOVERIES)(run))
        try:
            DBOS.listen_queues([queue_of(executor)])
            await _launch()
        except Exception as error:
            await engine.close()
            problem = str(error).split("\n")[0]
            raise StateError(f"workflows cannot be run: {problem}", remedy="check the database") from error
        return engine

    async def start(self, run_id: str, args: Sequence[Any]) -> EngineStart:
        """Start a run here; one with this id that exists stays as it is."""
        with SetWorkflowID(run_id):
            handle = await DBOS.start_workflow_async(self._run, *args)
        task = handle.task if isinstance(handle, WorkflowHandleAsyncTask) else None
        return EngineStart(handle.workflow_id, task)

    async def start_child(self, run_id: str, args: Sequence[Any]) -> EngineStart:
        """Start a run as a child of the one this code is part of; on replay, gives the recorded id.

        Raises RunLetGoError and ReplayError, as `run_step`.
        """
        try:
            return await self.start(run_id, args)
        except sa.exc.SQLAlchemyError as error:
            raise RunLetGoError(str(error)) from error
        except dbos_errors.DBOSUnexpectedStepError as error:
            raise _to_replay_error(error) from None

    async def close(self) -> None:
        """Stop; runs that go on are taken up where another engine is launched."""
        await asyncio.to_thread(DBOS.destroy, destroy_registry=True)
        self._connections.dispose()
        # DBOS replaced the loop's default executor and has shut its own down.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


async def _launch() -> None:
    """Launch DBOS in a thread, because it waits there for its database, without limit.

    The thread does not keep the process from ending. A launch that is not awaited any more is undone.
    """
    loop = asyncio.get_running_loop()
    launched: asyncio.Future[None] = loop.create_future()
    # runs that are taken from a queue must be executed by this loop, not by one of DBOS
    _dbos._get_dbos_instance()._background_event_loop.set_main_loop()

    def settle(error: Exception | None) -> None:
        if launched.cancelled():
            threading.Thread(target=DBOS.destroy, kwargs={"destroy_registry": True}, daemon=True).start()
        elif error is None:
            launched.set_result(None)
        else:
            launched.set_exception(error)

    def launch() -> None:
        error: Exception | None = None
        try:
            DBOS.launch()
        except Exception as problem:  # noqa: BLE001 - raised where the launch is awaited
            error = problem
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the process with it
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=launch, name="launch of DBOS", daemon=True).start()
    await launched


def reserve_step() -> Reservation:
    """Take the next number in the journal of the run that this code is part of, for a later `run_step`."""
    return DBOS.reserve_step()


async def pass_patches(recorded: RecordedCalls | None) -> None:
    """Pass the records of changes at this place of the run, which the code need not ask for any more.

    It comes before each other durable call. Raises RunLetGoError.
    """
    if recorded is not None:
        for _ in await _list_patches(recorded):
            await recorded.take(DBOS.reserve_step().step_id)


async def take_patch(patch: str, recorded: RecordedCalls | None) -> bool:
    """Whether the run has a change at this place; a run without a further record gets it, and records it.

    Raises RunLetGoError and ReplayError, as `run_step`.
    """
    name = f"{PATCHED} {patch}"
    if recorded is not None:
        names = await _list_patches(recorded)
        if name in names:
            return True
        # a call without a record may come before further ones, where some were made together
        if await recorded.has_more(_next_number() + len(names)):
            return False

    async def give() -> bool:
        return True

    return bool(await run_step(name, give, None, recorded))


async def _list_patches(recorded: RecordedCalls) -> list[str]:
    try:
        return await recorded.list_patches(_next_number())
    except StateError as error:
        raise RunLetGoError(error.message) from error


def _next_number() -> int:
    context = get_local_dbos_context()
    assert context is not None
    return int(context.function_id) + 1


async def take_child(recorded: RecordedCalls) -> str | None:
    """The id of the child run that the next call of this run started, as ``recorded``; None for no record.

    Raises RunLetGoError and ReplayError, as `run_step`.
    """
    await pass_patches(recorded)
    call = await _take(recorded, _next_number(), RUN)
    if call is None or call.is_error or call.child_id is None:
        return None
    DBOS.reserve_step()  # the number of the call
    return call.child_id


async def _take(recorded: RecordedCalls, number: int, name: str) -> EngineCall | None:
    try:
        call = await recorded.take(number)
    except StateError as error:
        raise RunLetGoError(error.message) from error
    if call is not None and not call.is_error and call.name != name:
        raise ReplayError(f"call {number} is {name}, and {call.name} was recorded", call.name)
    return call


async def run_step(
    name: str,
    act: Callable[[], Awaitable[Any]],
    reserved: Reservation | None = None,
    recorded: RecordedCalls | None = None,
) -> Any:
    """Do one call of the run that this code is part of, or give its recorded value on replay.

    The call has the number that was ``reserved`` for it, else the next one. ``recorded`` are the calls of a
    run that is taken up. The engine is not asked for a call that is not among them: whether the run still
    belongs to this execution is checked in the transaction that records the outcome.

    Raises RunLetGoError where the database does not answer, ReplayError where another call was recorded.
    """
    if reserved is None:
        await pass_patches(recorded)
        reserved = DBOS.reserve_step()
    call = None if recorded is None else await _take(recorded, reserved.step_id, name)
    if call is not None and not call.is_error:
        return call.output
    began_at = time.time()
    try:
        if call is not None:
            return await _run_by_engine(name, act, reserved)  # it raises the recorded error
        try:
            output = await act()
            text = orjson.dumps(output).decode()
        except StateError as error:
            raise RunLetGoError(error.message) from error
        except Exception as error:  # noqa: BLE001 - the engine records it, and raises it again
            return await _run_by_engine(name, partial(_raise, error), reserved)
        await _record(name, text, reserved.step_id, began_at)
        return output
    except sa.exc.SQLAlchemyError as error:
        raise RunLetGoError(str(error)) from error
    except dbos_errors.DBOSUnexpectedStepError as error:
        raise _to_replay_error(error) from None
    except dbos_errors.DBOSStepNondeterminismError as error:
        raise ReplayError(str(error)) from None


async def _run_by_engine(name: str, act: Callable[[], Awaitable[Any]], reserved: Reservation) -> Any:
    async def do() -> Any:
        return await act()

    return await reserved.run_async({"name": name}, do)


async def _raise(error: Exception) -> None:
    raise error


async def _record(name: str, output: str, number: int, began_at: float) -> None:
    """Record the outcome of a call, as the engine does at the end of its own steps.

    Raises TakenOverError unless the run still belongs to this execution, and what `cancelled` gives where it
    was cancelled.
    """
    context = get_local_dbos_context()
    assert context is not None
    run_id, stored_runs = context.workflow_id, _dbos._get_dbos_instance()._sys_db
    result: OperationResultInternal = {
        "workflow_uuid": run_id,
        "function_id": number,
        "function_name": name,
        "output": output,
        "error": None,
        "serialization": DBOSPortableJSON.name(),
        "started_at_epoch_ms": int(began_at * 1000),
        "child_workflow_id": None,
    }
    record = partial(stored_runs.record_operation_result, result, owner_xid=context.owner_xid)
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(None, record)
    except TakenOverError:
        row = await loop.run_in_executor(None, stored_runs.get_workflow_status, run_id)
        if row is not None and row["status"] == WorkflowStatusString.CANCELLED.value:
            raise cancelled(run_id) from None
        raise


def queue_of(executor: str) -> str:
    """The queue of a node."""
    return f"{QUEUE_PREFIX}{executor}"


def cancelled(run_id: str) -> BaseException:
    """The exception that ends an execution whose run was cancelled."""
    return dbos_errors.DBOSWorkflowCancelledError(f"run {run_id} was cancelled")


def taken_over(run_id: str) -> BaseException:
    """The exception that ends an execution whose run belongs to another one."""
    return TakenOverError(run_id)


def migrate(url: str) -> None:
    """Create the engine's tables, or bring them to their present form."""
    DBOS.migrate(url)


def _lost(living: str) -> str:
    """The condition for runs of this version at nodes that are not living."""
    return (
        f"application_version = :journal AND ((status = 'PENDING' AND executor_id NOT IN ({living})) "
        f"OR (status = 'ENQUEUED' AND queue_name LIKE '{QUEUE_PREFIX}%' "
        f"AND substr(queue_name, {len(QUEUE_PREFIX) + 1}) NOT IN ({living})))"
    )


def _to_replay_error(error: dbos_errors.DBOSUnexpectedStepError) -> ReplayError:
    _, _, _, recorded = error.inputs
    return ReplayError(str(error), str(recorded))
