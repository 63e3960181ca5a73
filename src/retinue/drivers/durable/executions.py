"""The runs that this process executes: their bodies, how they are cut off, and how their end is told."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from contextvars import Context
from typing import Any

import sqlalchemy as sa
import structlog
from dbos import DBOS
from dbos import error as dbos_errors

from retinue.core.errors import RetinueError, StateError, UnknownRunError
from retinue.drivers.durable.context import DurableContext, RunLetGoError
from retinue.drivers.durable.database import RunDatabase
from retinue.drivers.durable.engine import Engine, current_owner, is_first_execution
from retinue.drivers.durable.events import EventTable, NewEvent, Told
from retinue.drivers.durable.leases import Lease
from retinue.drivers.durable.live import Live, LiveRuns
from retinue.drivers.durable.records import Found, RunReader, done_with, fail_with, find_root
from retinue.drivers.durable.signals import SignalTable
from retinue.workflows.dispatching import is_begun_by_agent
from retinue.workflows.json_copies import copy_json
from retinue.workflows.run_records import Fault, RunRecord, RunRequest
from retinue.workflows.runs import Body, WaitMode

_log = structlog.get_logger("retinue.runs")

AGAIN_S = 5.0
"""How long one try takes to queue a run that was let go."""

SETTLE_S = 2.0
"""How long after its body a run is looked at for its recorded end; it comes within milliseconds."""

PATIENCE_S = 20.0
"""How long a run that was taken up waits for agents: a machine that starts anew starts them as well."""

WATCH_S = 0.5
"""How often the runs here are looked at for whether other processes have cancelled them, all at once."""

FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.5
"""How often runs at other nodes are looked at: often at first, then seldom."""


class Executions:
    """Executes runs; `execute` is what the engine is launched with. Attributes are its surroundings."""

    def __init__(
        self,
        body: Body,
        database: RunDatabase,
        reader: RunReader,
        events: EventTable,
        signals: SignalTable,
        lease: Lease,
        *,
        concurrency: int,
    ) -> None:
        self.lease = lease
        self.signals = signals
        self.engine: Engine | None = None
        self._body = body
        self._database = database
        self._reader = reader
        self._events = events
        self._live = LiveRuns()
        self._taken_up: dict[str, float] = {}
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._settling: set[asyncio.Task[None]] = set()
        self._closing = False
        self._places = asyncio.Semaphore(concurrency)

    @property
    def outermost(self) -> int:
        """How many outermost runs are here."""
        return self._live.outermost

    def find(self, run_id: str) -> Live | None:
        return self._live.find(run_id)

    async def start(self, run_id: str, request: RunRequest) -> None:
        """Start a run here; one that exists stays what it is."""
        await self.lease.hold()
        with self._live.announce(run_id):
            await self._launched.start(run_id, request.to_json(), None)

    async def start_child(self, child_id: str, request: RunRequest, root: str) -> str:
        with self._live.announce(child_id):
            return await self._launched.start_below(child_id, request.to_json(), root)

    async def execute(self, request: dict[str, Any], root: str | None) -> dict[str, Any]:
        """One execution of a run, new or taken up again; gives its value.

        What it raises is meant for the engine: a fault as a portable error, or that the run is no
        longer this execution's.
        """
        run_id = DBOS.workflow_id or ""
        new = is_first_execution(run_id)
        live = self._live.begin(run_id, announced=new)
        live.root, live.events = find_root(run_id, root), self._events
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        owner = current_owner()
        try:
            await self._open(live, request["name"], new)
            return await self._drive(live, RunRequest.from_json(request))
        except (RunLetGoError, StateError) as error:
            _log.warning("run let go", run=run_id, error=str(error))
            self._settle_with(self._take_up_again(run_id, owner))
            raise RunLetGoError(str(error)) from error
        finally:
            self._settle_with(self._settle(live))

    async def await_children(self, ids: Sequence[str], given_up: set[str], mode: WaitMode) -> list[RunRecord]:
        """The ends of all of these runs, or of the first; those that were stopped with us go on first."""
        found = await self._find_all(ids)
        stopped = [
            run_id for run_id in ids if found[run_id].record.status == "cancelled" and run_id not in given_up
        ]
        if stopped:
            client, queue = self._database.client, self._launched.queue
            await self._database.ask(lambda: client.resume_workflows(stopped, queue_name=queue))
        look_s = FIRST_LOOK_S
        while True:
            found = await self._find_all(ids)
            open_ids = [run_id for run_id in ids if not found[run_id].ended]
            if mode == "first" and len(open_ids) < len(ids):
                ended = [found[run_id].record for run_id in ids if found[run_id].ended]
                return [min(ended, key=lambda record: record.finished_at or 0)]
            if not open_ids:
                return [found[run_id].record for run_id in ids]
            await self._await_change(open_ids, look_s, all_of_them=mode == "all")
            look_s = min(2 * look_s, LAST_LOOK_S)

    async def await_end(self, run_id: str) -> Found:
        """A run that has ended; raises UnknownRunError."""
        look_s = FIRST_LOOK_S
        while True:
            found = await self._reader.get(run_id)
            if found.ended:
                return found
            await self._await_change([run_id], look_s, all_of_them=True)
            look_s = min(2 * look_s, LAST_LOOK_S)

    async def stop(self, ids: Sequence[str]) -> None:
        """Stop runs and all below them; comes back when nothing of them goes on in this process."""
        found = await self._find_all(ids)
        running = [run_id for run_id in ids if not found[run_id].ended]
        if running:
            client = self._database.client
            await self._database.ask(lambda: client.cancel_workflows(running, cancel_children=True))
        for live in self._abort(running):
            await live.ended.wait()

    async def watch(self) -> None:
        """Cut off what other processes cancel, for as long as this one lives.

        Not left to the engine, which looks once a second, and only at steps that it may preempt.
        """
        while True:
            await asyncio.sleep(WATCH_S)
            here = self._live.list_all()
            try:
                cancelled = await self._reader.list_cancelled([live.run_id for live in here])
            except (StateError, sa.exc.SQLAlchemyError) as error:
                _log.warning("runs that are cancelled elsewhere go on for now", error=str(error))
                continue
            # Not one that began while we looked: its run may have been resumed.
            gone = [one.run_id for one in here if one.run_id in cancelled and self.find(one.run_id) is one]
            self._abort(gone)

    def patience_of(self, root: str) -> float:
        """How long the outermost run ``root`` may still wait for agents that are not there."""
        taken_up_at = self._taken_up.get(root)
        return 0.0 if taken_up_at is None else max(0.0, taken_up_at + PATIENCE_S - time.monotonic())

    async def still_owns(self, run_id: str, owner: str | None) -> bool:
        """Whether an execution is still the one that the run belongs to."""
        query = sa.text(f"SELECT owner_xid FROM {self._database.runs} WHERE workflow_uuid = :run_id")  # noqa: S608
        return owner == await self._database.read(lambda c: c.execute(query, {"run_id": run_id}).scalar())

    async def close(self) -> None:
        """Let go of all runs where they are; whoever takes them up goes on there."""
        self._closing = True
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        tasks += self._settling
        if tasks:
            await asyncio.wait(tasks)

    def _abort(self, ids: Sequence[str]) -> list[Live]:
        """Cut off these runs and all below them; comes back at once."""
        within = self._live.list_within(ids)
        for live in within:
            live.abort()
        return within

    @property
    def _launched(self) -> Engine:
        assert self.engine is not None
        return self.engine

    async def _open(self, live: Live, name: str, new: bool) -> None:
        """Tell that the run began or goes on."""
        if new:
            live.tell("run_started", "", {"name": name}, "start")
            return
        found = await self._reader.get(live.run_id)
        if found.record.status == "cancelled":
            raise dbos_errors.DBOSWorkflowCancelledError(f"run {live.run_id} was cancelled")
        live.told = await self._events.read_told(live.run_id)
        # A fork has steps that were another run's, and were told there.
        live.repairs = found.record.forked_from is None
        if "start" not in live.told.once:
            live.tell("run_started", "", {"name": name}, "start")
            return
        self._taken_up[live.root] = time.monotonic()
        live.told = Told(live.told.once, live.told.resumed + 1)
        live.tell("run_resumed", "", {"name": name, "node": self.lease.executor})

    async def _drive(self, live: Live, request: RunRequest) -> dict[str, Any]:
        """Run the body to its end, and stop what it left running."""
        owner, epoch = current_owner(), self.lease.epoch
        contexts: list[DurableContext] = []

        async def run_body() -> Any:
            # that it was told to begin may be lost with its node, so one of which nothing is known counts too
            resumed = live.repairs or live.told.resumed > 0
            # A step whose agent waits for a run of its own must not hold the place which that run needs.
            places = nullcontext() if is_begun_by_agent(request) else self._places
            context = DurableContext(
                live.run_id, live.root, owner, epoch, live, self, places, resumed=resumed
            )
            contexts.append(context)
            return await self._body(context, request)

        if live.aborted:
            raise dbos_errors.DBOSWorkflowCancelledError(f"run {live.run_id} was cancelled")
        live.task = asyncio.create_task(run_body(), name=f"run {live.run_id}")
        value: Any = None
        fault: Fault | None = None
        try:
            value = copy_json(await live.task, f"run {live.run_id}")
        except asyncio.CancelledError:
            if self._closing or _is_ending():
                raise
            if not live.aborted:
                client = self._database.client
                await self._database.ask(lambda: client.cancel_workflow(live.run_id, cancel_children=True))
            raise dbos_errors.DBOSWorkflowCancelledError(f"run {live.run_id} was cancelled") from None
        except RetinueError as error:
            fault = Fault.from_error(error)
        except Exception as error:  # noqa: BLE001  # whatever a body raises ends its run, never this process
            fault = Fault(type="internal_error", message=f"{type(error).__name__}: {error}")
        context = contexts[0]
        if context.turns.broken_rule is not None:
            # Swallowed or not: what such a body computed cannot be replayed.
            fault = Fault(type="durable_rule", message=str(context.turns.broken_rule))
            context.tell_calls(None)
        if context.open_children:
            await self.stop(sorted(context.open_children))
        # Whoever sees that the run has ended shall find all that happened in it.
        await self._events.flush()
        if fault is not None:
            raise fail_with(fault, context.calls)
        return done_with(value, context.calls)

    async def _settle(self, live: Live) -> None:
        """Wait until the end of a run is recorded, and tell it; nothing of that when it is no longer ours."""
        try:
            look_s, given_up_at = 0.001, time.monotonic() + SETTLE_S
            while not self._closing and time.monotonic() < given_up_at:
                found = (await self._reader.find([live.run_id])).get(live.run_id)
                if found is None:
                    return
                if found.ended:
                    self._events.add(end_of(found, live.told.resumed))
                    return
                await asyncio.sleep(look_s)
                look_s = min(2 * look_s, 0.1)
        except StateError as error:
            _log.warning("the end of a run was not told", run=live.run_id, error=error.message)
        finally:
            self._live.end(live)
            if live.root == live.run_id:
                self._taken_up.pop(live.root, None)

    def _settle_with(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, context=Context())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _take_up_again(self, run_id: str, owner: str | None) -> None:
        """Queue a run that was let go, as soon as the database answers; nothing when another has it."""
        statement = sa.text(
            f"UPDATE {self._database.runs} SET status = 'ENQUEUED', owner_xid = NULL, "  # noqa: S608
            "started_at_epoch_ms = NULL, queue_name = :queue "
            "WHERE workflow_uuid = :run_id AND status = 'PENDING' AND owner_xid = :owner"
        )
        names = {"queue": self._launched.queue, "run_id": run_id, "owner": owner}
        while not self._closing:
            try:
                await self._database.write(lambda c: c.execute(statement, names), patience_s=AGAIN_S)
            except StateError:
                continue
            return

    async def _find_all(self, ids: Sequence[str]) -> dict[str, Found]:
        found = await self._reader.find(ids)
        for run_id in ids:
            if run_id not in found:
                raise UnknownRunError(run_id)
        return found

    async def _await_change(self, ids: Sequence[str], look_s: float, *, all_of_them: bool) -> None:
        """Come back when one of these runs, or all, ended here, or it is time to look at other nodes."""
        here = [live for run_id in ids if (live := self._live.find(run_id)) is not None]
        elsewhere = len(here) < len(ids)
        waiting = [asyncio.create_task(live.ended.wait()) for live in here]
        if not waiting:
            await asyncio.sleep(look_s)
            return
        try:
            await asyncio.wait(
                waiting,
                timeout=look_s if elsewhere else None,
                return_when=asyncio.ALL_COMPLETED if all_of_them else asyncio.FIRST_COMPLETED,
            )
        finally:
            for task in waiting:
                task.cancel()


def _is_ending() -> bool:
    """Whether the execution itself is cancelled: by a loop that ends, which says nothing about the run."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def end_of(found: Found, resumed: int) -> NewEvent:
    """What tells how a run ended, once for each of its ends."""
    record = found.record
    facts: dict[str, Any] = {"status": record.status}
    if record.fault is not None:
        facts["error"] = record.fault.to_json()
    at = record.finished_at or time.time()
    return NewEvent(found.root, record.id, "run_finished", "", facts, at=at, once=f"end {resumed}")
