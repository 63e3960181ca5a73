"""Enforces the rules for the body of a run (see ``ports``), and runs its effects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import orjson

from retinue.core.artifact_links import find_digests
from retinue.core.durations import render_duration
from retinue.core.errors import (
    CallCancelledError,
    CallTimedOutError,
    ExecutionFailedError,
    NondeterminismError,
    RetinueError,
    TooLargeError,
)
from retinue.core.json_values import copy_json
from retinue.mesh.channel import LogLevel
from retinue.mesh.time_limit import TimeLimit
from retinue.workflows.runs.ports import DurableRuleError, Effect, Mark, StepCall, StepCount
from retinue.workflows.runs.records import Fault, StepOutcome

MAX_RUN_BYTES = 64 * 1024 * 1024
"""The storage limit of a run with all its child runs: definitions, inputs, arguments and results, as JSON."""

MAX_LOG_LINES = 10_000
"""The lines that the log of a run keeps; further ones are left out."""

MAX_LOG_CHARACTERS = 4_000
"""The longest message of a line; a longer one is cut."""

MAX_LOG_DATA_BYTES = 16 * 1024
"""The size of the data of a line, as JSON; larger data are left out."""

MAX_REFUSED = 1000
"""How many durable calls of a body are refused after a broken rule, before the body is cancelled."""

_ALWAYS_KEPT_BYTES = 4 * 1024
_IN_LINKS = b"sha256:"
_STEP_LAYER = "workflow step"

_T = TypeVar("_T")


class RunSize:
    """The stored bytes of an outermost run and all runs below it; shared by their contexts.

    A small part always fits: a decision, a failure, the result of a compensation.
    """

    def __init__(self, limit: int = MAX_RUN_BYTES, stored: int = 0) -> None:
        self.stored = stored
        self._limit = limit
        self._links: set[str] = set()

    @classmethod
    def of(cls, request: Any, limit: int) -> RunSize:
        """The size of a run that has stored its request alone."""
        encoded = orjson.dumps(request)
        size = cls(limit, len(encoded))
        if _IN_LINKS in encoded:
            size._links.update(find_digests(encoded))
        return size

    def take_links(self) -> frozenset[str]:
        """The digests of the artifacts whose links were counted since the last time."""
        if not self._links:
            return frozenset()
        links, self._links = frozenset(self._links), set()
        return links

    def add(self, what: str, value: Any) -> int:
        """Count a JSON value that is about to be stored; returns its bytes.

        Raises TooLargeError where it does not fit.
        """
        encoded = orjson.dumps(value)
        size = len(encoded)
        if _IN_LINKS in encoded:
            self._links |= find_digests(encoded)
        if size > _ALWAYS_KEPT_BYTES and self.stored + size > self._limit:
            raise TooLargeError(
                f"{what}, {size:,} bytes after {self.stored:,} that the run has stored,",
                self._limit,
                remedy="pass references to large data between skills, or do the work in several runs",
            )
        self.stored += size
        return size

    def replace(self, counted: Any, stored: Any) -> None:
        """Count a JSON value that replaces a counted value."""
        self.stored += len(orjson.dumps(stored)) - len(orjson.dumps(counted))

    def add_outcome(self, path: str, outcome: StepOutcome) -> StepOutcome:
        """Count the outcome of a step; gives it, or the fault to store when it is too large."""
        try:
            self.add(f"the result of step {path}", outcome.to_json())
        except TooLargeError as error:
            return StepOutcome(fault=Fault.from_error(error), calls=outcome.calls, usage=outcome.spent)
        return outcome


BrokenRule = DurableRuleError | NondeterminismError
"""What a body raises that breaks a rule of the port."""


class RunLog:
    """The lines that one execution of a body adds to the log of its run, numbered in their order."""

    def __init__(self) -> None:
        self._lines = 0

    def add(
        self, message: str, level: LogLevel, data: Mapping[str, Any] | None
    ) -> tuple[str, dict[str, Any]] | None:
        """The key of the next line, which is the same on each replay, and its facts.

        None for a line that is one too many.
        """
        self._lines += 1
        if self._lines > MAX_LOG_LINES:
            return None
        if self._lines == MAX_LOG_LINES:
            message, level, data = "further lines are left out", "warning", None
        cut = message if len(message) <= MAX_LOG_CHARACTERS else f"{message[: MAX_LOG_CHARACTERS - 1]}…"
        facts: dict[str, Any] = {"level": level, "message": cut}
        if data:
            data_copy = copy_json(dict(data), "the data of run.log")
            size = len(orjson.dumps(data_copy))
            facts["data"] = data_copy if size <= MAX_LOG_DATA_BYTES else {"omitted": f"{size:,} bytes"}
        return f"log {self._lines}", facts


class ReplayRules:
    """Checks the order of a body's durable calls.

    ``task`` is the body's own one, by default the task that creates the rules. ``broken_rule`` is the first
    violation, which fails the run.
    """

    def __init__(self, run_id: str) -> None:
        self.broken_rule: BrokenRule | None = None
        self._run_id = run_id
        self.task = asyncio.current_task()
        self._path: str | None = None
        self._used: set[str] = set()
        self._refused = 0

    @contextmanager
    def take(self, path: str) -> Iterator[None]:
        """Check one durable call and hold the turn until it ends; raises DurableRuleError.

        After another call than the recorded one it raises NondeterminismError.
        """
        with self.take_all((path,)):
            yield

    @contextmanager
    def take_all(self, paths: Sequence[str]) -> Iterator[None]:
        """Check durable calls that are made together; as `take`.

        After a broken rule each call raises it again, because an effect of it could not be replayed. A body
        that catches it without end is cancelled, as it would hold up the event loop for ever.
        """
        if self.broken_rule is not None:
            self._refused += 1
            if self._refused > MAX_REFUSED:
                raise asyncio.CancelledError(str(self.broken_rule))
            raise self.broken_rule.with_traceback(None)
        for path in paths:
            if asyncio.current_task() is not self.task:
                raise self.refuse(
                    f"durable call {path!r} comes from a task other than the body's: "
                    "use child runs, or in Python run.gather in place of asyncio.gather"
                )
            if self._path is not None:
                raise self.refuse(f"durable call {path!r} while {self._path!r} is in flight: use child runs")
            if path in self._used:
                raise self.refuse(f"path {path!r} is used twice in run {self._run_id}")
            self._used.add(path)
        self._path = paths[0] if paths else None
        try:
            yield
        finally:
            self._path = None

    def check_task(self, what: str) -> None:
        """Check that the body's own task does something; raises DurableRuleError."""
        if asyncio.current_task() is not self.task:
            raise self.refuse(f"{what} comes from a task other than the body's")

    def check_mark(self, path: str, mark: Mark | None, recorded: Mark | None) -> None:
        """Check that a recorded call was made with what the body asks for now; raises NondeterminismError."""
        if mark is not None and recorded is not None and mark.digest != recorded.digest:
            step = f"step {path!r}"
            raise self.refuse_replay(step, step, mark, recorded)

    def refuse(self, problem: str) -> DurableRuleError:
        """Record a violation; returns the error to raise."""
        error = DurableRuleError(problem)
        self.broken_rule = self.broken_rule or error
        return error

    def refuse_replay(
        self, asked: str, recorded: str, mark: Mark | None = None, recorded_mark: Mark | None = None
    ) -> NondeterminismError:
        """Record that another call is asked for than the recorded one; returns the error to raise."""
        error = NondeterminismError(
            asked,
            recorded,
            place="" if mark is None else mark.place,
            recorded_place="" if recorded_mark is None else recorded_mark.place,
        )
        self.broken_rule = self.broken_rule or error
        return error

    def describe_broken(self) -> Fault | None:
        """The fault of a run whose body broke a rule; None where it broke none."""
        if self.broken_rule is None:
            return None
        if isinstance(self.broken_rule, NondeterminismError):
            return Fault.from_error(self.broken_rule)
        return Fault(type="durable_rule", message=str(self.broken_rule))


async def run_all(works: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run works in tasks of their own, begun in order; returns their results in order.

    Where one raises, or this task is cancelled, all are cancelled and awaited. The first one that raised
    tells the error, which may be a BaseException.
    """
    tasks = [asyncio.create_task(work) for work in works]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return [task.result() for task in tasks]


class Contest:
    """Cuts off the effects of calls that are made together, once ``enough`` of them have succeeded."""

    def __init__(self, enough: int | None) -> None:
        self._left = enough
        self._running: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()

    def enter(self, call: StepCall) -> Callable[[], Awaitable[Any]]:
        """The effect of a call, which may be cut off; runs in a task of its own."""
        return call.effect if self._left is None else lambda: self._run(call)

    def note(self, call: StepCall, outcome: StepOutcome) -> None:
        """Count the outcome of a call, made now or recorded before."""
        if self._left is None or not call.decides or outcome.fault is not None:
            return
        self._left -= 1
        if self._left <= 0:
            for task in self._running - self._cut:
                self._cut.add(task)
                task.cancel()

    async def _run(self, call: StepCall) -> Any:
        task = asyncio.current_task()
        assert task is not None
        if self._left is not None and self._left <= 0:
            raise CallCancelledError(f"step {call.path}")
        self._running.add(task)
        try:
            value = await call.effect()
        except asyncio.CancelledError:
            # not where the run is cancelled as well
            if task not in self._cut or task.uncancel() > 0:
                raise
            raise CallCancelledError(f"step {call.path}") from None
        finally:
            self._running.discard(task)
        if task in self._cut:
            task.uncancel()  # it came to its end nevertheless
        return value


async def run_effect(
    path: str, effect: Effect, timeout_s: float, count: StepCount | None = None
) -> StepOutcome:
    """Run an effect and return its outcome; raises only if the task that runs it is cancelled."""
    outcome = await _try_effect(path, effect, timeout_s)
    return outcome if count is None else count.record(outcome)


async def _try_effect(path: str, effect: Effect, timeout_s: float) -> StepOutcome:
    limit = TimeLimit(timeout_s)
    task = asyncio.current_task()
    try:
        with limit:
            value: Any = await effect()
        return StepOutcome(copy_json(value, f"step {path}"))
    except asyncio.CancelledError:
        if task is not None and task.cancelling():
            raise
        return StepOutcome(fault=Fault.from_error(CallCancelledError(f"step {path}")))
    except RetinueError as error:
        return StepOutcome(fault=Fault.from_error(error))
    except Exception as error:  # noqa: BLE001  # whatever an effect raises is its outcome
        if limit.expired:
            return StepOutcome(fault=Fault.from_error(step_timed_out(path, timeout_s)))
        return StepOutcome(fault=Fault.from_error(ExecutionFailedError.from_exception(error)))


def step_timed_out(path: str, timeout_s: float) -> CallTimedOutError:
    """The error of a step that exceeds its time limit."""
    return CallTimedOutError(f"step {path}", timeout_s, layer=_STEP_LAYER, setting=f"timeout of step {path}")


def is_step_time_out(fault: Fault) -> bool:
    """Whether the time limit of the step ran out, and not a shorter one of the skill or its agent."""
    return fault.on_error == "timeout" and fault.data.get("layer") == _STEP_LAYER


def nobody_answered(path: str, topic: str, timeout_s: float) -> CallTimedOutError:
    """The error of a step that waited for a signal in vain."""
    error = CallTimedOutError(
        f"step {path}", timeout_s, layer=_STEP_LAYER, setting=f"wait_for.timeout of step {path}"
    )
    error.message = f"nobody answered step {path} within {render_duration(timeout_s)} (signal {topic})"
    error.args = (error.message,)
    return error
