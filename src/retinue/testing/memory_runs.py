"""Runs in memory under the rules of durable runs; nothing survives the process.

A run keeps a journal of its durable calls in order. When a run is resumed, its body starts again and gets
the recorded outcomes from the journal.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Self

import orjson

from retinue.approvals.records import MemoryApprovals
from retinue.core.errors import RetinueError, RunConflictError, UnknownRunError, UnknownStepError
from retinue.core.json_values import copy_json
from retinue.testing.memory_context import PATCHED, EventLog, MemoryContext, Run, Services
from retinue.workflows.runs.hosting import HostedWorkflow
from retinue.workflows.runs.ports import Accept, Body, Change
from retinue.workflows.runs.records import (
    Extension,
    Fault,
    RunEvent,
    RunRecord,
    RunRequest,
    RunStatus,
    StepOutcome,
    StepRecord,
    as_json,
    read_json,
)
from retinue.workflows.runs.replay_rules import MAX_RUN_BYTES

KEPT_RUNS = 1_000
"""How many ended runs stay readable."""


class MemoryRuns:
    """Executes runs of ``body`` in this process; use it with ``async with``, or close it with `aclose`.

    ``body`` is usually `Interpreter.run`, which executes workflows; ``hosted`` are those in Python. ``sleep``
    (seconds) and ``clock`` (seconds since 1970) replace those of the system, so that tests need not wait.
    ``kept`` = how many ended runs stay readable; the oldest are deleted first, with their children.
    ``run_bytes`` = how much one run may store. With ``interrupts`` an outermost run is cancelled after each
    durable call that it records, as if its process had died there; `resume` goes on with it.

    >>> import asyncio
    >>> from retinue.workflows.runs.records import RunRequest
    >>> async def body(context, request):
    ...     async def square():
    ...         return request.input ** 2
    ...     outcome = await context.step("square", square, timeout_s=1)
    ...     return outcome.value
    >>> async def run_body():
    ...     async with MemoryRuns(body) as runs:
    ...         await runs.start(RunRequest(name="square", definition={}, input=3), run_id="run-1")
    ...         return await runs.finish("run-1")
    >>> record = asyncio.run(run_body())
    >>> record.status, record.get()
    ('done', 9)
    """

    def __init__(
        self,
        body: Body,
        hosted: Sequence[HostedWorkflow] = (),
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
        kept: int = KEPT_RUNS,
        run_bytes: int = MAX_RUN_BYTES,
        interrupts: bool = False,
    ) -> None:
        self._body = body
        self._hosted = tuple(hosted)
        self._approvals = MemoryApprovals(clock)
        self._sessions = MemorySessions()
        self._interrupts = interrupts
        self._kept = kept
        self._run_bytes = run_bytes
        self._runs: dict[str, Run] = {}
        self._services = Services(
            sleep=sleep, clock=clock, find=self._find, start=self._start, resume=self._resume, stop=self._stop
        )

    async def start(self, request: RunRequest, *, run_id: str | None = None) -> RunRecord:
        run_id = run_id or uuid.uuid4().hex
        request = RunRequest.from_json(copy_json(request.to_json(), f"the request of run {run_id}"))
        return self._start(request, run_id, None).record

    async def get(self, run_id: str) -> RunRecord:
        return self._find(run_id).record

    async def list_all(
        self,
        *,
        status: RunStatus | None = None,
        name: str | None = None,
        children: bool = False,
        limit: int | None = None,
        accept: Accept | None = None,
    ) -> tuple[RunRecord, ...]:
        records = (run.record for run in reversed(self._runs.values()))
        chosen = (
            record
            for record in records
            if (status is None or record.status == status)
            and (name is None or record.request.name == name)
            and (children or record.parent_id is None)
            and (accept is None or accept(record))
        )
        return tuple(islice(chosen, limit))

    async def finish(self, run_id: str) -> RunRecord:
        run = self._find(run_id)
        await run.ended.wait()
        return run.record

    async def cancel(self, run_id: str) -> RunRecord:
        run = self._find(run_id)
        if run.record.is_half_undone:
            # Should it be resumed, it undoes its remaining steps.
            run.undo_requests += 1
            run.record = replace(run.record, status="cancelled", fault=None)
        await self._stop(run)
        return run.record

    async def resume(self, run_id: str) -> RunRecord:
        run = self._find(run_id)
        self._resume(run)
        return run.record

    async def extend(self, run_id: str, extension: Extension) -> RunRecord:
        run = self._find(run_id)
        if run.record.is_extendable:
            run.extensions.append(extension)
            self._reopen(run)
        return run.record

    async def fork(self, run_id: str, *, from_step: str, new_run_id: str) -> RunRecord:
        old = self._find(run_id)
        entries = [(n, entry) for n, entry in enumerate(old.journal) if entry is not None]
        steps = [(n, entry.path) for n, entry in entries if entry.kind != PATCHED]
        kept = next((n for n, path in steps if _is_within(path, from_step)), None)
        if kept is None:
            raise UnknownStepError(from_step, known=_list_steps(old))
        if new_run_id in self._runs:
            raise RunConflictError(new_run_id)
        new = Run(
            record=replace(
                old.record,
                id=new_run_id,
                status="running",
                started_at=self._services.clock(),
                finished_at=None,
                value=None,
                fault=None,
                calls=None,
                forked_from=run_id,
                parent_id=None,
            ),
            events=EventLog(),
            journal=list(old.journal[:kept]),
            size_limit=self._run_bytes,
        )
        new.extensions = list(old.extensions)
        new.size.stored = sum(len(entry.outcome) for entry in new.journal if entry is not None)
        self._runs[new_run_id] = new
        self._launch(new, "run_started")
        return new.record

    async def signal(self, run_id: str, topic: str, value: Any) -> None:
        self._find(run_id).put_signal(topic, copy_json(value, f"signal {topic}"))

    async def count_signals(self, run_id: str, topic: str) -> int:
        return self._find(run_id).count_signals(topic)

    async def list_hosted(self) -> tuple[HostedWorkflow, ...]:
        return self._hosted

    async def open_approvals(self) -> MemoryApprovals:
        return self._approvals

    async def open_sessions(self) -> MemorySessions:
        return self._sessions

    async def list_steps(self, run_id: str) -> tuple[StepRecord, ...]:
        return tuple(_iterate_records(self._find(run_id)))

    async def list_events(self, run_id: str, *, after: int = 0) -> tuple[RunEvent, ...]:
        run = self._find(run_id)
        return tuple(event for event in run.events.list_after(after) if run.owns(event))

    async def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[RunEvent]:
        run = self._find(run_id)
        while True:
            changed = run.events.changed
            for event in run.events.list_after(after):
                after = event.seq
                if run.owns(event):
                    yield event
                # A resumed run has an older end in its log: only the newest one ends the stream.
                if run.ended.is_set() and after >= run.finished_seq:
                    return
            if run.ended.is_set() and after >= run.finished_seq:
                return
            await changed.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel every unfinished run and wait until it has stopped."""
        for run in list(self._runs.values()):
            if run.record.parent_id is None:
                await self._stop(run)

    def _find(self, run_id: str) -> Run:
        if run_id not in self._runs:
            raise UnknownRunError(run_id)
        return self._runs[run_id]

    def _start(self, request: RunRequest, run_id: str, parent: Run | None) -> Run:
        known = self._runs.get(run_id)
        if known is not None:
            if not known.record.request.is_same(request):
                raise RunConflictError(run_id)
            return known
        record = RunRecord(
            id=run_id,
            request=request,
            status="running",
            started_at=self._services.clock(),
            parent_id=None if parent is None else parent.record.id,
        )
        run = Run(
            record=record,
            events=EventLog() if parent is None else parent.events,
            root=None if parent is None else parent.root,
            size_limit=self._run_bytes,
        )
        if parent is None:
            run.size.add("the request of the run", request.to_json())
        if parent is not None:
            parent.children.append(run)
        self._runs[run_id] = run
        self._launch(run, "run_started")
        self._forget_oldest()
        return run

    def _resume(self, run: Run) -> None:
        if run.record.is_half_undone:
            run.undo_requests += 1
        elif run.record.status != "cancelled":
            return
        self._reopen(run)

    def _reopen(self, run: Run) -> None:
        run.record = replace(run.record, status="running", finished_at=None, fault=None)
        run.ended.clear()
        run.stopping = False
        self._launch(run, "run_resumed")

    def _launch(self, run: Run, kind: Any) -> None:
        run.emit(kind, "", self._services.clock(), {"name": run.record.request.name})
        driving = self._drive(run, resumed=kind == "run_resumed")
        run.task = asyncio.create_task(driving, name=f"run {run.record.id}")

    async def _drive(self, run: Run, *, resumed: bool) -> None:
        """Run the body and record how it ended; raises nothing, not even when cancelled."""
        interrupts = self._interrupts and run.root is run
        context = MemoryContext(run, self._services, resumed=resumed, interrupts=interrupts)
        status: RunStatus = "failed"
        value: Any = None
        fault: Fault | None = None
        try:
            value = await self._body(context, run.record.request)
            value = copy_json(value, f"run {run.record.id}")
            run.size.add(f"the output of run {run.record.id}", value)
            status = "done"
        except asyncio.CancelledError:
            status = "cancelled"
        except RetinueError as error:
            fault = Fault.from_error(error)
        except Exception as error:  # noqa: BLE001  # whatever a body raises ends its run, never this process
            fault = Fault(type="internal_error", message=f"{type(error).__name__}: {error}")
        if (broken := context.rules.describe_broken()) is not None:
            # Even if the body caught the error: its result cannot be replayed.
            status, fault = "failed", broken
            context.record_usage(None)
        run.stopping = True  # a later cancellation has no effect
        for child in run.children:
            await self._stop(child)
        if status == "cancelled":
            self._close(run, status)
        else:
            self._close(run, status, value if status == "done" else None, fault, context.calls, context.usage)

    def _close(
        self,
        run: Run,
        status: RunStatus,
        value: Any = None,
        fault: Fault | None = None,
        calls: int | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> None:
        now = self._services.clock()
        run.record = replace(
            run.record,
            status=status,
            value=value,
            fault=fault,
            finished_at=now,
            calls=calls,
            usage=usage,
        )
        run.ended.set()
        facts = {"status": status} | ({} if fault is None else {"error": as_json(fault)})
        run.finished_seq = run.emit("run_finished", "", now, facts)

    async def _stop(self, run: Run) -> None:
        """Cancel an unfinished run and wait until it has ended."""
        if run.record.status != "running" or run.task is None:
            return
        if not run.stopping:
            run.stopping = True
            run.task.cancel()
        await asyncio.wait([run.task])
        if not run.ended.is_set():
            # Cancelled before its task first ran: the task could not record the end.
            self._close(run, "cancelled")

    def _forget_oldest(self) -> None:
        ended = [
            run
            for run in self._runs.values()
            if run.root is run and run.record.status != "running" and not run.record.is_half_undone
        ]
        for old in ended[: max(0, len(ended) - self._kept)]:
            for run_id in [i for i, r in self._runs.items() if r.root is old]:
                del self._runs[run_id]


def _iterate_records(run: Run) -> Iterator[StepRecord]:
    for entry in run.journal:
        if entry is not None and entry.kind in ("step", "receive"):
            outcome = read_json(StepOutcome, orjson.loads(entry.outcome))
            yield StepRecord(run.record.id, run.name_step(entry.path), outcome)
    for child in run.children:
        yield from _iterate_records(child)


def _is_within(path: str, step: str) -> bool:
    """Whether a durable call belongs to a step: the step itself, its choice, a retry, a nested step."""
    return path == step or (path.startswith(step) and path[len(step)] in "/@.#")


def _list_steps(run: Run) -> tuple[str, ...]:
    paths = [entry.path for entry in run.journal if entry is not None and entry.kind != PATCHED]
    return tuple(dict.fromkeys(re.split(r"[/@.#]", path)[0] for path in paths))


class MemorySessions:
    """Sessions of steps ``think`` that live as long as their process; no deletion of runs reaches them."""

    def __init__(self) -> None:
        self._histories: dict[str, Mapping[str, Any]] = {}

    async def find(self, key: str) -> Mapping[str, Any] | None:
        return self._histories.get(key)

    async def change(self, key: str, root: str, change: Change) -> None:
        self._histories[key] = change(self._histories.get(key))
