"""Runs several steps of one body at once, in rounds.

A step is a chain of durable calls, such as the choice of an agent and its call. The durable calls that all
steps wait for are one round and are made together; the next round begins when all of them have ended. So the
order of all durable calls depends on recorded outcomes alone, and a resumed run repeats it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from retinue.mesh.channel import LogLevel
from retinue.workflows.runs.hosting import RunCode
from retinue.workflows.runs.ports import (
    DurableRuleError,
    Effect,
    Mark,
    RunContext,
    StepCall,
    StepCount,
    WaitMode,
)
from retinue.workflows.runs.records import ChildOutcome, ChildRun, Extension, RunRequest, StepOutcome

T = TypeVar("T")


class MarkedContext:
    """The RunContext of one step: its durable calls have the step's mark, if it has one.

    With ``rounds`` they are made together with those of the other steps at hand.
    """

    def __init__(self, context: RunContext, mark: Mark | None, rounds: Rounds | None = None) -> None:
        self._context = context
        self._mark = mark
        self._rounds = rounds

    @property
    def run_id(self) -> str:
        return self._context.run_id

    @property
    def agent_wait_s(self) -> float:
        return self._context.agent_wait_s

    async def pause(self, seconds: float) -> None:
        await self._context.pause(seconds)

    async def pass_on(self, code: RunCode) -> NoReturn:
        await self._context.pass_on(code)

    async def count_undo_requests(self) -> int:
        return await self._context.count_undo_requests()

    async def list_extensions(self) -> Sequence[Extension]:
        return await self._context.list_extensions()

    def record_usage(self, calls: int | None, usage: Mapping[str, Any] | None = None) -> None:
        self._context.record_usage(calls, usage)

    async def log(self, message: str, level: LogLevel, data: Mapping[str, Any] | None) -> None:
        await self._context.log(message, level, data)

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
        mark = mark or self._mark
        if self._rounds is not None:
            kind = (facts or {}).get("kind")
            # neither the choice of an agent nor the wait for a person decides a race
            decides = kind in ("call", "model")
            call = StepCall(path, effect, timeout_s, facts, count, mark, decides, is_long=kind == "wait")
            return await self._rounds.step(call)
        return await self._context.step(
            path, effect, timeout_s=timeout_s, facts=facts, count=count, mark=mark
        )

    async def patched(self, change: str) -> bool:
        self._refuse_rounds(f"patched {change}")
        return await self._context.patched(change)

    async def sleep(self, path: str, seconds: float) -> None:
        if self._rounds is not None:
            await self._rounds.sleep(path, seconds)
        else:
            await self._context.sleep(path, seconds)

    async def together(
        self, calls: Sequence[StepCall], *, limit: int | None = None, enough: int | None = None
    ) -> tuple[StepOutcome, ...]:
        marked = [call if call.mark else replace(call, mark=self._mark) for call in calls]
        if self._rounds is not None:
            return await self._rounds.together(marked)
        return await self._context.together(marked, limit=limit, enough=enough)

    async def child(self, path: str, request: RunRequest) -> ChildRun:
        self._refuse_rounds(path)
        return await self._context.child(path, request)

    async def wait(
        self, path: str, children: Sequence[ChildRun], mode: WaitMode = "all"
    ) -> tuple[ChildOutcome, ...]:
        self._refuse_rounds(path)
        return await self._context.wait(path, children, mode)

    async def cancel(self, path: str, children: Sequence[ChildRun]) -> None:
        self._refuse_rounds(path)
        await self._context.cancel(path, children)

    async def wait_until(
        self,
        path: str,
        until: float,
        *,
        at_most_s: float,
        facts: Mapping[str, Any] | None = None,
        mark: Mark | None = None,
    ) -> None:
        self._refuse_rounds(path)
        await self._context.wait_until(path, until, at_most_s=at_most_s, facts=facts, mark=mark or self._mark)

    async def receive(
        self,
        path: str,
        topic: str,
        timeout_s: float,
        *,
        facts: Mapping[str, Any] | None = None,
        mark: Mark | None = None,
    ) -> StepOutcome:
        self._refuse_rounds(path)
        return await self._context.receive(path, topic, timeout_s, facts=facts, mark=mark or self._mark)

    def _refuse_rounds(self, path: str) -> None:
        if self._rounds is not None:
            raise DurableRuleError(f"durable call {path!r} cannot be made together with others")


@dataclass(slots=True, eq=False)
class _Asked:
    """A durable call that a step waits for; ``call`` is the length of a sleep, or an effect."""

    place: int
    path: str
    call: StepCall | float
    answer: asyncio.Future[Any]


class Rounds:
    """Runs steps at once, with at most ``limit`` effects in flight.

    It runs all of them, or until ``enough`` have succeeded.
    """

    def __init__(self, context: RunContext, limit: int | None = None, *, enough: int | None = None) -> None:
        self._context = context
        self._limit = limit
        self._enough = enough
        self._succeeded = 0
        self._asked: list[_Asked] = []
        self._waiting: set[int] = set()
        """The places of the works that wait for a durable call."""
        self._live = 0
        self._quiet = asyncio.Event()
        self._places: dict[asyncio.Task[Any] | None, int] = {}

    async def run(
        self, works: Sequence[Callable[[], Coroutine[Any, Any, T]]], *, tolerated: int | None = 0
    ) -> list[T | BaseException]:
        """The result of each work, or what it raised.

        No further round begins once more works have failed than are ``tolerated`` (None = any number), nor
        once enough have succeeded; works that had not ended then have raised CancelledError.
        """
        tasks = [asyncio.create_task(work()) for work in works]
        self._places = {task: place for place, task in enumerate(tasks)}
        self._live = len(tasks)
        for task in tasks:
            task.add_done_callback(self._end)
        try:
            while self._live:
                await self._quiet.wait()
                self._quiet.clear()
                errors = [_error_of(task) for task in tasks if task.done()]
                self._succeeded = errors.count(None)
                has_failed = tolerated is not None and len(errors) - self._succeeded > tolerated
                is_enough = self._enough is not None and self._succeeded >= self._enough
                if not self._asked or has_failed or is_enough:
                    break
                await self._make_round()
        finally:
            running = [task for task in tasks if not task.done()]
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)
        return [_error_of(task) or task.result() for task in tasks]

    async def step(self, call: StepCall) -> StepOutcome:
        """Make a durable call in the next round."""
        outcome: StepOutcome = await self._ask(call.path, call)
        return outcome

    async def together(self, calls: Sequence[StepCall]) -> tuple[StepOutcome, ...]:
        """Make several durable calls of one step in the next round.

        Raises DurableRuleError where some steps are enough, because a call of one that succeeds would count.
        """
        if self._enough is not None:
            raise DurableRuleError("run.think cannot be made in a race: race workflows that think")
        answers = [self._add(call.path, call) for call in calls]
        self._note()
        return tuple([await answer for answer in answers])

    async def sleep(self, path: str, seconds: float) -> None:
        """Sleep between two rounds; all steps that sleep then sleep as long as the longest."""
        await self._ask(path, seconds)

    async def _ask(self, path: str, call: StepCall | float) -> Any:
        answer = self._add(path, call)
        self._note()
        return await answer

    def _add(self, path: str, call: StepCall | float) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        place = self._places[asyncio.current_task()]
        self._asked.append(_Asked(place, path, call, answer))
        self._waiting.add(place)
        return answer

    async def _make_round(self) -> None:
        """Make what the steps wait for: brief calls alone, such as choices of agents, else all the others.

        So calls that take long begin together, and no choice waits for one of them.
        """
        requests = sorted(self._asked, key=lambda request: request.place)
        brief = [
            request for request in requests if isinstance(request.call, StepCall) and _is_brief(request.call)
        ]
        requests = brief or requests
        taken = set(requests)
        self._asked = [request for request in self._asked if request not in taken]
        self._waiting = {request.place for request in self._asked}
        calls = [request for request in requests if isinstance(request.call, StepCall)]
        sleeps = [request for request in requests if not isinstance(request.call, StepCall)]
        outcomes = await self._context.together(
            [request.call for request in calls if isinstance(request.call, StepCall)],
            limit=self._limit,
            enough=None if self._enough is None else self._enough - self._succeeded,
        )
        if sleeps:
            await self._context.sleep(
                sleeps[0].path,
                max(request.call for request in sleeps if isinstance(request.call, float | int)),
            )
        for request, outcome in zip(calls, outcomes, strict=True):
            request.answer.set_result(outcome)
        for request in sleeps:
            request.answer.set_result(None)
        self._note()  # a step may wait for further ones of the calls that it asked for together

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._live -= 1
        self._note()

    def _note(self) -> None:
        if len(self._waiting) == self._live:
            self._quiet.set()


def _is_brief(call: StepCall) -> bool:
    return not (call.decides or call.is_long)


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
