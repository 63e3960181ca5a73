"""Durable runs: the port ``workflows.runs.Runs`` on DBOS, for many processes on one database."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
from dbos import SetWorkflowID
from dbos import error as dbos_errors

from retinue.core.errors import RunConflictError, StateError, UnknownRunError, UnknownStepError
from retinue.drivers.durable.context import CALLS, find_path
from retinue.drivers.durable.database import VERSION, RunDatabase
from retinue.drivers.durable.engine import RUN, Engine
from retinue.drivers.durable.events import EventTable
from retinue.drivers.durable.executions import Executions, end_of
from retinue.drivers.durable.leases import Lease, queue_of
from retinue.drivers.durable.records import Found, RunReader
from retinue.drivers.durable.signals import SignalTable
from retinue.drivers.durable.slots import take_slot
from retinue.workflows.json_copies import copy_json
from retinue.workflows.run_records import (
    RunEvent,
    RunRecord,
    RunRequest,
    RunStatus,
    StepOutcome,
    StepRecord,
)
from retinue.workflows.runs import Accept, Body

_log = structlog.get_logger("retinue.runs")

FOLLOW_S = 0.15
"""How often a followed run is looked at for what other processes tell."""

STOP_S = 1.5
"""How long `cancel` waits for another node to have stopped a run; a living one does within a second."""

STOP_LOOK_S = 0.05

SPREAD_RUNS = 8
"""A run is started here unless another node has so many runs less."""


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
        self._sent: Counter[str] = Counter()
        self._sent_to: object = None

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
            node = self._choose_node(executions)
            if node == executions.lease.executor:
                await executions.start(run_id, request)
            else:
                await self._send(node, run_id, request)
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
        calls = await self._list_calls(old)
        first = next((number for number, _, path in calls if _is_within(path, from_step)), None)
        if first is None:
            raise UnknownStepError(from_step, known=_list_tops(path for _, _, path in calls))
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

    async def list_steps(self, run_id: str) -> tuple[StepRecord, ...]:
        found = await self._get(run_id)
        steps = [step async for step in self._iterate_steps(found, found.root)]
        return tuple(steps)

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

    def _choose_node(self, executions: Executions) -> str:
        """This node, unless another has much less to do."""
        nodes = executions.lease.nodes
        if self._sent_to is not nodes:
            # The nodes have said anew how much they have.
            self._sent_to, self._sent = nodes, Counter()
        others = {
            node.executor: node.running + self._sent[node.executor]
            for node in nodes
            if node.executor != executions.lease.executor
        }
        if not others:
            return executions.lease.executor
        idlest = min(others, key=lambda executor: others[executor])
        if others[idlest] + SPREAD_RUNS > executions.outermost:
            return executions.lease.executor
        self._sent[idlest] += 1
        return idlest

    async def _send(self, executor: str, run_id: str, request: RunRequest) -> None:
        options: Any = {
            "workflow_name": RUN,
            "queue_name": queue_of(executor),
            "workflow_id": run_id,
            "app_version": VERSION,
        }
        client = self._database.client
        await self._database.ask(lambda: client.enqueue(options, request.to_json(), None, time.time()))

    async def _list_calls(self, found: Found) -> list[tuple[int, str, str]]:
        """The recorded calls of a run: number, name in the journal, path."""
        client, run_id = self._database.client, found.record.id
        steps = await self._database.ask(lambda: client.list_workflow_steps(run_id, load_output=False))
        owners = await self._list_ancestors(found)
        return [(step["function_id"], step["function_name"], _path_of(step, owners)) for step in steps]

    async def _list_ancestors(self, found: Found) -> list[str]:
        """A run and those that it was forked from: children keep the name that they were started with."""
        ids = [found.record.id]
        while found.record.forked_from is not None and found.record.forked_from not in ids:
            ids.append(found.record.forked_from)
            try:
                found = await self._reader.get(found.record.forked_from)
            except UnknownRunError:
                break
        return ids

    async def _iterate_steps(self, found: Found, root: str) -> AsyncIterator[StepRecord]:
        client, run_id = self._database.client, found.record.id
        below = run_id[len(root) :].lstrip("/")
        children = []
        for step in await self._database.ask(lambda: client.list_workflow_steps(run_id)):
            name = step["function_name"]
            if name == RUN:
                children.append(str(step["child_workflow_id"]))
            elif name.partition(" ")[0] not in CALLS or name.startswith("receive "):
                path = "/".join(part for part in (below, find_path(name)) if part)
                yield StepRecord(run_id, path, StepOutcome.from_json(step["output"] or {}))
        for child in (await self._reader.find(children)).values() if children else ():
            async for record in self._iterate_steps(child, child.root):
                yield record

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


def _path_of(step: Mapping[str, Any], owners: Sequence[str]) -> str:
    """The path of a recorded call; that of a child's start is in the child's id."""
    if step["function_name"] != RUN:
        return find_path(step["function_name"])
    child = str(step["child_workflow_id"])
    return next((child[len(owner) + 1 :] for owner in owners if child.startswith(f"{owner}/")), child)


def _is_within(path: str, step: str) -> bool:
    """Whether a durable call belongs to a step: itself, its choice, a further try, a nested one."""
    return path == step or (path.startswith(step) and path[len(step)] in "/@.#")


def _list_tops(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path.split("/")[0].split("@")[0] for path in paths))


async def _await_any(changed: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await changed.wait()
    except TimeoutError:
        return
