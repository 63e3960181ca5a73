"""A RunContext in memory: one run, with its journal, its signals and its events."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NoReturn

import orjson

from retinue.core.errors import TooLargeError
from retinue.core.json_values import copy_json, encode_json
from retinue.mesh.channel import LogLevel
from retinue.workflows.runs.hosting import RunCode
from retinue.workflows.runs.ports import Effect, Mark, StepCall, StepCount, WaitMode
from retinue.workflows.runs.records import (
    ChildOutcome,
    ChildRun,
    EventKind,
    Extension,
    Fault,
    RunEvent,
    RunRecord,
    RunRequest,
    StepOutcome,
    as_json,
    read_json,
)
from retinue.workflows.runs.replay_rules import (
    MAX_RUN_BYTES,
    Contest,
    ReplayRules,
    RunLog,
    RunSize,
    nobody_answered,
    run_all,
    run_effect,
)

PATCHED = "patched"
"""The kind of an entry of the journal that records a change of the code."""

_SLACK_S = 1.0
"""The time limit of an effect that waits for a signal ends this much after that of the wait."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A finished durable call of a run's journal; ``outcome`` is JSON text."""

    kind: str
    path: str
    outcome: bytes
    mark: Mark | None = None


class EventLog:
    """An append-only list of events; `changed` tells of the next one."""

    def __init__(self) -> None:
        self._events: list[RunEvent] = []
        self.changed = asyncio.Event()
        """Set by the next event."""

    def append(self, kind: EventKind, run_id: str, step: str, at: float, facts: Mapping[str, Any]) -> int:
        """Add an event; returns its sequence number, counted from 1."""
        self._events.append(RunEvent(len(self._events) + 1, kind, run_id, step, at, facts))
        # Present waiters hold the old asyncio.Event; later ones wait for the new one.
        self.changed.set()
        self.changed = asyncio.Event()
        return len(self._events)

    def list_after(self, seq: int) -> tuple[RunEvent, ...]:
        return tuple(self._events[seq:])


class Run:
    """A run with its journal, children, signals and events; ``root`` is the outermost run.

    The journal has None where one of several calls that were made together has not ended.
    """

    def __init__(
        self,
        *,
        record: RunRecord,
        events: EventLog,
        root: Run | None = None,
        journal: list[JournalEntry | None] | None = None,
        size_limit: int = MAX_RUN_BYTES,
    ) -> None:
        self.record = record
        self.events = events
        self.root = root or self
        self.size: RunSize = root.size if root is not None else RunSize(size_limit)
        self.journal = journal or []
        self.kept = len(self.journal)
        """How many durable calls were another run's."""
        self.logged: set[str] = set()
        """The keys of the lines of its log."""
        self.children: list[Run] = []
        self.ended = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.stopping = False
        self.finished_seq = 0
        self.undo_requests = 0
        self.attempts: Counter[str] = Counter()
        """By the path of a step that counts them."""
        self.extensions: list[Extension] = []
        self._signals: dict[str, deque[Any]] = defaultdict(deque)
        self._signalled = asyncio.Event()

    def owns(self, event: RunEvent) -> bool:
        """Whether an event belongs to this run or to one of its descendants."""
        return event.run_id == self.record.id or event.run_id.startswith(f"{self.record.id}/")

    def name_step(self, path: str) -> str:
        """The path of a step of this run, relative to the outermost run."""
        below = self.record.id[len(self.root.record.id) :].lstrip("/")
        return "/".join(part for part in (below, path) if part)

    def emit(self, kind: EventKind, path: str, at: float, facts: Mapping[str, Any]) -> int:
        return self.events.append(kind, self.record.id, self.name_step(path), at, facts)

    def put_signal(self, topic: str, value: Any) -> None:
        self._signals[topic].append(value)
        self._signalled.set()

    def count_signals(self, topic: str) -> int:
        return len(self._signals[topic])

    async def take_signal(self, topic: str) -> Any:
        while not self._signals[topic]:
            self._signalled.clear()
            await self._signalled.wait()
        return self._signals[topic].popleft()


@dataclass(frozen=True, slots=True)
class Services:
    """The services of the MemoryRuns to which a MemoryContext belongs."""

    sleep: Callable[[float], Awaitable[None]]
    clock: Callable[[], float]
    find: Callable[[str], Run]
    start: Callable[[RunRequest, str, Run | None], Run]
    resume: Callable[[Run], None]
    stop: Callable[[Run], Awaitable[None]]


class MemoryContext:
    """The RunContext of one execution of a run. ``rules`` tell what fails a run that broke one.

    ``calls`` and ``usage`` are what the body reported; ``resumed`` = an earlier execution was stopped,
    possibly during a call. With ``interrupts`` the execution is cancelled after each call that it records.
    """

    def __init__(
        self, run: Run, services: Services, *, resumed: bool = False, interrupts: bool = False
    ) -> None:
        self.calls: int | None = None
        self.usage: Mapping[str, Any] | None = None
        self._run = run
        self._services = services
        self.rules = ReplayRules(run.record.id)
        self._position = 0
        self._log = RunLog()
        self._given_up: set[str] = set()
        self._may_repeat = resumed
        self._interrupts = interrupts
        self._has_recorded = False

    @property
    def run_id(self) -> str:
        return self._run.record.id

    @property
    def agent_wait_s(self) -> float:
        """Always 0: no agents stop together with a run in memory."""
        return 0.0

    async def pause(self, seconds: float) -> None:
        await self._services.sleep(seconds)

    async def pass_on(self, code: RunCode) -> NoReturn:
        """Waits until the run is cancelled: there is no other node."""
        await asyncio.Event().wait()
        raise AssertionError("an event that nobody sets was set")

    async def count_undo_requests(self) -> int:
        return self._run.undo_requests

    async def list_extensions(self) -> Sequence[Extension]:
        return tuple(self._run.extensions)

    def record_usage(self, calls: int | None, usage: Mapping[str, Any] | None = None) -> None:
        self.calls, self.usage = calls, usage

    async def log(self, message: str, level: LogLevel, data: Mapping[str, Any] | None) -> None:
        self.rules.check_task("a line of the log")
        line = self._log.add(message, level, data)
        is_kept = self._position < self._run.kept  # the line of a call that a fork kept
        if line is not None and line[0] not in self._run.logged and not is_kept:
            self._run.logged.add(line[0])
            with suppress(TooLargeError):
                self._run.size.add("a line of the log", line[1])
                self._emit("log", "", line[1])

    async def step(
        self,
        path: str,
        effect: Effect,
        *,
        timeout_s: float,
        facts: Mapping[str, Any] | None = None,
        count: StepCount | None = None,
        mark: Mark | None = None,
    ) -> StepOutcome:
        with self._take(path):
            recorded = self._replay("step", path, mark)
            if recorded is not None:
                outcome = read_json(StepOutcome, recorded)
            else:
                outcome = await self._run_seen("step", path, effect, timeout_s, facts, count, mark)
            if count is not None:
                count.close(outcome)
            return outcome

    async def patched(self, change: str) -> bool:
        with self.rules.take(f"{PATCHED} {change}"):
            journal, end = self._run.journal, self._find_end_of_patches()
            if any(entry is not None and entry.path == change for entry in journal[self._position : end]):
                return True
            if end < len(journal):
                return False
            self._position, may_repeat = end, self._may_repeat
            self._record(PATCHED, change, True)
            self._may_repeat = may_repeat
        self._interrupt()
        return True

    async def together(
        self, calls: Sequence[StepCall], *, limit: int | None = None, enough: int | None = None
    ) -> tuple[StepOutcome, ...]:
        gate, contest = asyncio.Semaphore(limit or max(1, len(calls))), Contest(enough)
        with self._take(*(call.path for call in calls)):
            begin, may_repeat = self._position, self._may_repeat
            journal = self._run.journal
            journal += [None] * (begin + len(calls) - len(journal))

            async def run(call: StepCall, place: int) -> StepOutcome:
                recorded = self._read(place, "step", call.path, call.mark)
                if recorded is not None:
                    outcome = read_json(StepOutcome, recorded)
                else:
                    async with gate:
                        outcome = await self._act_seen(
                            call.path,
                            contest.enter(call),
                            call.timeout_s,
                            call.facts,
                            call.count,
                            may_repeat,
                        )
                    self._write(place, "step", call.path, outcome.to_json(), call.mark)
                contest.note(call, outcome)
                if call.count is not None:
                    call.count.close(outcome)
                return outcome

            try:
                outcomes = await run_all([run(call, begin + n) for n, call in enumerate(calls)])
            except BaseException:
                del journal[
                    max((n for n, entry in enumerate(journal) if entry is not None), default=-1) + 1 :
                ]
                raise
            self._position = begin + len(calls)
            return tuple(outcomes)

    async def child(self, path: str, request: RunRequest) -> ChildRun:
        with self._take(path):
            recorded = self._replay("child", path)
            if recorded is not None:
                return ChildRun(recorded["run_id"], path)
            child_id = f"{self.run_id}/{path}"
            request = RunRequest.from_json(copy_json(request.to_json(), f"the request of run {child_id}"))
            self._run.size.add(f"the input of {path}", request.to_json())
            self._services.start(request, child_id, self._run)
            self._record("child", path, {"run_id": child_id})
            return ChildRun(child_id, path)

    async def wait(
        self, path: str, children: Sequence[ChildRun], mode: WaitMode = "all"
    ) -> tuple[ChildOutcome, ...]:
        with self._take(path):
            recorded = self._replay("wait", path)
            if recorded is None:
                runs = [self._services.find(child.run_id) for child in children]
                for run in runs:
                    if run.record.id not in self._given_up:
                        self._services.resume(run)
                ended = await (_wait_first(runs) if mode == "first" else _wait_all(runs))
                recorded = [
                    {"run_id": run.record.id, "status": run.record.status, "duration_ms": _duration_ms(run)}
                    | StepOutcome(
                        run.record.value, run.record.fault, run.record.calls, run.record.usage
                    ).to_json()
                    for run in ended
                ]
                self._run.size.stored += len(orjson.dumps(recorded))
                self._record("wait", path, recorded)
            by_id = {child.run_id: child for child in children}
            return tuple(_read_child_outcome(by_id, item) for item in recorded)

    async def cancel(self, path: str, children: Sequence[ChildRun]) -> None:
        with self._take(path):
            self._given_up.update(child.run_id for child in children)
            if self._replay("cancel", path) is None:
                for child in children:
                    await self._services.stop(self._services.find(child.run_id))
                self._record("cancel", path, True)

    async def sleep(self, path: str, seconds: float) -> None:
        with self._take(path):
            if self._replay("sleep", path) is None:
                await self._services.sleep(seconds)
                self._record("sleep", path, True)

    async def wait_until(
        self,
        path: str,
        until: float,
        *,
        at_most_s: float,
        facts: Mapping[str, Any] | None = None,
        mark: Mark | None = None,
    ) -> None:
        async def wait() -> None:
            left_s = min(until - self._services.clock(), at_most_s)
            if left_s > 0:
                await self._services.sleep(left_s)

        with self._take(path):
            if self._replay("sleep", path, mark) is None:
                await self._run_seen("sleep", path, wait, inf, facts, mark=mark)

    async def receive(
        self,
        path: str,
        topic: str,
        timeout_s: float,
        *,
        facts: Mapping[str, Any] | None = None,
        mark: Mark | None = None,
    ) -> StepOutcome:
        with self._take(path):
            recorded = self._replay("receive", path, mark)
            if recorded is not None:
                return read_json(StepOutcome, recorded)

            async def take() -> Any:
                try:
                    async with asyncio.timeout(timeout_s):
                        return await self._run.take_signal(topic)
                except TimeoutError:
                    raise nobody_answered(path, topic, timeout_s) from None

            return await self._run_seen("receive", path, take, timeout_s + _SLACK_S, facts, mark=mark)

    async def _run_seen(
        self,
        kind: str,
        path: str,
        effect: Effect,
        timeout_s: float,
        known_facts: Mapping[str, Any] | None,
        count: StepCount | None = None,
        mark: Mark | None = None,
    ) -> StepOutcome:
        """Run an effect, record its outcome, and emit an event for its start and its end."""
        outcome = await self._act_seen(path, effect, timeout_s, known_facts, count, self._may_repeat)
        self._record(kind, path, outcome.to_json(), mark)
        return outcome

    async def _act_seen(
        self,
        path: str,
        effect: Effect,
        timeout_s: float,
        known_facts: Mapping[str, Any] | None,
        count: StepCount | None,
        may_repeat: bool,
    ) -> StepOutcome:
        """Run an effect, and emit an event for its start and its end."""
        facts = dict(copy_json(dict(known_facts or {}), f"the facts of step {path}"))
        began = time.perf_counter()
        try:
            self._run.size.add(f"the input of step {path}", facts)
        except TooLargeError as error:
            facts.pop("input", None)
            self._emit("step_started", path, dict(facts))
            outcome = StepOutcome(fault=Fault.from_error(error), calls=0)
        else:
            self._emit("step_started", path, dict(facts))
            if count is not None and count.begin is not None:
                self._run.attempts[path] += 1
                count.begin(self._run.attempts[path] - 1)
            outcome = self._run.size.add_outcome(path, await run_effect(path, effect, timeout_s, count))
        if may_repeat:
            outcome = replace(outcome, calls=None, is_repeated=True)
        outcome = replace(outcome, ms=round((time.perf_counter() - began) * 1000, 3))
        facts.pop("input", None)
        facts["duration_ms"] = outcome.ms
        if outcome.fault is not None:
            facts["error"] = as_json(outcome.fault)
        self._emit("step_finished", path, facts)
        return outcome

    @contextmanager
    def _take(self, *paths: str) -> Iterator[None]:
        """Check durable calls, and cut off the body after them if it is to be interrupted."""
        with self.rules.take_all(paths):
            self._position = self._find_end_of_patches()
            yield
        self._interrupt()

    def _interrupt(self) -> None:
        if self._interrupts and self._has_recorded:
            raise asyncio.CancelledError

    def _find_end_of_patches(self) -> int:
        """The place behind the records of changes that are next in the journal."""
        place, journal = self._position, self._run.journal
        while place < len(journal) and (entry := journal[place]) is not None and entry.kind == PATCHED:
            place += 1
        return place

    def _replay(self, kind: str, path: str, mark: Mark | None = None) -> Any:
        """The recorded outcome of this call; None if the journal has none yet."""
        recorded = self._read(self._position, kind, path, mark)
        if recorded is not None:
            self._position += 1
        return recorded

    def _record(self, kind: str, path: str, outcome: Any, mark: Mark | None = None) -> None:
        self._write(self._position, kind, path, outcome, mark)
        self._position += 1

    def _read(self, place: int, kind: str, path: str, mark: Mark | None) -> Any:
        """The outcome at a place of the journal; None if there is none yet."""
        entry = self._run.journal[place] if place < len(self._run.journal) else None
        if entry is None:
            return None
        if (entry.kind, entry.path) != (kind, path):
            asked, recorded = f"{kind} {path!r}", f"{entry.kind} {entry.path!r}"
            raise self.rules.refuse_replay(asked, recorded, mark, entry.mark)
        self.rules.check_mark(path, mark, entry.mark)
        return orjson.loads(entry.outcome)

    def _write(self, place: int, kind: str, path: str, outcome: Any, mark: Mark | None) -> None:
        """Record an outcome at a place of the journal."""
        journal = self._run.journal
        if place == len(journal):
            journal.append(None)
        journal[place] = JournalEntry(kind, path, encode_json(outcome, f"step {path}"), mark)
        self._may_repeat = False
        self._has_recorded = True

    def _emit(self, kind: Any, path: str, facts: Mapping[str, Any]) -> None:
        self._run.emit(kind, path, self._services.clock(), facts)


async def _wait_all(runs: Sequence[Run]) -> list[Run]:
    for run in runs:
        await run.ended.wait()
    return list(runs)


async def _wait_first(runs: Sequence[Run]) -> list[Run]:
    waiters = [asyncio.create_task(run.ended.wait()) for run in runs]
    try:
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        return [next(run for run, waiter in zip(runs, waiters, strict=True) if waiter.done())]
    finally:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)


def _read_child_outcome(children: Mapping[str, ChildRun], item: Mapping[str, Any]) -> ChildOutcome:
    outcome = read_json(StepOutcome, item)
    child = children[item["run_id"]]
    return ChildOutcome(
        child,
        item["status"],
        outcome.value,
        outcome.fault,
        item["duration_ms"],
        outcome.calls,
        outcome.usage,
    )


def _duration_ms(run: Run) -> float:
    ended_at = run.record.finished_at
    return 0.0 if ended_at is None else round((ended_at - run.record.started_at) * 1000, 3)
