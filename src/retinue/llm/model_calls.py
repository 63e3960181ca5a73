"""The requests of one model agent: budget, retries, time limits, streaming and usage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
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
    """One request of a skill, with what its attempts have used.

    It ends at ``until`` with the error ``limit``; ``deadline`` is that time, or the caller's if earlier.
    """

    context: Context
    instructions: str
    task: str
    limit: CallTimedOutError
    until: float
    deadline: float
    used: Usage | None = None
    model: str = ""
    warnings: tuple[str, ...] = ()

    def add(self, reply: ModelReply, usage: Usage, max_tokens: int) -> None:
        self.used = usage if self.used is None else self.used + usage
        self.model = reply.model
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
        return Answer(text, usage=self._usage(request), warnings=request.warnings)

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
        return Answer(value, usage=self._usage(request), warnings=request.warnings)

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
        return Answer(
            reply.completion.to_json(), reply.parts, usage=self._usage(request), warnings=request.warnings
        )

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
        with self._ledger.reserve(prompt, request.context.trace.id) as reservation:
            attempt = replace(prompt, max_tokens=reservation.max_tokens)
            reply = await self._attempt(request, attempt, reservation)
            usage = self._ledger.price(reply.usage)
            reservation.settle(usage)
            request.add(reply, usage, reservation.max_tokens)
        return reply

    async def _attempt(self, request: _Request, prompt: ModelPrompt, reservation: Reservation) -> ModelReply:
        stream = AnswerStream(request.context)
        model = await self._open()
        attempts = _Attempts(model, stream, prompt, reservation, self._ledger)
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

    @staticmethod
    def _usage(request: _Request) -> Mapping[str, Any] | None:
        return None if request.used is None else request.used.as_json(request.model)


class _Attempts:
    """The model, with what its failed attempts used recorded.

    That is what the provider reports, and what has come of the answer. An attempt without either counts
    nothing, so that an outage does not use up the budget.
    """

    def __init__(
        self,
        model: Model,
        stream: AnswerStream,
        prompt: ModelPrompt,
        reservation: Reservation,
        ledger: Ledger,
    ) -> None:
        self._model = model
        self._stream = stream
        self._prompt = prompt
        self._reservation = reservation
        self._ledger = ledger

    async def complete(
        self, prompt: ModelPrompt, on_text: OnText, on_usage: OnUsage = ignore_usage
    ) -> ModelReply:
        self._stream.begin()
        before = self._stream.size_bytes
        reported: list[Usage] = []
        try:
            return await self._model.complete(prompt, on_text, reported.append)
        except (asyncio.CancelledError, RetinueError):
            self._settle(sum(reported, Usage()), self._stream.size_bytes - before)
            raise

    def _settle(self, reported: Usage, written_bytes: int) -> None:
        if written_bytes or reported.is_estimated:
            # a provider may report the usage at the end only
            estimated = self._ledger.estimate(self._prompt, written_bytes)
            reported = Usage(
                reported.input_tokens or estimated.input_tokens,
                max(reported.output_tokens, estimated.output_tokens),
                reported.cost_usd,
                True,
                reported.cached_tokens,
                reported.cache_write_tokens,
            )
        if reported.tokens:
            self._reservation.settle(self._ledger.price(reported))
