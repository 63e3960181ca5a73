"""Suspends calls that wait for the client's answers between two requests (MCP 2026-07-28).

In this protocol version a server cannot send requests. It responds ``input_required`` with its questions
and an opaque state, and the client repeats the request with its answers and the state. The skill stays
suspended in this process, under the state as a random name. Number and time of suspended calls are bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from secrets import token_urlsafe
from typing import Any, Generic, Protocol, TypeVar

import mcp_types as types
from mcp.shared.exceptions import MCPError

from retinue.core.errors import BusyError

MAX_SUSPENDED = 1000
MAX_SUSPENDED_OF_A_CALLER = 100
KEPT_S = 600.0
"""How long a suspended call waits for its answers."""

_SETTLE_TURNS = 3
"""Turns of the event loop in which questions asked at the same time are collected."""

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PendingQuestions:
    """The questions that a call waits for, by name."""

    requests: dict[str, types.InputRequest]


class SuspendableCall:
    """One call that may ask: its task, its open questions, and answers that arrived before their question."""

    def __init__(self, responses: Mapping[str, types.InputResponse] | None) -> None:
        self._given: dict[str, types.InputResponse] = dict(responses or {})
        self._questions: dict[str, types.InputRequest] = {}
        self._answers: dict[str, asyncio.Future[types.InputResponse]] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[Result] | None = None
        self._asked = 0

    def start(self, running: Coroutine[Any, Any, Result]) -> None:
        """Run the call in a separate task, which outlives the request that started it."""
        self._task = asyncio.create_task(running)
        self._task.add_done_callback(lambda _: self._news.set())

    async def ask(self, key: str | None, question: types.InputRequest) -> types.InputResponse:
        """Ask the client; the answer may be here already, or comes with a later request."""
        self._asked += 1
        name = key or f"question-{self._asked}"
        if name in self._given:
            return self._given.pop(name)
        while name in self._questions:
            name += "+"
        answer: asyncio.Future[types.InputResponse] = asyncio.get_running_loop().create_future()
        self._answers[name] = answer
        self._questions[name] = question
        self._news.set()
        try:
            return await answer
        finally:
            self._questions.pop(name, None)
            self._answers.pop(name, None)

    def answer(self, responses: Mapping[str, types.InputResponse] | None) -> None:
        """Take the client's answers; answers without a question are kept for later ones."""
        for name, response in (responses or {}).items():
            waiting = self._answers.get(name)
            if waiting is None or waiting.done():
                self._given[name] = response
            else:
                self._questions.pop(name, None)
                waiting.set_result(response)

    async def proceed(self) -> Result | PendingQuestions:
        """Wait for the result or for questions; cancelling this cancels the call."""
        task = self._task
        assert task is not None
        try:
            while not task.done():
                for _ in range(_SETTLE_TURNS):
                    await asyncio.sleep(0)
                if task.done():
                    break
                if self._questions:
                    return PendingQuestions(dict(self._questions))
                await self._news.wait()
                self._news.clear()
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result()

    def end(self) -> None:
        """Cancel the call: no answer will come."""
        if self._task is not None:
            # retrieved, so that asyncio does not warn of an exception that was never retrieved
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._task.cancel()


class Endable(Protocol):
    """A suspended call; ``end`` is called when it is not resumed in time."""

    def end(self) -> None: ...


S = TypeVar("S", bound=Endable)


@dataclass(frozen=True, slots=True)
class _Suspended(Generic[S]):
    talk: S
    owner: str
    subject: str
    expiry: asyncio.TimerHandle


class SuspendedCalls(Generic[S]):
    """The suspended calls of one server, by their states, which ``make_state`` makes; one is used once."""

    def __init__(self, *, kept_s: float = KEPT_S, make_state: Callable[[], str] = token_urlsafe) -> None:
        self._kept_s = kept_s
        self._make_state = make_state
        self._held: dict[str, _Suspended[S]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def suspend(self, talk: S, owner: str, subject: str) -> str:
        """Keep a call for the owner's next request about the same subject; raises BusyError."""
        own = sum(1 for held in self._held.values() if held.owner == owner)
        if len(self._held) >= MAX_SUSPENDED or own >= MAX_SUSPENDED_OF_A_CALLER:
            talk.end()
            raise BusyError("too many calls wait for an answer", 10.0)
        state = self._make_state()
        expiry = asyncio.get_running_loop().call_later(self._kept_s, self._expire, state)
        self._held[state] = _Suspended(talk, owner, subject, expiry)
        return state

    def resume(self, state: str, owner: str, subject: str) -> S:
        """The call with this state. Raises MCPError, with one message for every reason."""
        held = self._held.get(state)
        if held is None or held.owner != owner or held.subject != subject:
            raise MCPError(
                types.INVALID_PARAMS,
                "requestState names no call that waits here: it was answered, waited too long, "
                "was changed, or this server has started anew; send the request without it",
            )
        del self._held[state]
        held.expiry.cancel()
        return held.talk

    def end(self) -> None:
        """Cancel every suspended call."""
        for state in list(self._held):
            self._expire(state)

    def _expire(self, state: str) -> None:
        held = self._held.pop(state, None)
        if held is not None:
            held.expiry.cancel()
            held.talk.end()
