"""Durable runs: the port ``workflows.runs.Runs`` on DBOS, for many processes on one database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
from dbos import SetWorkflowID
from dbos import error as dbos_errors

from retinue.core.errors import RunConflictError, StateError
from retinue.drivers.durable.database import VERSION, RunDatabase
from retinue.drivers.durable.engine import Engine
from retinue.drivers.durable.events import EventTable
from retinue.drivers.durable.executions import Executions, end_of
from retinue.drivers.durable.journal import Journal
from retinue.drivers.durable.leases import Lease, queue_of
from retinue.drivers.durable.records import Found, RunReader
from retinue.drivers.durable.signals import SignalTable
from retinue.drivers.durable.slots import take_slot
from retinue.drivers.durable.spreading import Spreading
from retinue.workflows.json_copies import copy_json
from retinue.workflows.run_records import (
    RunEvent,
    RunRecord,
    RunRequest,
    RunStatus,
    StepRecord,
)
from retinue.workflows.runs import Accept, Body

_log = structlog.get_logger("retinue.runs")

FOLLOW_S = 0.15
"""How often a followed run is looked at for what other processes tell."""

STOP_S = 1.5
"""How long `cancel` waits for another node to have stopped a run; a living one does within a second."""

STOP_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class DurableOptions:
    """How a process takes part: it works on at most ``concurrency`` steps at once.

    ``keep`` ended runs stay readable, none older than ``keep_days``.
    """

    lease_s: float = 15.0
    concurrency: int = 100
    poll_s: float = 0.5
    keep: int = 1_000
    keep_days: float = 30.0
    prune_every_s: float = 60.0


class DurableRuns:
    """The runs in the database at ``url``, executed by this process too once it is launched.

    That happens with the first `start`, `resume` or `fork`, or with `launch`; reading, following,
    cancelling and signalling need no engine. ``nodes`` is the folder of this machine's slots. One in
    a process at a time. Close it with `aclose`; its runs then wait to be taken up again.
    """

    def __init__(self, body: Body, *, url: str, nodes: Path, options: DurableOptions | None = None) -> None:
        self._body = body
        self._nodes = nodes
        self._options = options or DurableOptions()
        self._database = RunDatabase(url)
        self._reader = RunReader(self._database)
        self._events = EventTable(self._database)
        self._signals = SignalTable(self._database)
        self._stack = AsyncExitStack()
        self._launching = asyncio.Lock()
        self._executions: Executions | None = None
        self._journal = Journal(self._database, self._reader)
        self._spreading = Spreading(self._database)

    async def launch(self) -> Executions:
        """Take part in running: get a slot and a lease, and begin with what is there.

        Raises StateError where the database does not answer or the state folder cannot be written.
        """
        async with self._launching:
            if self._executions is None:
                await self._database.prepare()
                async with AsyncExitStack() as stack:
                    executions = await self._join(stack)
                    # What was begun ends with `aclose`; here only where it could not be finished.
                    self._stack = stack.pop_all()
                self._executions = executions
            return self._executions

    async def _join(self, stack: AsyncExitStack) -> Executions:
        slot = stack.enter_context(take_slot(self._nodes))
        lease = Lease(
            self._database,
            slot.executor,
            lease_s=self._options.lease_s,
            count_running=lambda: executions.outermost,
        )
        executions = Executions(
            self._body,
            self._database,
            self._reader,
            self._events,
            self._signals,
            lease,
            concurrency=self._options.concurrency,
        )
        stack.push_async_callback(lease.end)
        await lease.begin(slot.free)
        executions.engine = await Engine.launch(
            self._database, slot.executor, executions.execute, poll_s=self._options.poll_s
        )
        stack.push_async_callback(executions.engine.close)
        stack.push_async_callback(executions.close)
        watching = asyncio.create_task(executions.watch(), name="cancelled runs")
        stack.callback(watching.cancel)
        pruning = asyncio.create_task(self._keep_pruned(), name="old runs")
        stack.callback(pruning.cancel)
        return executions

    async def start(self, request: RunRequest, *, run_id: str) -> RunRecord:
        request = RunRequest.from_json(copy_json(request.to_json(), f"the request of run {run_id}"))
        executions = await self.launch()
        known = (await self._reader.find([run_id])).get(run_id)
        if known is None:
            other = self._spreading.find_other(executions.lease, executions.outermost)
            if other is None:
                await executions.start(run_id, request)
            else:
                await self._spreading.send(other, run_id, request)
            known = await self._reader.get(run_id)
        if not known.record.request.is_same(request):
            raise RunConflictError(run_id)
        return known.record

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
        return tuple(await self._reader.list_all(status, name, children, limit, accept))

    async def finish(self, run_id: str) -> RunRecord:
        found = await self._get(run_id)
        while not found.ended:
            if self._executions is not None:
                return (await self._executions.await_end(run_id)).record
            await asyncio.sleep(FOLLOW_S)
            found = await self._get(run_id)
        return found.record

    async def cancel(self, run_id: str) -> RunRecord:
        found = await self._get(run_id)
        if found.ended:
            return found.record
        if self._executions is not None:
            await self._executions.stop([run_id])
        else:
            client = self._database.client
            await self._database.ask(lambda: client.cancel_workflow(run_id, cancel_children=True))
        await self._await_told_end(found)
        return await self.get(run_id)

    async def resume(self, run_id: str) -> RunRecord:
        found = await self._get(run_id)
        if not found.ended:
            # One that was left behind goes on as soon as somebody takes part.
            await self.launch()
        if found.record.status == "cancelled":
            queue = queue_of((await self.launch()).lease.executor)
            client = self._database.client
            await self._database.ask(lambda: client.resume_workflow(run_id, queue_name=queue))
        return await self.get(run_id)

    async def fork(self, run_id: str, *, from_step: str, new_run_id: str) -> RunRecord:
        old = await self._get(run_id)
        first = await self._journal.get_first_call(old, from_step)
        queue = queue_of((await self.launch()).lease.executor)

        def fork() -> None:
            with SetWorkflowID(new_run_id):
                self._database.client.fork_workflow(
                    run_id, first, application_version=VERSION, queue_name=queue
                )

        try:
            if new_run_id not in await self._reader.find([new_run_id]):
                await self._database.ask(fork)
                return await self.get(new_run_id)
        except sa.exc.IntegrityError:
            pass
        raise RunConflictError(new_run_id)

    async def signal(self, run_id: str, topic: str, value: Any) -> None:
        value = copy_json(value, f"signal {topic}")
        await self._get(run_id)
        await self._signals.put(run_id, topic, value)

    async def count_signals(self, run_id: str, topic: str) -> int:
        await self._get(run_id)
        return await self._signals.count_open(run_id, topic)

    async def list_steps(self, run_id: str) -> tuple[StepRecord, ...]:
        found = await self._get(run_id)
        return await self._journal.list_steps(found)

    async def list_events(self, run_id: str, *, after: int = 0) -> tuple[RunEvent, ...]:
        found = await self._get(run_id)
        if found.ended:
            await self._ensure_told_end(found)
        return await self._events.list_after(found.root, run_id, after)

    async def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[RunEvent]:
        while True:
            changed = self._events.changed
            found = await self._get(run_id)
            if found.ended:
                await self._ensure_told_end(found)
            for event in await self._events.list_after(found.root, run_id, after):
                after = event.seq
                yield event
            if found.ended:
                return
            await _await_any(changed, FOLLOW_S)

    async def prune(self) -> int:
        """Delete ended runs beyond what is kept, with all below them; gives how many."""
        oldest = time.time() - self._options.keep_days * 86_400
        ended = await self._reader.list_ended()
        gone = [
            run_id for number, (run_id, at) in enumerate(ended) if number >= self._options.keep or at < oldest
        ]
        if gone:
            client = self._database.client
            await self._database.ask(lambda: client.delete_workflows(gone, delete_children=True))
            await self._events.forget(gone)
            await self._signals.forget(gone)
        return len(gone)

    async def leave(self) -> None:
        """Take part no longer: the runs of this process go on where they are taken up next."""
        await self._stack.aclose()
        self._executions = None

    async def aclose(self) -> None:
        """As `leave`, and close everything."""
        await self.leave()
        self._signals.close()
        try:
            await self._events.flush()
        except StateError as error:
            _log.warning("events lost", error=error.message)
        self._database.close()

    async def _get(self, run_id: str) -> Found:
        await self._database.prepare()
        return await self._reader.get(run_id)

    async def _ensure_told_end(self, found: Found) -> None:
        """Tell the end of a run whose node did not live to tell it."""
        here = self._executions and self._executions.find(found.record.id)
        if here:
            await here.ended.wait()
        told = await self._events.read_told(found.record.id)
        if f"end {told.resumed}" not in told.once:
            self._events.add(end_of(found, told.resumed))

    async def _await_told_end(self, found: Found) -> None:
        """Wait until the node that had a run has stopped it and all below it, which it tells last."""
        executions = self._executions
        if found.executor is None or (executions and found.executor == executions.lease.executor):
            return
        given_up_at, seen, going_on = time.monotonic() + STOP_S, 0, {found.record.id}
        while going_on and time.monotonic() < given_up_at:
            await asyncio.sleep(STOP_LOOK_S)
            for event in await self._events.list_after(found.root, found.record.id, seen):
                seen = event.seq
                if event.kind in ("run_started", "run_resumed"):
                    going_on.add(event.run_id)
                elif event.kind == "run_finished":
                    going_on.discard(event.run_id)

    async def _keep_pruned(self) -> None:
        while True:
            try:
                await self.prune()
            except (StateError, dbos_errors.DBOSException) as error:
                _log.warning("old runs not deleted", error=str(error))
            await asyncio.sleep(self._options.prune_every_s)


async def _await_any(changed: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        return
