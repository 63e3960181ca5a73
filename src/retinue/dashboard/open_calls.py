"""Calls of pages whose skill asks their visitor: the question is a form, and its answer the next request.

A call waits at most `ANSWER_WITHIN_S` for each answer. Open calls are bounded in all and for each caller.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.core.call import Outcome
from retinue.core.errors import BusyError, InputRefusedError, InputRequiredError, InvalidParametersError
from retinue.mesh.channel import Capability, Channel, NullChannel
from retinue.mesh.schema.checks import compile_schema

ANSWER_WITHIN_S = 600.0
MAX_OPEN = 100
OPEN_OF_A_CALLER = 10
"""A caller that opens more has its own oldest question declined."""


@dataclass(slots=True)
class AskedQuestion:
    """A question of a running skill, until ``answer`` is done."""

    message: str
    schema: Mapping[str, Any]
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def decline(self) -> None:
        """Let the skill know that the person does not answer."""
        if not self.answer.done():
            self.answer.set_exception(InputRefusedError(f"the question was declined: {self.message}"))


class PageChannel(NullChannel):
    """The channel of a call that a person made on a page: it can ask that person."""

    capabilities: frozenset[Capability] = frozenset({"elicitation"})

    def __init__(self) -> None:
        self.questions: deque[AskedQuestion] = deque()
        self.asked = asyncio.Event()

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        question = AskedQuestion(message, schema)
        self.questions.append(question)
        self.asked.set()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await question.answer
        except TimeoutError:
            raise InputRequiredError(
                f"nobody answered within {ANSWER_WITHIN_S:g} s: {message}", remedy="call it again"
            ) from None
        finally:
            self.questions.remove(question)
            if not self.questions:
                self.asked.clear()


@dataclass(slots=True)
class OpenCall:
    """A call that waits for the answer to ``question``."""

    id: str
    caller: str
    arguments: Any
    channel: PageChannel
    task: asyncio.Task[Outcome]

    @property
    def question(self) -> AskedQuestion:
        """The oldest open question."""
        return self.channel.questions[0]


class OpenCalls:
    """The open calls of the pages of one hub; `end` cancels them."""

    def __init__(self) -> None:
        self._calls: dict[str, OpenCall] = {}

    async def start(
        self, caller: str, arguments: Any, call: Callable[[Channel], Awaitable[Outcome]]
    ) -> Outcome | OpenCall:
        """The outcome of a call, or the open call if its skill asks first."""
        channel = PageChannel()
        task = asyncio.ensure_future(call(channel))
        return await self._wait(OpenCall(secrets.token_urlsafe(24), caller, arguments, channel, task))

    def find(self, name: str, caller: str) -> OpenCall:
        """The open call of a caller; raises InputRequiredError where it waits no longer."""
        call = self._calls.get(name)
        if call is None or call.caller != caller or not call.channel.questions:
            raise InputRequiredError("this question is no longer open", remedy="call the skill again")
        return call

    async def answer(self, call: OpenCall, value: Any) -> Outcome | OpenCall:
        """Answer the question; returns the outcome, or the call with its next question.

        Raises InvalidParametersError for an answer that does not fit; the question stays open.
        """
        question = call.question
        if problems := compile_schema(question.schema, "the answer").problems(value):
            raise InvalidParametersError(problems)
        if not question.answer.done():
            question.answer.set_result(value)
        return await self._go_on(call, question)

    async def decline(self, call: OpenCall) -> Outcome | OpenCall:
        """Decline the question, as `answer`."""
        question = call.question
        question.decline()
        return await self._go_on(call, question)

    def end(self) -> None:
        """Cancel the open calls, which would keep the server from stopping."""
        for call in self._calls.values():
            call.task.cancel()

    async def _go_on(self, call: OpenCall, question: AskedQuestion) -> Outcome | OpenCall:
        # the skill takes the answer first, so that the question is not shown again
        while question in call.channel.questions:
            await asyncio.sleep(0)
        return await self._wait(call)

    async def _wait(self, call: OpenCall) -> Outcome | OpenCall:
        asked = asyncio.create_task(call.channel.asked.wait())
        try:
            await asyncio.wait({call.task, asked}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            call.task.cancel()
            raise
        finally:
            asked.cancel()
        if call.task.done():
            self._calls.pop(call.id, None)
            return call.task.result()
        if call.id not in self._calls:
            self._add(call)
        return call

    def _add(self, call: OpenCall) -> None:
        own = [open_call for open_call in self._calls.values() if open_call.caller == call.caller]
        for open_call in own[: max(0, len(own) - OPEN_OF_A_CALLER + 1)]:
            self._forget(open_call)
            for question in list(open_call.channel.questions):
                question.decline()
        if len(self._calls) >= MAX_OPEN:
            call.task.cancel()
            raise BusyError(f"{MAX_OPEN} calls wait for answers already", ANSWER_WITHIN_S)
        self._calls[call.id] = call
        call.task.add_done_callback(lambda task: self._forget(call))

    def _forget(self, call: OpenCall) -> None:
        self._calls.pop(call.id, None)
