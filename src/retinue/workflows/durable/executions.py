"""Executes runs in this process: drives the body, handles cancellation and records the result."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

import sqlalchemy as sa
import structlog

from retinue.core.errors import RetinueError, StateError
from retinue.core.json_values import copy_json
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.dbos_engine import (
    Engine,
    EngineStart,
    Invocation,
    RunLetGoError,
    RunPassedOnError,
    TakenOverError,
    cancelled,
)
from retinue.workflows.durable.events import EmittedEvents, EventSink, EventTable, NewEvent
from retinue.workflows.durable.executions_here import Execution, ExecutionsHere
from retinue.workflows.durable.nodes import Lease
from retinue.workflows.durable.recorded_calls import RecordedCalls
from retinue.workflows.durable.run_context import DurableContext
from retinue.workflows.durable.run_rows import (
    RunRow,
    RunRows,
    find_root,
    refer_to_calls,
    started_record,
    stored_args,
    stored_failure,
    stored_output,
)
from retinue.workflows.durable.shared_reports import SharedReports
from retinue.workflows.durable.tables.held_artifacts import HeldArtifacts
from retinue.workflows.durable.tables.signals import SignalTable
from retinue.workflows.durable.tables.stored_once import SHARED_BYTES, Reference
from retinue.workflows.runs.hosting import RunCode
from retinue.workflows.runs.ports import Body, Mark, WaitMode
from retinue.workflows.runs.records import Extension, Fault, RunRecord, RunRequest, as_json
from retinue.workflows.runs.replay_rules import MAX_RUN_BYTES, RunSize

_log = structlog.get_logger("retinue.runs")

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

AGAIN_S = 5.0
"""How long one attempt takes to queue a run that was let go."""

AGAIN_PAUSE_S = 1.0
"""The pause between two attempts, because while the disk is full, they fail at once."""

SETTLE_S = 2.0
"""How long after its body a run is looked at for its recorded end, which comes within milliseconds."""

AGENT_WAIT_S = 20.0
"""How long a run that was taken up waits for unknown agents: a machine that restarts starts them as
well. Its step waits longer for known agents (``workflows.interpreter.calls``).
"""

UNDO_REQUEST = "/undo"
"""The topic of the signal that asks a failed run to undo its remaining steps. Not one that a step can wait
for.
"""

EXTENSION = "/limits"
"""The topic of the signals that raise the limits of a step. Not one that a step can wait for."""

WATCH_S = 0.5
"""How often the runs here are looked at for cancellation by other processes, all at once."""

FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.5
"""The interval at which runs at other nodes are looked at; it doubles from the first to the last."""


class Executions:
    """Executes runs; the engine is launched with `execute`. A RunServices."""

    def __init__(
        self,
        body: Body,
        database: RunDatabase,
        events: EventTable,
        signals: SignalTable,
        lease: Lease,
        *,
        concurrency: int,
        run_bytes: int = MAX_RUN_BYTES,
        shared: SharedReports | None = None,
    ) -> None:
        self.lease = lease
        self._shared = shared
        self._run_bytes = run_bytes
        self._sizes: dict[str, RunSize] = {}
        self.signals = signals
        self.engine: Engine
        self.here = ExecutionsHere()
        self._body = body
        self._database = database
        self._rows = RunRows(database)
        self._held = HeldArtifacts(database)
        self._events = events
        self._taken_up: dict[str, float] = {}
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._settling: set[asyncio.Task[None]] = set()
        self._closing = False
        self._places = asyncio.Semaphore(concurrency)

    async def start(self, run_id: str, request: RunRequest) -> RunRecord | None:
        """Start a run here; None for an existing run, which stays unchanged.

        Raises StateError if this process gets no lease.
        """
        await self.lease.renew_lost()
        args = stored_args(request, None)

        # Outside of any other run, and to its end: half a start would leave a run without an execution.
        starting = self._start(run_id, args, self.engine.start)
        started = await asyncio.shield(asyncio.create_task(starting, context=Context()))
        return None if started.task is None else started_record(run_id, request, args)

    async def start_child(self, child_id: str, request: RunRequest, root: str) -> str:
        return (await self._start(child_id, stored_args(request, root), self.engine.start_child)).run_id

    async def _start(
        self, run_id: str, args: Sequence[Any], start: Callable[[str, Sequence[Any]], Awaitable[EngineStart]]
    ) -> EngineStart:
        execution = self.here.announce(run_id, args)
        task = None
        try:
            started = await start(run_id, args)
            task = started.task
        finally:
            if task is None:
                self.here.withdraw(execution)
        if task is not None:
            task.add_done_callback(lambda _: self.here.withdraw(execution))
        return started

    async def execute(self, invocation: Invocation) -> dict[str, Any]:
        """Execute a run, from its start or from its journal; gives its stored output.

        Raises the failure of the run, or an error which tells the engine that the run is not this
        execution's any more.
        """
        run_id, (request, root, _) = invocation.run_id, invocation.args
        execution, is_new = self.here.begin(invocation)
        execution.root = find_root(run_id, root)
        if is_new and execution.root == run_id:
            self._sizes[run_id] = RunSize.of(request, self._run_bytes)
        events = EventSink(self._events, run_id, execution.root)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._open(execution, events, request["name"], is_new)
            recorded = None if is_new else self._open_recorded(run_id)
            stored = RunRequest.from_json(request)
            return await self._drive(execution, events, invocation.owner, stored, recorded)
        except RunPassedOnError as error:
            execution.is_released = True
            _log.info("run passed on", run=run_id, node=error.executor)
            self._settle_with(self._take_up_again(run_id, invocation.owner, error.executor))
            raise
        except (RunLetGoError, StateError) as error:
            execution.is_released = True
            _log.warning("run let go", run=run_id, error=str(error))
            self._settle_with(self._take_up_again(run_id, invocation.owner, self.lease.executor))
            raise RunLetGoError(str(error)) from error
        except TakenOverError:
            execution.is_released = True
            raise
        finally:
            self._settle_with(self._settle(execution, events, task))

    async def await_children(self, ids: Sequence[str], given_up: set[str], mode: WaitMode) -> list[RunRecord]:
        """The ends of all of these runs, or of the first.

        Those that were stopped together with this run are resumed, unless it gave them up.
        """
        rows = await self._rows.get_all(ids)
        stopped = [
            run_id for run_id in ids if rows[run_id].record.status == "cancelled" and run_id not in given_up
        ]
        if stopped:
            await self._database.ask(self._database.client.resume, stopped, self.lease.executor)
            rows = await self._rows.get_all(ids)
        look_s = FIRST_LOOK_S
        while True:
            open_ids = [run_id for run_id in ids if not rows[run_id].ended]
            if mode == "first" and len(open_ids) < len(ids):
                ended = [rows[run_id].record for run_id in ids if rows[run_id].ended]
                return [min(ended, key=lambda record: record.finished_at or 0)]
            if not open_ids:
                return [rows[run_id].record for run_id in ids]
            await self.here.await_change(open_ids, look_s, all_of_them=mode == "all")
            look_s = min(2 * look_s, LAST_LOOK_S)
            rows = await self._rows.get_all(ids)

    async def await_end(self, run_id: str) -> RunRecord:
        """A run that has ended; raises UnknownRunError."""
        if (here := self.here.find(run_id)) is not None:
            await here.ended.wait()
            if here.row is not None:
                return here.row.record
        return (await self.await_children([run_id], {run_id}, "all"))[0]

    async def stop(self, ids: Sequence[str]) -> None:
        """Stop runs and their descendants; returns when none of them executes in this process."""
        rows = await self._rows.get_all(ids)
        running = [run_id for run_id in ids if not rows[run_id].ended]
        if running:
            await self._database.ask(self._database.client.cancel, running)
        for execution in self._abort(running):
            await execution.ended.wait()

    async def watch(self) -> None:
        """Cut off what other processes cancel, and note what they watch, for as long as this one lives.

        Not left to the engine, which looks once a second, and only at steps that it may preempt.
        """
        while True:
            await asyncio.sleep(WATCH_S)
            here = self.here.list_all()
            ids = [execution.run_id for execution in here]
            roots = [execution.run_id for execution in here if execution.run_id == execution.root]
            try:
                stopped, watched = await self._database.read(self._look, ids, roots)
            except (StateError, sa.exc.SQLAlchemyError) as error:
                _log.warning("runs that are cancelled elsewhere go on for now", error=str(error))
                continue
            # Not one that began during the query: its run may have been resumed.
            gone = [
                execution.run_id
                for execution in here
                if execution.run_id in stopped and self.here.find(execution.run_id) is execution
            ]
            self._abort(gone)
            if self._shared is not None:
                self._shared.note_watched(watched)

    def _look(
        self, connection: sa.Connection, ids: Sequence[str], roots: Sequence[str]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """The cancelled runs among ``ids``, and the outermost ones among ``roots`` that others watch."""
        watched = frozenset[str]() if self._shared is None else self._shared.list_watched(connection, roots)
        return self._database.client.list_cancelled(connection, ids), watched

    def agent_wait_of(self, root: str) -> float:
        """How long the outermost run ``root`` may still wait for agents that are not there."""
        taken_up_at = self._taken_up.get(root)
        return 0.0 if taken_up_at is None else max(0.0, taken_up_at + AGENT_WAIT_S - time.monotonic())

    async def is_stored(self, run_id: str) -> bool:
        """Whether a run with this id exists."""
        return run_id in await self._rows.find([run_id])

    async def hold_artifacts(self, root: str, digests: Collection[str]) -> None:
        """Let an outermost run hold artifacts for as long as it is stored."""
        if digests:
            await self._held.add(root, digests)

    async def _size_of(self, root: str) -> RunSize:
        """The stored size of an outermost run, read once when this process begins to execute it."""
        size = self._sizes.get(root)
        if size is None:
            stored = await self._database.read(self._database.client.measure, root, self._database.events)
            size = self._sizes.setdefault(root, RunSize(self._run_bytes, stored))
        return size

    async def count_undo_requests(self, run_id: str) -> int:
        """How often a run was resumed to undo its remaining steps."""
        return await self.signals.count_all(run_id, UNDO_REQUEST)

    async def list_extensions(self, run_id: str) -> Sequence[Extension]:
        """How the limits of steps of a run were raised, in order."""
        return [Extension.from_json(value) for value in await self.signals.list_all(run_id, EXTENSION)]

    async def await_host(self, code: RunCode) -> str:
        """The idlest other node that has this code, as soon as one lives."""
        while not (able := self.lease.list_able(code)):
            await self.lease.await_look()
        return able[0].executor

    async def find_mark(self, run_id: str, call: str) -> Mark | None:
        """The mark that was recorded with a call of a run; None for one without a mark."""
        calls = await self._database.ask(self._database.client.list_calls, run_id, True)
        return next(
            (Mark.find(engine_call.output) for engine_call in calls if engine_call.name == call), None
        )

    async def compute(self, function: Callable[[*_Args], _T], *arguments: *_Args) -> _T:
        """Call a function in a thread, because work with large values must not hold up other runs."""
        return await self._database.ask(function, *arguments)

    async def still_owns(self, run_id: str, owner: str | None) -> bool:
        """Whether a run still belongs to an execution."""
        return owner == await self._database.read(self._database.client.find_owner, run_id)

    async def close(self) -> None:
        """Let go of all runs where they are; the process that takes them up continues there."""
        self._closing = True
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        tasks += self._settling
        if tasks:
            await asyncio.wait(tasks)

    def _abort(self, ids: Sequence[str]) -> list[Execution]:
        """Cut off these runs and all below them; returns at once."""
        within = self.here.list_within(ids)
        for execution in within:
            execution.abort()
        return within

    async def _open(self, execution: Execution, events: EventSink, name: str, is_new: bool) -> None:
        """Emit that the run has begun or continues."""
        if is_new:
            events.emit("run_started", "", {"name": name}, "start")
            return
        row = await self._rows.get(execution.run_id)
        if row.record.status == "cancelled":
            raise cancelled(execution.run_id)
        if self._shared is not None and execution.root == execution.run_id:
            await self._shared.take_up(execution.root)
        emitted = await self._events.read_emitted(execution.run_id)
        events.emitted = emitted
        # A fork has steps that were another run's, whose events are there.
        events.repairs = row.record.forked_from is None
        if "start" not in emitted.once:
            events.emit("run_started", "", {"name": name}, "start")
            return
        self._taken_up[execution.root] = time.monotonic()
        events.emitted = EmittedEvents(emitted.once, emitted.resumed + 1)
        events.emit("run_resumed", "", {"name": name, "node": self.lease.executor})

    def _open_recorded(self, run_id: str) -> RecordedCalls:
        read = self._database.client.list_recorded
        return RecordedCalls(lambda after, limit: self._database.ask(read, run_id, after, limit))

    async def _drive(
        self,
        execution: Execution,
        events: EventSink,
        owner: str | None,
        request: RunRequest,
        recorded: RecordedCalls | None,
    ) -> dict[str, Any]:
        """Run the body to its end, and stop the effects that it left running."""
        run_id, epoch, size = execution.run_id, self.lease.epoch, await self._size_of(execution.root)
        if execution.aborted:
            raise cancelled(run_id)
        await self.hold_artifacts(execution.root, size.take_links())
        # The event that it began may be lost with its node, so a run without any events counts too.
        resumed = events.repairs or events.emitted.resumed > 0
        # A step whose agent waits for a run of its own must not hold the place which that run needs.
        places = None if request.origin.is_agents else self._places
        context = DurableContext(
            run_id,
            execution.root,
            owner,
            epoch,
            events,
            self,
            places,
            size,
            resumed=resumed,
            recorded=recorded,
        )
        execution.task = asyncio.create_task(self._body(context, request), name=f"run {run_id}")
        context.rules.task = execution.task
        value: Any = None
        parts: Sequence[Reference] = ()
        fault: Fault | None = None
        try:
            value = copy_json(await execution.task, f"run {run_id}")
            # It is read as a whole, so all of it must fit, although references to its parts are stored.
            if size.add(f"the output of run {run_id}", value) >= SHARED_BYTES:
                whole = value
                value, parts = await self.compute(refer_to_calls, whole, context.outcomes, context.waits)
                size.replace(whole, value)
        except asyncio.CancelledError:
            if self._closing or _is_ending():
                raise
            if context.rules.broken_rule is None and not execution.aborted:
                await self._database.ask(self._database.client.cancel, [run_id])
            if context.rules.broken_rule is None or execution.aborted:
                raise cancelled(run_id) from None
        except RetinueError as error:
            fault = Fault.from_error(error)
        except (Exception, GeneratorExit) as error:  # whatever a body raises ends its run
            if isinstance(error, GeneratorExit) and not execution.task.done():
                raise  # this process ends
            fault = Fault(type="internal_error", message=f"{type(error).__name__}: {error}")
        if (broken := context.rules.describe_broken()) is not None:
            # Even where the body caught it: what such a body computed cannot be replayed.
            fault = broken
            context.record_usage(None)
        if context.open_children:
            await self.stop(sorted(context.open_children))
        # The artifacts in its output are held, and all events of the run are stored, before its end is.
        await self.hold_artifacts(execution.root, size.take_links())
        await self._events.flush()
        if fault is not None:
            raise stored_failure(fault, context.calls, context.usage)
        return stored_output(value, parts, context.calls, context.usage)

    async def _settle(self, execution: Execution, events: EventSink, engine: asyncio.Task[Any]) -> None:
        """Wait until the end of a run is recorded, and emit it; not where the run is another execution's.

        The task of the ``engine`` ends when it has recorded the end.
        """
        try:
            look_s, given_up_at = 0.001, time.monotonic() + SETTLE_S
            await asyncio.wait([engine], timeout=SETTLE_S)
            # the execution that the run was released to emits its end
            while not self._closing and not execution.is_released and time.monotonic() < given_up_at:
                row = (await self._rows.find([execution.run_id])).get(execution.run_id)
                if row is None:
                    return
                if row.ended:
                    execution.row = row
                    if self._is_last(execution, row):
                        self._events.add(end_of(row, events.emitted.resumed))
                    return
                await asyncio.sleep(look_s)
                look_s = min(2 * look_s, 0.1)
        except StateError as error:
            _log.warning("end of a run not recorded", run=execution.run_id, error=error.message)
        finally:
            self.here.end(execution)
            if execution.root == execution.run_id:
                self._taken_up.pop(execution.root, None)
                self._sizes.pop(execution.root, None)

    def _is_last(self, execution: Execution, row: RunRow) -> bool:
        """Whether no other execution took the run over: that one emits its end, under another number.

        An execution that lost the run may learn it only when its outcome is not recorded any more.
        """
        return self.here.find(execution.run_id) is execution and row.last_executor == self.lease.executor

    def _settle_with(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, context=Context())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _take_up_again(self, run_id: str, owner: str | None, executor: str) -> None:
        """Queue a released run at a node once the database answers, unless another execution owns it."""
        while not self._closing:
            try:
                requeue = self._database.client.requeue
                await self._database.write(requeue, run_id, owner, executor, retry_s=AGAIN_S)
            except StateError:
                await asyncio.sleep(AGAIN_PAUSE_S)
                continue
            return


def _is_ending() -> bool:
    """Whether the ending event loop cancels the execution, which does not cancel the run."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def end_of(row: RunRow, resumed: int) -> NewEvent:
    """The event of a run's end, emitted once for each of its ends."""
    record = row.record
    facts: dict[str, Any] = {"status": record.status}
    if record.fault is not None:
        facts["error"] = as_json(record.fault)
    at = record.finished_at or time.time()
    path = record.id[len(row.root) :].lstrip("/")
    return NewEvent(row.root, record.id, "run_finished", path, facts, at=at, once=f"end {resumed}")
