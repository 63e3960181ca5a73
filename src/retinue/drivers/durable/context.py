"""The inside of a durable run: each call is a step of the engine, named by its path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import sqlalchemy as sa
from dbos import DBOS
from dbos import error as dbos_errors

from retinue.core.errors import StateError, UnknownRunError
from retinue.drivers.durable.engine import RUN, describe_mismatch
from retinue.drivers.durable.leases import Lease
from retinue.drivers.durable.signals import SignalTable
from retinue.workflows.json_copies import copy_json
from retinue.workflows.run_records import (
    Child,
    ChildOutcome,
    EventKind,
    Fault,
    RunRecord,
    RunRequest,
    StepOutcome,
)
from retinue.workflows.runs import Count, Effect, WaitMode
from retinue.workflows.turns import Turns, run_effect, step_timed_out

SHORT_SLEEP_S = 1.0
"""A sleep up to here is slept again when its node dies; of a longer one the end is recorded first."""

CALLS = ("wait", "cancel", "sleep", "receive", "until")
"""Durable calls besides steps: recorded as ``<call> <path>``, a step as its path alone."""


class RunLetGoError(BaseException):
    """The database did not answer: this execution stops where it is, and the run is taken up again.

    No Exception, as the engine's own of this kind: neither a body nor a journal must take it for an outcome.
    """


class Surroundings(Protocol):
    """What a context needs of the runs it belongs to."""

    lease: Lease
    signals: SignalTable

    async def start_child(self, child_id: str, request: RunRequest, root: str) -> str: ...

    async def await_children(
        self, ids: Sequence[str], given_up: set[str], mode: WaitMode
    ) -> list[RunRecord]: ...

    async def stop(self, ids: Sequence[str]) -> None: ...

    def patience_of(self, root: str) -> float: ...

    async def still_owns(self, run_id: str, owner: str | None) -> bool: ...


class Voice(Protocol):
    """How a context tells what happens in its run."""

    def tell(self, kind: EventKind, path: str, facts: Mapping[str, Any], once: str | None = None) -> None: ...

    def was_told(self, once: str) -> bool: ...


class DurableContext:
    """A RunContext; made in the body's own task. A step is done in one of the node's ``places``.

    ``calls`` is what the body said that it used; ``resumed`` = it stopped before, maybe amid a call.
    """

    def __init__(
        self,
        run_id: str,
        root: str,
        owner: str | None,
        epoch: int,
        voice: Voice,
        around: Surroundings,
        places: AbstractAsyncContextManager[None],
        *,
        resumed: bool = False,
    ) -> None:
        self.calls: int | None = None
        self.turns = Turns(run_id)
        self.open_children: set[str] = set()
        self._run_id = run_id
        self._root = root
        self._owner = owner
        self._epoch = epoch
        self._voice = voice
        self._around = around
        self._places = places
        self._given_up: set[str] = set()
        self._may_repeat = resumed

    @property
    def run_id(self) -> str:
        return self._run_id

    @property
    def patience_s(self) -> float:
        return self._around.patience_of(self._root)

    def tell_calls(self, calls: int | None) -> None:
        self.calls = calls

    async def step(
        self,
        path: str,
        effect: Effect,
        *,
        timeout_s: float,
        facts: Mapping[str, Any] | None = None,
        count: Count | None = None,
    ) -> StepOutcome:
        with self.turns.take(path):
            act = partial(run_effect, path, effect, timeout_s, count)
            return await self._do_seen(path, path, act, facts, self._places)

    async def child(self, path: str, request: RunRequest) -> Child:
        with self.turns.take(path):
            child_id = f"{self._run_id}/{path}"
            request = RunRequest.from_json(copy_json(request.to_json(), f"the request of run {child_id}"))
            await self._be_allowed()
            try:
                given = await self._around.start_child(child_id, request, self._root)
            except sa.exc.SQLAlchemyError as error:
                raise RunLetGoError(str(error)) from error
            except dbos_errors.DBOSUnexpectedStepError as error:
                raise self._refuse_replay(f"child {path}", error) from None
            if not given.endswith(f"/{path}"):
                raise self.turns.refuse(
                    f"on replay the body asks for child {path!r} where {given!r} was recorded"
                )
            self.open_children.add(given)
            return Child(given, path)

    async def wait(
        self, path: str, children: Sequence[Child], mode: WaitMode = "all"
    ) -> tuple[ChildOutcome, ...]:
        ids = [child.run_id for child in children]

        async def await_children() -> Any:
            try:
                ended = await self._around.await_children(ids, self._given_up, mode)
            except UnknownRunError as error:
                return {"unknown": error.run_id}
            return {"ended": [_render_ended(record) for record in ended]}

        with self.turns.take(path):
            recorded = await self._call(f"wait {path}", await_children)
        if "unknown" in recorded:
            raise UnknownRunError(recorded["unknown"])
        by_id = {child.run_id: child for child in children}
        outcomes = tuple(_parse_ended(by_id, item) for item in recorded["ended"])
        self.open_children.difference_update(outcome.child.run_id for outcome in outcomes)
        return outcomes

    async def cancel(self, path: str, children: Sequence[Child]) -> None:
        ids = [child.run_id for child in children]

        async def stop() -> Any:
            await self._around.stop(ids)
            return True

        with self.turns.take(path):
            self._given_up.update(ids)
            await self._call(f"cancel {path}", stop)
            self.open_children.difference_update(ids)

    async def sleep(self, path: str, seconds: float) -> None:
        async def sleep() -> Any:
            await asyncio.sleep(max(0.0, until - time.time()))
            return True

        with self.turns.take(path):
            until = time.time() + seconds
            if seconds > SHORT_SLEEP_S:
                until = await self._record_end(path, seconds)
            await self._call(f"sleep {path}", sleep)

    async def receive(
        self, path: str, topic: str, timeout_s: float, *, facts: Mapping[str, Any] | None = None
    ) -> StepOutcome:
        async def take() -> StepOutcome:
            receiver = f"{self._run_id} {path}"
            try:
                value = await self._around.signals.take(self._run_id, topic, receiver, until - time.time())
            except TimeoutError:
                return StepOutcome(fault=Fault.from_error(step_timed_out(path, timeout_s)))
            return StepOutcome(value)

        with self.turns.take(path):
            until = await self._record_end(path, timeout_s)
            return await self._do_seen(f"receive {path}", path, take, facts, nullcontext())

    async def _record_end(self, path: str, seconds: float) -> float:
        async def read_clock() -> Any:
            return time.time() + seconds

        return float(await self._call(f"until {path}", read_clock))

    async def _do_seen(
        self,
        name: str,
        path: str,
        act: Callable[[], Awaitable[StepOutcome]],
        given: Mapping[str, Any] | None,
        place: AbstractAsyncContextManager[None],
    ) -> StepOutcome:
        """Act, record the outcome, and tell both; of a recorded call tell only what was not told yet."""
        facts = dict(copy_json(dict(given or {}), f"the facts of step {path}"))
        acted = False

        async def act_seen() -> Any:
            nonlocal acted
            async with place:
                acted = True
                await self._be_allowed()
                self._voice.tell("step_started", path, facts)
                began = time.perf_counter()
                outcome = await act()
            if self._may_repeat:
                outcome = replace(outcome, calls=None)
            return outcome.to_json() | {"ms": round((time.perf_counter() - began) * 1000, 3)}

        recorded = await self._call(name, act_seen)
        once = f"done {path}"
        if acted or not self._voice.was_told(once):
            finished = {key: value for key, value in facts.items() if key != "input"}
            finished["duration_ms"] = recorded["ms"]
            if recorded["fault"] is not None:
                finished["error"] = recorded["fault"]
            self._voice.tell("step_finished", path, finished, once)
        return StepOutcome.from_json(recorded)

    async def _call(self, name: str, act: Callable[[], Awaitable[Any]]) -> Any:
        """One durable call; its value is that of the first time it ended."""

        async def do() -> Any:
            try:
                return await act()
            except StateError as error:
                raise RunLetGoError(error.message) from error
            finally:
                self._may_repeat = False

        try:
            return await DBOS.run_step_async({"name": name}, do)
        except sa.exc.SQLAlchemyError as error:
            raise RunLetGoError(str(error)) from error
        except dbos_errors.DBOSUnexpectedStepError as error:
            raise self._refuse_replay(name, error) from None
        except dbos_errors.DBOSStepNondeterminismError as error:
            raise self.turns.refuse(f"{name}: {error}") from None

    async def _be_allowed(self) -> None:
        """Nothing begins before this node has its lease, and the run if it lost the lease meanwhile."""
        epoch = await self._around.lease.hold()
        if epoch != self._epoch:
            try:
                mine = await self._around.still_owns(self._run_id, self._owner)
            except StateError as error:
                raise RunLetGoError(error.message) from error
            if not mine:
                raise dbos_errors.DBOSWorkflowConflictIDError(self._run_id)
            self._epoch = epoch

    def _refuse_replay(self, asked: str, error: dbos_errors.DBOSUnexpectedStepError) -> Exception:
        _, recorded = describe_mismatch(error)
        return self.turns.refuse(
            f"on replay the body asks for {_describe(asked)} where {_describe(recorded)} was recorded"
        )


def find_path(name: str) -> str:
    """The path of a recorded call that is no child's start."""
    call, space, path = name.partition(" ")
    return path if space and call in CALLS else name


def _describe(name: str) -> str:
    if name == RUN:
        return "a child"
    call, space, path = name.partition(" ")
    return f"{call} {path!r}" if space and call in (*CALLS, "child") else f"step {name!r}"


def _render_ended(record: RunRecord) -> dict[str, Any]:
    took_s = 0.0 if record.finished_at is None else record.finished_at - record.started_at
    outcome = StepOutcome(record.value, record.fault, record.calls).to_json()
    return outcome | {"run_id": record.id, "status": record.status, "ms": round(took_s * 1000, 3)}


def _parse_ended(children: Mapping[str, Child], item: Mapping[str, Any]) -> ChildOutcome:
    outcome = StepOutcome.from_json(item)
    child = children[item["run_id"]]
    return ChildOutcome(child, item["status"], outcome.value, outcome.fault, item["ms"], outcome.calls)
