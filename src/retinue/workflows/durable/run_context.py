"""The RunContext of durable runs: each durable call is a step of the engine, named by its path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar, TypeVarTuple

import orjson

from retinue.core.errors import StateError, TooLargeError, UnknownRunError
from retinue.core.json_values import copy_json
from retinue.mesh.channel import LogLevel
from retinue.workflows.durable.dbos_engine import (
    RUN,
    ReplayError,
    Reservation,
    RunLetGoError,
    RunPassedOnError,
    pass_patches,
    reserve_step,
    run_step,
    take_child,
    take_patch,
    taken_over,
)
from retinue.workflows.durable.events import EventSink
from retinue.workflows.durable.nodes import Lease
from retinue.workflows.durable.recorded_calls import PATCHED, RecordedCalls
from retinue.workflows.durable.run_rows import CALLS, read_ended, stored_ended
from retinue.workflows.durable.tables.signals import SignalTable
from retinue.workflows.durable.tables.stored_once import is_large
from retinue.workflows.runs.hosting import RunCode
from retinue.workflows.runs.ports import Effect, Mark, StepCall, StepCount, WaitMode
from retinue.workflows.runs.records import (
    ChildOutcome,
    ChildRun,
    Extension,
    Fault,
    RunRecord,
    RunRequest,
    StepOutcome,
    read_json,
)
from retinue.workflows.runs.replay_rules import (
    Contest,
    ReplayRules,
    RunLog,
    RunSize,
    nobody_answered,
    run_all,
    run_effect,
)

_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")

SHORT_SLEEP_S = 1.0
"""A sleep of up to this long starts again after a crash; of longer ones the end is recorded first."""

CLOCK_LOOK_S = 15.0
"""The interval at which a timer reads the clock."""


class RunServices(Protocol):
    """The services of the process that executes a run, for its context (`Executions`)."""

    lease: Lease
    signals: SignalTable

    async def start_child(self, child_id: str, request: RunRequest, root: str) -> str: ...

    async def await_children(
        self, ids: Sequence[str], given_up: set[str], mode: WaitMode
    ) -> list[RunRecord]: ...

    async def is_stored(self, run_id: str) -> bool: ...

    async def hold_artifacts(self, root: str, digests: Collection[str]) -> None: ...

    async def stop(self, ids: Sequence[str]) -> None: ...

    def agent_wait_of(self, root: str) -> float: ...

    async def still_owns(self, run_id: str, owner: str | None) -> bool: ...

    async def count_undo_requests(self, run_id: str) -> int: ...

    async def list_extensions(self, run_id: str) -> Sequence[Extension]: ...

    async def await_host(self, code: RunCode) -> str: ...

    async def find_mark(self, run_id: str, call: str) -> Mark | None: ...

    async def compute(self, function: Callable[[*_Args], _T], *arguments: *_Args) -> _T: ...


class StepPlace:
    """The place that the step of a run occupies among ``places``, None for unlimited ones.

    A context manager around the step, within which the place may be given back and taken again.
    """

    def __init__(self, places: asyncio.Semaphore | None) -> None:
        self._places = places
        self._is_taken = False

    async def take(self) -> None:
        if self._places is not None:
            await self._places.acquire()
            self._is_taken = True

    def give_back(self) -> None:
        """Let another step use the place; nothing if it was given back, by a step that was cut off."""
        if self._places is not None and self._is_taken:
            self._is_taken = False
            self._places.release()

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(self, *exc_info: object) -> None:
        self.give_back()


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of a durable call, and the count of its outcome."""

    act: Callable[[], Awaitable[StepOutcome]]
    count: StepCount | None = None


class DurableContext:
    """A RunContext; ``rules.task`` is the body's own task. Each step occupies one of the node's ``places``.

    ``places`` is None where steps occupy none. ``owner`` is the token of the execution, ``epoch`` the one of
    the lease that it began in. ``resumed`` = the run stopped before, possibly in the middle of a call.
    ``calls`` and ``usage`` are what the body reported, ``outcomes`` the values of its steps by path,
    ``waits`` what its waits gave by the call's name. ``size`` is that of the outermost run. ``recorded`` are
    the calls of a run that is taken up.
    """

    def __init__(
        self,
        run_id: str,
        root: str,
        owner: str | None,
        epoch: int,
        events: EventSink,
        services: RunServices,
        places: asyncio.Semaphore | None,
        size: RunSize,
        *,
        resumed: bool = False,
        recorded: RecordedCalls | None = None,
    ) -> None:
        self.calls: int | None = None
        self.usage: Mapping[str, Any] | None = None
        self.outcomes: dict[str, Any] = {}
        self.waits: dict[str, Any] = {}
        self.rules = ReplayRules(run_id)
        self.open_children: set[str] = set()
        self._run_id = run_id
        self._root = root
        self._owner = owner
        self._epoch = epoch
        self._events = events
        self._services = services
        self._places = places
        self._place = StepPlace(places)
        self._places_held: dict[asyncio.Task[Any] | None, StepPlace] = {}
        self._size = size
        self._given_up: set[str] = set()
        self._may_repeat = resumed
        self._recorded = recorded
        self._log = RunLog()

    @property
    def run_id(self) -> str:
        return self._run_id

    @property
    def agent_wait_s(self) -> float:
        return self._services.agent_wait_of(self._root)

    async def pause(self, seconds: float) -> None:
        place = self._places_held.get(asyncio.current_task(), self._place)
        place.give_back()
        await asyncio.sleep(seconds)
        await place.take()

    async def pass_on(self, code: RunCode) -> NoReturn:
        raise RunPassedOnError(await self._services.await_host(code))

    async def count_undo_requests(self) -> int:
        try:
            return await self._services.count_undo_requests(self._run_id)
        except StateError as error:
            raise RunLetGoError(error.message) from error

    async def list_extensions(self) -> Sequence[Extension]:
        try:
            return await self._services.list_extensions(self._run_id)
        except StateError as error:
            raise RunLetGoError(error.message) from error

    def record_usage(self, calls: int | None, usage: Mapping[str, Any] | None = None) -> None:
        self.calls, self.usage = calls, usage

    async def log(self, message: str, level: LogLevel, data: Mapping[str, Any] | None) -> None:
        self.rules.check_task("a line of the log")
        line = self._log.add(message, level, data)
        if line is None or line[0] in self._events.emitted.once:
            return
        if not self._events.repairs and self._recorded is not None and await self._recorded.has_more():
            return  # the line of a call that a fork kept
        once, facts = line
        with suppress(TooLargeError):
            self._size.add("a line of the log", facts)
            self._events.emit("log", "", facts, once)

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
        with self.rules.take(path):
            work = _Work(partial(run_effect, path, effect, timeout_s, count), count)
            outcome = await self._do_seen(path, path, work, facts, self._place, mark)
        self.outcomes[path] = outcome.value
        return outcome

    async def patched(self, change: str) -> bool:
        path = f"{PATCHED} {change}"
        with self.rules.take(path):
            try:
                return await take_patch(change, self._recorded)
            except ReplayError as error:
                raise self._refuse_replay(path, error) from None

    async def together(
        self, calls: Sequence[StepCall], *, limit: int | None = None, enough: int | None = None
    ) -> tuple[StepOutcome, ...]:
        gate, contest = asyncio.Semaphore(limit or max(1, len(calls))), Contest(enough)
        with self.rules.take_all([call.path for call in calls]):
            await pass_patches(self._recorded)
            works = [self._do_together(call, reserve_step(), gate, contest) for call in calls]
            outcomes = await run_all(works)
        self.outcomes |= {call.path: outcome.value for call, outcome in zip(calls, outcomes, strict=True)}
        return tuple(outcomes)

    async def _do_together(
        self, call: StepCall, reserved: Reservation, gate: asyncio.Semaphore, contest: Contest
    ) -> StepOutcome:
        task = asyncio.current_task()
        place = self._places_held[task] = StepPlace(self._places)
        act = partial(run_effect, call.path, contest.enter(call), call.timeout_s, call.count)
        work = _Work(act, call.count)
        try:
            outcome = await self._do_seen(
                call.path, call.path, work, call.facts, place, call.mark, reserved, gate
            )
            contest.note(call, outcome)
            return outcome
        finally:
            del self._places_held[task]

    async def child(self, path: str, request: RunRequest) -> ChildRun:
        with self.rules.take(path):
            try:
                child_id = None if self._recorded is None else await take_child(self._recorded)
                child_id = child_id or await self._start_child(path, request)
            except ReplayError as error:
                raise self._refuse_replay(f"child {path}", error) from None
            if not child_id.endswith(f"/{path}"):
                raise self.rules.refuse_replay(f"child {path!r}", repr(child_id))
            self.open_children.add(child_id)
            return ChildRun(child_id, path)

    async def _start_child(self, path: str, request: RunRequest) -> str:
        child_id = f"{self._run_id}/{path}"
        request = RunRequest.from_json(copy_json(request.to_json(), f"the request of run {child_id}"))
        # A child that an earlier execution started is among what the run has stored.
        if not self._may_repeat or not await self._services.is_stored(child_id):
            self._size.add(f"the input of {path}", request.to_json())
            await self._hold_artifacts()
        await self._await_lease()
        return await self._services.start_child(child_id, request, self._root)

    async def wait(
        self, path: str, children: Sequence[ChildRun], mode: WaitMode = "all"
    ) -> tuple[ChildOutcome, ...]:
        ids = [child.run_id for child in children]

        async def await_children() -> Any:
            try:
                ended = await self._services.await_children(ids, self._given_up, mode)
            except UnknownRunError as error:
                return {"unknown": error.run_id}
            rendered = [_render_ended(record) for record in ended]
            stored: dict[str, Any] = {"ended": rendered}
            if is_large(rendered):
                stored = await self._services.compute(stored_ended, rendered)
            self._size.stored += len(orjson.dumps(stored))
            return stored

        with self.rules.take(path):
            recorded = await self._call(f"wait {path}", await_children)
        if "unknown" in recorded:
            raise UnknownRunError(recorded["unknown"])
        recorded = self.waits[f"wait {path}"] = read_ended(recorded)
        by_id = {child.run_id: child for child in children}
        outcomes = tuple(_parse_ended(by_id, item) for item in recorded["ended"])
        self.open_children.difference_update(outcome.child.run_id for outcome in outcomes)
        return outcomes

    async def cancel(self, path: str, children: Sequence[ChildRun]) -> None:
        ids = [child.run_id for child in children]

        async def stop() -> Any:
            await self._services.stop(ids)
            return True

        with self.rules.take(path):
            self._given_up.update(ids)
            await self._call(f"cancel {path}", stop)
            self.open_children.difference_update(ids)

    async def sleep(self, path: str, seconds: float) -> None:
        async def sleep() -> Any:
            # a clock that was set back since must not make it longer
            await asyncio.sleep(min(seconds, max(0.0, until - time.time())))
            return True

        with self.rules.take(path):
            until = time.time() + seconds
            if seconds > SHORT_SLEEP_S:
                until = await self._record_end(path, seconds)
            await self._call(f"sleep {path}", sleep)

    async def wait_until(
        self,
        path: str,
        until: float,
        *,
        at_most_s: float,
        facts: Mapping[str, Any] | None = None,
        mark: Mark | None = None,
    ) -> None:
        async def wait() -> StepOutcome:
            began = time.monotonic()
            while True:
                left_s = min(until - time.time(), began + at_most_s - time.monotonic())
                if left_s <= 0:
                    return StepOutcome()
                # the clock may be set meanwhile, and the machine may sleep
                await asyncio.sleep(min(left_s, CLOCK_LOOK_S))

        with self.rules.take(path):
            await self._do_seen(f"sleep {path}", path, _Work(wait), facts, nullcontext(), mark)

    async def receive(
        self,
        path: str,
        topic: str,
        timeout_s: float,
        *,
        facts: Mapping[str, Any] | None = None,
        mark: Mark | None = None,
    ) -> StepOutcome:
        async def take() -> StepOutcome:
            receiver = f"{self._run_id} {path}"
            try:
                left_s = min(timeout_s, until - time.time())
                value = await self._services.signals.take(self._run_id, topic, receiver, left_s)
            except TimeoutError:
                return StepOutcome(fault=Fault.from_error(nobody_answered(path, topic, timeout_s)))
            return StepOutcome(value)

        with self.rules.take(path):
            until = await self._record_end(path, timeout_s)
            return await self._do_seen(f"receive {path}", path, _Work(take), facts, nullcontext(), mark)

    async def _record_end(self, path: str, seconds: float) -> float:
        async def read_clock() -> Any:
            return time.time() + seconds

        return float(await self._call(f"until {path}", read_clock))

    async def _do_seen(
        self,
        name: str,
        path: str,
        work: _Work,
        known_facts: Mapping[str, Any] | None,
        place: AbstractAsyncContextManager[None],
        mark: Mark | None = None,
        reserved: Reservation | None = None,
        gate: AbstractAsyncContextManager[None] | None = None,
    ) -> StepOutcome:
        """Act, record the outcome, and emit both events; for a recorded call, those not emitted yet.

        A call that is made with others has its number ``reserved``, and waits for the ``gate`` to act.
        """
        facts = dict(copy_json(dict(known_facts or {}), f"the facts of step {path}"))
        acted, may_repeat = False, self._may_repeat

        async def act_seen() -> Any:
            nonlocal acted
            async with gate or nullcontext(), place:
                acted = True
                await self._await_lease()
                began = time.perf_counter()
                try:
                    self._size.add(f"the input of step {path}", facts)
                except TooLargeError as error:
                    facts.pop("input", None)
                    self._events.emit("step_started", path, facts)
                    outcome = StepOutcome(fault=Fault.from_error(error), calls=0)
                else:
                    await self._begin(path, facts, work.count)
                    outcome = self._size.add_outcome(path, await work.act())
                # before the outcome is recorded, so that no link of a run leads nowhere
                await self._hold_artifacts()
            if may_repeat:
                outcome = replace(outcome, calls=None, is_repeated=True)
            outcome = replace(outcome, ms=round((time.perf_counter() - began) * 1000, 3))
            stored = outcome.to_json()
            return stored if mark is None else stored | {"mark": mark.to_json()}

        recorded = await self._call(name, act_seen, mark, reserved)
        if not acted:
            self.rules.check_mark(path, mark, Mark.find(recorded))
        once = f"done {path}"
        if acted or not self._events.was_emitted(once):
            finished = {key: value for key, value in facts.items() if key != "input"}
            finished["duration_ms"] = recorded["ms"]
            if recorded["fault"] is not None:
                finished["error"] = recorded["fault"]
            self._events.emit("step_finished", path, finished, once)
        outcome = read_json(StepOutcome, recorded)
        if work.count is not None:
            work.count.close(outcome)
        return outcome

    async def _begin(self, path: str, facts: Mapping[str, Any], count: StepCount | None) -> None:
        """Emit that a step begins; before one that counts its attempts, the event is stored."""
        if count is None or count.begin is None:
            self._events.emit("step_started", path, facts)
            return
        number = 1
        while (once := f"begun {path} {number}") in self._events.emitted.once:
            number += 1
        self._events.emit("step_started", path, facts, once)
        try:
            await self._events.flush()
        except StateError as error:
            raise RunLetGoError(error.message) from error
        count.begin(number - 1)

    async def _call(
        self,
        name: str,
        act: Callable[[], Awaitable[Any]],
        mark: Mark | None = None,
        reserved: Reservation | None = None,
    ) -> Any:
        """One durable call; gives the value with which it ended first."""

        async def do_again() -> Any:
            try:
                return await act()
            finally:
                self._may_repeat = False

        try:
            return await run_step(name, do_again if self._may_repeat else act, reserved, self._recorded)
        except ReplayError as error:
            recorded = None
            if mark is not None and error.recorded is not None:
                recorded = await self._services.find_mark(self._run_id, error.recorded)
            raise self._refuse_replay(name, error, mark, recorded) from None

    async def _hold_artifacts(self) -> None:
        if digests := self._size.take_links():
            try:
                await self._services.hold_artifacts(self._root, digests)
            except StateError as error:
                raise RunLetGoError(error.message) from error

    async def _await_lease(self) -> None:
        """Wait for the lease of this node; if it was lost, check that the run is still this execution's."""
        epoch = await self._services.lease.hold()
        if epoch != self._epoch:
            try:
                mine = await self._services.still_owns(self._run_id, self._owner)
            except StateError as error:
                raise RunLetGoError(error.message) from error
            if not mine:
                raise taken_over(self._run_id)
            self._epoch = epoch

    def _refuse_replay(
        self, asked: str, error: ReplayError, mark: Mark | None = None, recorded: Mark | None = None
    ) -> Exception:
        if error.recorded is None:
            return self.rules.refuse(f"{asked}: {error}")
        return self.rules.refuse_replay(_describe(asked), _describe(error.recorded), mark, recorded)


def _describe(name: str) -> str:
    if name == RUN:
        return "a child"
    call, space, path = name.partition(" ")
    return f"{call} {path!r}" if space and call in (*CALLS, "child") else f"step {name!r}"


def _render_ended(record: RunRecord) -> dict[str, Any]:
    took_s = 0.0 if record.finished_at is None else record.finished_at - record.started_at
    outcome = StepOutcome(record.value, record.fault, record.calls, record.usage).to_json()
    return outcome | {"run_id": record.id, "status": record.status, "ms": round(took_s * 1000, 3)}


def _parse_ended(children: Mapping[str, ChildRun], item: Mapping[str, Any]) -> ChildOutcome:
    outcome = read_json(StepOutcome, item)
    child = children[item["run_id"]]
    return ChildOutcome(
        child, item["status"], outcome.value, outcome.fault, item["ms"], outcome.calls, outcome.usage
    )
