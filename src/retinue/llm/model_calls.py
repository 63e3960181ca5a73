"""The requests of one model agent: budget, retries, time limits, streaming and usage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson

from retinue.authoring.context import Context
from retinue.core.call import Answer
from retinue.core.errors import CallTimedOutError, ModelError, RetinueError, TooLargeError
from retinue.llm import prompts
from retinue.llm.answer_stream import AnswerStream
from retinue.llm.completion import (
    Model,
    ModelPrompt,
    ModelReply,
    OnText,
    OnUsage,
    Usage,
    complete_with_retries,
    ignore_usage,
)
from retinue.llm.spec import ModelSpec
from retinue.llm.spending import Ledger, Reservation
from retinue.llm.structured import UnreadableAnswerError
from retinue.mesh.guard.spending import ModelSpending
from retinue.thinking.completion import CompletionRequest

OpenModel = Callable[[], Awaitable[Model]]
"""Opens the back-end, which may take seconds; called at the first request."""

ASK = "agent.ask"

ALLOWANCE_S = 5.0
"""Added to the time limit of the skills: the model's own limit ends a call first, and names its setting."""

MAX_CONVERSATION_BYTES = 32 * 1024**2
"""A larger conversation is refused; vendors refuse one of 20 to 50 MB."""

_CUT = "the answer was cut at {:,} tokens (max_tokens, or what the budget has left)"

Read = Callable[[str], Any]


@dataclass(slots=True)
class _Request:
    """One request of a skill.

    It ends at ``until`` with the error ``limit``; ``deadline`` is that time, or the caller's if earlier.
    """

    context: Context
    instructions: str
    task: str
    limit: CallTimedOutError
    until: float
    deadline: float
    warnings: tuple[str, ...] = ()

    def note(self, reply: ModelReply, max_tokens: int) -> None:
        """Keep the warnings of a reply."""
        self.warnings = reply.warnings
        if reply.is_cut:
            self.warnings += (_CUT.format(max_tokens),)


class ModelCalls:
    """The requests of one model agent: budget, retries, streaming, usage."""

    def __init__(self, spec: ModelSpec, open_model: OpenModel, ledger: Ledger) -> None:
        self._spec = spec
        self._open_model = open_model
        self._ledger = ledger
        self._opening = asyncio.Lock()
        self._slots = asyncio.Semaphore(spec.concurrency)
        self._model: Model | None = None

    async def answer(
        self, context: Context, instructions: str, task: str, *, timeout_s: float | None = None
    ) -> Answer:
        """The text of the model's answer."""
        request = self._begin(context, instructions, task, timeout_s)
        text = await self._ask(request, task)
        return Answer(text, warnings=request.warnings)

    async def answer_form(self, context: Context, instructions: str, task: str, read: Read) -> Answer:
        """The answer as ``read`` parses it; the model is asked once more for an unreadable answer.

        Raises ModelError where the second answer cannot be read either.
        """
        request = self._begin(context, instructions, task, None)
        text = await self._ask(request, task)
        try:
            value = read(text)
        except UnreadableAnswerError as problem:
            await context.progress(None, f"asking again: {problem}")
            text = await self._ask(request, prompts.write_repair(task, text, str(problem)))
            try:
                value = read(text)
            except UnreadableAnswerError as error:
                cut = f" ({request.warnings[0]})" if request.warnings else ""
                problem_text = f"its answer cannot be read, twice: {error}{cut}"
                raise ModelError(self._spec.name, "malformed", problem_text) from None
        return Answer(value, warnings=request.warnings)

    async def complete(self, context: Context, conversation: CompletionRequest) -> Answer:
        """The reply to a conversation with tools, as the skill ``complete`` returns it.

        Raises TooLargeError for a conversation over `MAX_CONVERSATION_BYTES`.
        """
        size_bytes = len(orjson.dumps(conversation.to_json()))
        if size_bytes > MAX_CONVERSATION_BYTES:
            raise TooLargeError(
                "the conversation",
                MAX_CONVERSATION_BYTES,
                remedy="send fewer or smaller results, or a summary of the older messages",
            )
        request = self._begin(context, "", "", None)
        longest = min(conversation.max_tokens or self._spec.max_tokens, self._spec.max_tokens)
        reply = await self._complete(request, ModelPrompt("", "", longest, conversation))
        assert reply.completion is not None, "the back-end takes conversations"
        return Answer(reply.completion.to_json(), reply.parts, warnings=request.warnings)

    def _begin(self, context: Context, instructions: str, task: str, timeout_s: float | None) -> _Request:
        limit_s, layer, setting = self._spec.timeout_s, "model", f"llm.{self._spec.name}.timeout_s"
        if timeout_s is not None and timeout_s < limit_s:
            limit_s, layer, setting = timeout_s, ASK, "timeoutMs"
        limit = CallTimedOutError(f"the model of {self._spec.name}", limit_s, layer=layer, setting=setting)
        until = asyncio.get_running_loop().time() + limit_s
        deadline = until if context.deadline is None else min(until, context.deadline)
        return _Request(context, prompts.write_instructions(instructions), task, limit, until, deadline)

    async def _ask(self, request: _Request, task: str) -> str:
        prompt = ModelPrompt(request.instructions, task, self._spec.max_tokens)
        return (await self._complete(request, prompt)).text

    async def _complete(self, request: _Request, prompt: ModelPrompt) -> ModelReply:
        try:
            async with asyncio.timeout_at(request.until), self._slots:
                return await self._complete_now(request, prompt)
        except TimeoutError:
            raise request.limit from None

    async def _complete_now(self, request: _Request, prompt: ModelPrompt) -> ModelReply:
        context = request.context
        with self._ledger.reserve(prompt, context.trace.id, context.allowance) as reservation:
            attempt = replace(prompt, max_tokens=reservation.max_tokens)
            reply = await self._attempt(request, attempt, reservation)
            request.note(reply, reservation.max_tokens)
        return reply

    async def _attempt(self, request: _Request, prompt: ModelPrompt, reservation: Reservation) -> ModelReply:
        stream = AnswerStream(request.context)
        model = await self._open()
        attempts = _Attempts(model, stream, request.context, reservation, self._ledger)
        try:
            reply = await complete_with_retries(
                attempts, prompt, stream.take, retries=self._spec.retries, deadline=request.deadline
            )
            await stream.finish()
            return reply
        finally:
            stream.stop()

    async def _open(self) -> Model:
        async with self._opening:
            if self._model is None:
                self._model = await self._open_model()
            return self._model


class _Attempts:
    """The model, with what each attempt used recorded, also of the ones that failed.

    That is what the provider reports, and what has come of the answer. An attempt without either counts
    nothing, so that an outage does not use up the budget, except in a chain of calls with a limit: there it
    counts with its reservation, unless the provider has answered it or never got it.
    """

    def __init__(
        self,
        model: Model,
        stream: AnswerStream,
        context: Context,
        reservation: Reservation,
        ledger: Ledger,
    ) -> None:
        self._model = model
        self._stream = stream
        self._context = context
        self._reservation = reservation
        self._ledger = ledger

    async def complete(
        self, prompt: ModelPrompt, on_text: OnText, on_usage: OnUsage = ignore_usage
    ) -> ModelReply:
        self._stream.begin()
        before = self._stream.size_bytes
        reported: list[Usage] = []
        most = self._reservation.most
        with self._context.reserve(most.tokens, most.cost_usd or 0.0, asked=self._ledger.agent) as spending:
            try:
                reply = await self._model.complete(prompt, on_text, reported.append)
            except (asyncio.CancelledError, RetinueError) as error:
                written_bytes = self._stream.size_bytes - before
                usage = self._estimate(prompt, sum(reported, Usage()), written_bytes)
                if usage.tokens:
                    self._settle(spending, usage, self._ledger.model)
                elif not may_have_spent(error):
                    spending.settle({})
                raise
            self._settle(spending, reply.usage, reply.model)
            return reply

    def _settle(self, spending: ModelSpending, usage: Usage, model: str) -> None:
        priced = self._ledger.price(usage)
        self._reservation.settle(priced)
        spending.settle(priced.as_json(model))

    def _estimate(self, prompt: ModelPrompt, reported: Usage, written_bytes: int) -> Usage:
        """The usage of a failed attempt: as reported, and at least the part of its answer that came."""
        if not (written_bytes or reported.is_estimated):
            return reported
        # a provider may report the usage at the end only
        estimated = self._ledger.estimate(prompt, written_bytes)
        return Usage(
            reported.input_tokens or estimated.input_tokens,
            max(reported.output_tokens, estimated.output_tokens),
            reported.cost_usd,
            True,
            reported.cached_tokens,
            reported.cache_write_tokens,
        )


def may_have_spent(error: BaseException) -> bool:
    """Whether a failed attempt may have spent something that nobody reports: no answer came to its end."""
    if isinstance(error, ModelError):
        return error.is_lost
    return isinstance(error, asyncio.CancelledError | CallTimedOutError)
