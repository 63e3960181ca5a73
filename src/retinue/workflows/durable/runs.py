"""The Runs port on DBOS, for many processes on one database; placement of new runs among them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import SQLAlchemyError

from retinue.core.errors import RunConflictError, StateError
from retinue.core.json_values import copy_json
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.database_watch import DatabaseWatch, RunFigures
from retinue.workflows.durable.dbos_engine import Engine, EngineError
from retinue.workflows.durable.events import EventTable
from retinue.workflows.durable.executions import EXTENSION, UNDO_REQUEST, Executions, end_of
from retinue.workflows.durable.nodes import Lease, Node, take_slot
from retinue.workflows.durable.retention import OnDeleted, Retention
from retinue.workflows.durable.run_rows import (
    RunRow,
    RunRows,
    is_outermost,
    stored_args,
)
from retinue.workflows.durable.shared_reports import SharedReports
from retinue.workflows.durable.tables.approvals import ApprovalTable
from retinue.workflows.durable.tables.call_counts import CallCountTable
from retinue.workflows.durable.tables.held_artifacts import HeldArtifacts
from retinue.workflows.durable.tables.hosted import HostedTable
from retinue.workflows.durable.tables.policy_digests import PolicyDigestTable
from retinue.workflows.durable.tables.revised import ScheduleTable
from retinue.workflows.durable.tables.sessions import SessionTable
from retinue.workflows.durable.tables.signals import SignalTable
from retinue.workflows.durable.tables.triggers import TriggerTable
from retinue.workflows.run_progress import RunProgress
from retinue.workflows.runs.hosting import CODE, HostedWorkflow, RunCode
from retinue.workflows.runs.ports import Accept, Body
from retinue.workflows.runs.records import (
    Extension,
    RunEvent,
    RunRecord,
    RunRequest,
    RunStatus,
    StepRecord,
)
from retinue.workflows.runs.replay_rules import MAX_RUN_BYTES

_log = structlog.get_logger("retinue.runs")

FOLLOW_S = 0.15
"""The interval at which a followed run is polled for events from other processes."""

STOP_S = 1.5
"""How long `cancel` waits until another node has stopped a run; a living one does within a second."""

STOP_LOOK_S = 0.05
"""The interval at which it looks for that."""

SPREAD_RUNS = 8
"""A run is started here unless another node has this many runs fewer."""


@dataclass(frozen=True, slots=True)
class DurableOptions:
    """How a process executes runs: at most ``concurrency`` steps at once.

    Ended runs are kept for ``keep_days``, at most ``keep`` of them, half-undone ones until they are resolved;
    the ids of deleted runs for ``keep_ids_days``. ``run_bytes`` = what one run may store.
    """

    lease_s: float = 15.0
    concurrency: int = 100
    poll_s: float = 0.5
    keep: int = 100_000
    keep_days: float = 30.0
    keep_ids_days: float = 365.0
    prune_every_s: float = 60.0
    run_bytes: int = MAX_RUN_BYTES


class DurableRuns:
    """The runs in the database at ``url``.

    This process executes runs from the first `start`, `resume` or `fork` on, or from `launch`; reading,
    following, cancelling and signalling do not need the engine. ``nodes`` is the folder of this machine's
    slots, ``hosted`` the workflows in Python that ``body`` executes. ``on_deleted`` is told of deleted runs.
    ``progress`` holds what steps report here; with it, the processes of a database share these reports.
    One in a process at a time. After `aclose` its runs wait until they are taken up again.
    """

    def __init__(
        self,
        body: Body,
        *,
        url: str,
        nodes: Path,
        options: DurableOptions | None = None,
        hosted: Sequence[HostedWorkflow] = (),
        on_deleted: OnDeleted | None = None,
        progress: RunProgress | None = None,
    ) -> None:
        self._body = body
        self._own_workflows = tuple(hosted)
        self._nodes = nodes
        self._options = options or DurableOptions()
        self._database = RunDatabase(url)
        self._rows = RunRows(self._database)
        self._events = EventTable(self._database)
        self._signals = SignalTable(self._database)
        self.held_artifacts = HeldArtifacts(self._database)
        self._hosted = HostedTable(self._database, self._own_workflows)
        self.schedules = ScheduleTable(self._database, nodes)
        self.triggers = TriggerTable(self._database, nodes)
        self._approvals = ApprovalTable(self._database, self._signals)
        self._sessions = SessionTable(self._database)
        self._retention = Retention(
            self._database,
            self._rows,
            self._events,
            self._signals,
            self.held_artifacts,
            self._sessions,
            self._approvals,
            on_deleted=on_deleted,
            keep=self._options.keep,
            keep_days=self._options.keep_days,
            keep_ids_days=self._options.keep_ids_days,
        )
        self._stack = AsyncExitStack()
        self._launching = asyncio.Lock()
        self._executions: Executions | None = None
        self._placement = Placement()
        self._shared = None if progress is None else SharedReports(self._database, progress, self._is_here)
        if self._shared is not None:
            self._shared.on_watched = partial(self._store_reports_first, self._shared)
        self._watch = DatabaseWatch(self._database, self._events)

    def _store_reports_first(self, reports: SharedReports, is_watched: bool) -> None:
        """Reports of steps are stored before the events that follow them, while somebody reads both."""
        self._events.before_flush = reports.flush if is_watched else None

    async def launch(self) -> Executions:
        """Begin to execute runs: take a slot and a lease, and continue the runs that wait.

        Raises StateError if the database does not answer or the state folder cannot be written.
        """
        async with self._launching:
            if self._executions is None:
                await self._database.prepare()
                async with AsyncExitStack() as stack:
                    executions = await self._join(stack)
                    # Closed by `aclose`, or here if the launch fails.
                    self._stack = stack.pop_all()
                self._executions = executions
            return self._executions

    async def _join(self, stack: AsyncExitStack) -> Executions:
        client = self._database.client
        slot = stack.enter_context(take_slot(self._nodes))
        lease = Lease(
            self._database,
            slot.executor,
            lease_s=self._options.lease_s,
            count_running=lambda: executions.here.outermost,
            hosted=self._hosted,
        )
        executions = Executions(
            self._body,
            self._database,
            self._events,
            self._signals,
            lease,
            concurrency=self._options.concurrency,
            run_bytes=self._options.run_bytes,
            shared=self._shared,
        )
        if self._shared is not None:
            self._shared.node = slot.executor
        stack.push_async_callback(lease.end)
        await lease.begin(slot.free)
        # The queue is registered first, or the engine would find it a second after its launch.
        await self._database.ask(client.register_queue, slot.executor, self._options.poll_s)
        executions.engine = await Engine.launch(
            self._database.open_engine_pool(), self._database.secret_url, slot.executor, executions.execute
        )
        stack.push_async_callback(executions.engine.close)
        stack.push_async_callback(executions.close)
        watching = asyncio.create_task(executions.watch(), name="cancelled runs")
        stack.callback(watching.cancel)
        pruning = asyncio.create_task(self._keep_pruned(), name="old runs")
        stack.callback(pruning.cancel)
        return executions

    async def start(self, request: RunRequest, *, run_id: str | None = None) -> RunRecord:
        is_own_id = run_id is not None
        run_id = run_id or uuid.uuid4().hex
        request = RunRequest.from_json(copy_json(request.to_json(), f"the request of run {run_id}"))
        executions = await self.launch()
        with self._database.brief():
            # nothing is started yet, so a database that is away is reported soon
            known = (await self._rows.find([run_id])).get(run_id)
            if known is None and is_own_id:
                await self._retention.refuse_used(run_id, request)
        if known is None:
            other = self._choose_node(executions, request.definition)
            if other is None:
                try:
                    started = await executions.start(run_id, request)
                except SQLAlchemyError as error:
                    raise (self._database.explain(error) or error) from error
                if started is not None:
                    return started
            else:
                args = stored_args(request, None)
                if self._shared is not None:
                    await self._shared.announce(run_id)
                await self._database.ask(self._database.client.enqueue, run_id, args, other)
            known = await self._rows.get(run_id)
        if not known.record.request.is_same(request):
            raise RunConflictError(run_id)
        return known.record

    def _choose_node(self, executions: Executions, definition: Mapping[str, Any]) -> str | None:
        """The other node that gets a new run, None for this one; only nodes with its code if it needs any."""
        lease = executions.lease
        code = RunCode.find(definition) if CODE in definition else None
        if code is None:
            return self._placement.find_other(lease, lease.nodes, executions.here.outermost)
        able = lease.list_able(code)
        if any(workflow.executes(code) for workflow in self._own_workflows):
            return self._placement.find_other(lease, able, executions.here.outermost)
        return able[0].executor if able else None

    async def get(self, run_id: str) -> RunRecord:
        return (await self._get(run_id)).record

    async def list_all(
        self,
        *,
        status: RunStatus | None = None,
        name: str | None = None,
        children: bool = False,
        limit: int | None = None,
        accept: Accept | None = None,
    ) -> tuple[RunRecord, ...]:
        await self._database.prepare()
        with self._database.brief():
            return tuple(await self._rows.list_all(status, name, children, limit, accept))

    async def finish(self, run_id: str) -> RunRecord:
        executions = self._executions
        if executions is not None and executions.here.find(run_id) is not None:
            return await executions.await_end(run_id)
        row = await self._get(run_id)
        while not row.ended:
            if self._executions is not None:
                return await self._executions.await_end(run_id)
            await asyncio.sleep(FOLLOW_S)
            row = await self._get(run_id)
        return row.record

    async def cancel(self, run_id: str) -> RunRecord:
        row = await self._get(run_id)
        if row.record.is_half_undone:
            await self._database.write(self._give_up_undo, run_id)
            return await self.get(run_id)
        if row.ended:
            return row.record
        if self._executions is not None:
            await self._executions.stop([run_id])
        else:
            await self._database.ask(self._database.client.cancel, [run_id])
        await self._await_end_elsewhere(row)
        return await self.get(run_id)

    async def resume(self, run_id: str) -> RunRecord:
        row = await self._get(run_id)
        if not row.ended:
            # A run that was left behind continues as soon as a process executes runs.
            await self.launch()
        if row.record.status == "cancelled":
            row.check_journal()
            executor = (await self.launch()).lease.executor
            await self._database.ask(self._database.client.resume, [run_id], executor)
        elif row.record.is_half_undone:
            row.check_journal()
            executor = (await self.launch()).lease.executor
            await self._database.write(self._request_undo, row, executor)
        return await self.get(run_id)

    async def extend(self, run_id: str, extension: Extension) -> RunRecord:
        row = await self._get(run_id)
        if row.record.is_extendable:
            row.check_journal()
            executor = (await self.launch()).lease.executor
            await self._database.write(self._extend, row, executor, extension)
        return await self.get(run_id)

    async def fork(self, run_id: str, *, from_step: str, new_run_id: str) -> RunRecord:
        old = await self._get(run_id)
        old.check_journal()
        first = await self._rows.get_first_call(old, from_step)
        executor = (await self.launch()).lease.executor
        if new_run_id in await self._rows.find([new_run_id]):
            raise RunConflictError(new_run_id)
        await self._retention.refuse_used(new_run_id)
        # the calls that the fork keeps may have been made with them
        for value in await self._signals.list_all(run_id, EXTENSION):
            await self._signals.put(new_run_id, EXTENSION, value)
        fork = self._database.client.fork
        if not await self._database.ask(fork, run_id, first, new_run_id, executor):
            raise RunConflictError(new_run_id)
        await self.held_artifacts.copy(run_id, new_run_id)
        return await self.get(new_run_id)

    async def signal(self, run_id: str, topic: str, value: Any) -> None:
        value = copy_json(value, f"signal {topic}")
        await self._get(run_id)
        await self._signals.put(run_id, topic, value)

    async def count_signals(self, run_id: str, topic: str) -> int:
        await self._get(run_id)
        return await self._signals.count_open(run_id, topic)

    async def list_hosted(self) -> tuple[HostedWorkflow, ...]:
        await self._database.prepare()
        with self._database.brief():
            hosts = await self._database.read(self._hosted.read_living)
        living = (workflow for workflows in hosts.values() for workflow in workflows)
        return tuple(sorted(living, key=lambda workflow: (workflow.code.name, workflow.code.digest)))

    async def open_approvals(self) -> ApprovalTable:
        return self._approvals

    async def open_call_counts(self) -> CallCountTable:
        return CallCountTable(self._database)

    async def open_policy_digests(self) -> PolicyDigestTable:
        return PolicyDigestTable(self._database)

    async def open_sessions(self) -> SessionTable:
        return self._sessions

    async def list_steps(self, run_id: str) -> tuple[StepRecord, ...]:
        if is_outermost(run_id):
            await self._database.prepare()
            steps = await self._rows.list_steps(run_id, run_id)
            if steps:
                return steps
        row = await self._get(run_id)
        return await self._rows.list_steps(run_id, row.root)

    async def list_events(self, run_id: str, *, after: int = 0) -> tuple[RunEvent, ...]:
        if not after and is_outermost(run_id):
            await self._database.prepare()
            events, emitted = await self._events.list_all(run_id)
            if emitted.is_ended or not (await self._get(run_id)).ended:
                return events
        row = await self._get(run_id)
        if row.ended:
            await self._ensure_end_emitted(row)
        return await self._events.list_after(row.root, run_id, after)

    async def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[RunEvent]:
        while True:
            changed = self._events.changed
            row = await self._get(run_id)
            if row.ended:
                await self._ensure_end_emitted(row)
            for event in await self._events.list_after(row.root, run_id, after):
                after = event.seq
                yield event
            if row.ended:
                return
            await _await_any(changed, FOLLOW_S)

    async def find_held_artifacts(self, digests: Collection[str]) -> set[str]:
        """The digests among these that stored runs hold."""
        await self._database.prepare()
        return await self.held_artifacts.find(digests)

    async def prune(self) -> int:
        """Delete the ended runs that need not be kept, with their child runs; returns the number of runs."""
        return await self._retention.prune()

    async def read_figures(self) -> RunFigures:
        """The figures of this process about the database and its runs, within a few seconds."""
        return await self._watch.read(self._executions)

    async def leave(self) -> None:
        """Stop executing runs; other nodes, or this one after a restart, continue them."""
        await self._stack.aclose()
        self._executions = None

    async def aclose(self) -> None:
        """Stop executing runs, and close the database."""
        await self.leave()
        if self._shared is not None:
            await self._shared.aclose()
        self._signals.close()
        try:
            await self._events.flush()
        except StateError as error:
            _log.warning("events lost", error=error.message)
        self._database.close()

    def _request_undo(self, connection: sa.Connection, row: RunRow, executor: str) -> None:
        """Queue a failed run, and count the request; nothing if another process has just done so."""
        if self._reopen(connection, row, executor):
            self._signals.insert(connection, row.record.id, UNDO_REQUEST, None)

    def _extend(self, connection: sa.Connection, row: RunRow, executor: str, extension: Extension) -> None:
        """Queue a run that a limit ended, with its new limits; nothing if another process has done so."""
        if self._reopen(connection, row, executor):
            self._signals.insert(connection, row.record.id, EXTENSION, extension.to_json())

    def _reopen(self, connection: sa.Connection, row: RunRow, executor: str) -> bool:
        """Queue a run that has ended; False if another process has just done so."""
        if not self._database.client.reopen(connection, row.record.id, executor):
            return False
        # The next execution may begin before the last one has emitted the end that it recorded.
        resumed = self._events.count_resumed(connection, row.record.id)
        self._events.insert(connection, [end_of(row, resumed)])
        return True

    def _give_up_undo(self, connection: sa.Connection, run_id: str) -> None:
        """Cancel a half-undone run; should it be resumed, it undoes its remaining steps."""
        if self._database.client.give_up(connection, run_id):
            self._signals.insert(connection, run_id, UNDO_REQUEST, None)

    def _is_here(self, run_id: str) -> bool:
        """Whether this process executes a run."""
        return self._executions is not None and self._executions.here.find(run_id) is not None

    async def _get(self, run_id: str) -> RunRow:
        await self._database.prepare()
        return await self._rows.get(run_id)

    async def _ensure_end_emitted(self, row: RunRow) -> None:
        """Emit the end of a run whose node failed before it emitted the end."""
        here = self._executions and self._executions.here.find(row.record.id)
        if here:
            await here.ended.wait()
        emitted = await self._events.read_emitted(row.record.id)
        if not emitted.is_ended:
            self._events.add(end_of(row, emitted.resumed))

    async def _await_end_elsewhere(self, row: RunRow) -> None:
        """Wait until another node has stopped a run and its child runs: the end is its last event."""
        executions = self._executions
        if row.executor is None or (executions and row.executor == executions.lease.executor):
            return
        given_up_at, seen, going_on = time.monotonic() + STOP_S, 0, {row.record.id}
        while going_on and time.monotonic() < given_up_at:
            await asyncio.sleep(STOP_LOOK_S)
            for event in await self._events.list_after(row.root, row.record.id, seen):
                seen = event.seq
                if event.kind in ("run_started", "run_resumed"):
                    going_on.add(event.run_id)
                elif event.kind == "run_finished":
                    going_on.discard(event.run_id)

    async def _keep_pruned(self) -> None:
        while True:
            try:
                await self.prune()
                if self._shared is not None:
                    await self._shared.forget_old()
            except (StateError, EngineError) as error:
                _log.warning("old runs not deleted", error=str(error))
            await asyncio.sleep(self._options.prune_every_s)


class Placement:
    """Chooses the node of a new run: this one, unless another has far fewer runs."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._sent_to: object = None

    def find_other(self, lease: Lease, nodes: Sequence[Node], running: int) -> str | None:
        """The node among these that gets the next run, None for this one.

        This one has ``lease`` and ``running`` runs.
        """
        if self._sent_to is not lease.nodes:
            # The nodes have reported since.
            self._sent_to, self._sent = lease.nodes, Counter()
        others = {
            node.executor: node.running + self._sent[node.executor]
            for node in nodes
            if node.executor != lease.executor
        }
        if not others:
            return None
        idlest = min(others, key=lambda executor: others[executor])
        if others[idlest] + SPREAD_RUNS > running:
            return None
        self._sent[idlest] += 1
        return idlest


async def _await_any(changed: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        return
