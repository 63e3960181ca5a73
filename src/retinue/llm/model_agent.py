"""An agent with a language model: the skills plan, execute and review, ``agent.ask``, and code skills.

Every skill is one request to the model, checked against the budget, repeated by the one retry policy,
streamed to the caller, and cancelled with its call. The result is the text, or the fields of the
skill; tokens and cost are the usage of the outcome.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Answer
from retinue.core.errors import CallTimedOutError, ModelError, RetinueError
from retinue.core.record import AgentRecord
from retinue.llm import prompts
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
from retinue.llm.structured import UnreadableAnswerError, read_code, read_object

OpenModel = Callable[[], Awaitable[Model]]
"""Opens the back-end, which may take seconds; called at the first request."""

PROGRESS_S = 0.25
"""The least time between two pieces of an answer that are sent to the caller."""

FLUSH_S = 1.0
"""How long the answer waits at most for a caller that is slow to take its last pieces."""

ASK = "agent.ask"

ALLOWANCE_S = 5.0
"""Added to the time limit of the skills: the model's own limit ends a call first, and names its setting."""

_CUT = "the answer was cut at {:,} tokens (max_tokens, or what the budget has left)"

Text = Annotated[str, Field(min_length=1)]
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

    def add(self, completion: ModelReply, usage: Usage, max_tokens: int) -> None:
        self.used = usage if self.used is None else self.used + usage
        self.model = completion.model
        if completion.is_cut:
            self.warnings = (_CUT.format(max_tokens),)


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
        text = await self._complete(request, task)
        return Answer(text, usage=self._usage(request), warnings=request.warnings)

    async def answer_form(self, context: Context, instructions: str, task: str, read: Read) -> Answer:
        """The answer as ``read`` parses it; the model is asked once more for an unreadable answer.

        Raises ModelError where the second answer cannot be read either.
        """
        request = self._begin(context, instructions, task, None)
        text = await self._complete(request, task)
        try:
            value = read(text)
        except UnreadableAnswerError as problem:
            await context.progress(None, f"asking again: {problem}")
            text = await self._complete(request, prompts.write_repair(task, text, str(problem)))
            try:
                value = read(text)
            except UnreadableAnswerError as error:
                cut = f" ({request.warnings[0]})" if request.warnings else ""
                problem_text = f"its answer cannot be read, twice: {error}{cut}"
                raise ModelError(self._spec.name, "malformed", problem_text) from None
        return Answer(value, usage=self._usage(request), warnings=request.warnings)

    def _begin(self, context: Context, instructions: str, task: str, timeout_s: float | None) -> _Request:
        limit_s, layer, setting = self._spec.timeout_s, "model", f"llm.{self._spec.name}.timeout_s"
        if timeout_s is not None and timeout_s < limit_s:
            limit_s, layer, setting = timeout_s, ASK, "timeoutMs"
        limit = CallTimedOutError(f"the model of {self._spec.name}", limit_s, layer=layer, setting=setting)
        until = asyncio.get_running_loop().time() + limit_s
        deadline = until if context.deadline is None else min(until, context.deadline)
        return _Request(context, prompts.write_instructions(instructions), task, limit, until, deadline)

    async def _complete(self, request: _Request, task: str) -> str:
        prompt = ModelPrompt(request.instructions, task, self._spec.max_tokens)
        try:
            async with asyncio.timeout_at(request.until), self._slots:
                return await self._complete_now(request, prompt)
        except TimeoutError:
            raise request.limit from None

    async def _complete_now(self, request: _Request, prompt: ModelPrompt) -> str:
        with self._ledger.reserve(prompt, request.context.trace.id) as reservation:
            attempt = ModelPrompt(prompt.instructions, prompt.task, reservation.max_tokens)
            completion = await self._ask(request, attempt, reservation)
            usage = self._ledger.price(completion.usage)
            reservation.settle(usage)
            request.add(completion, usage, reservation.max_tokens)
        return completion.text

    async def _ask(self, request: _Request, prompt: ModelPrompt, reservation: Reservation) -> ModelReply:
        progress = _Progress(request.context)
        model = await self._open()
        attempts = _Attempts(model, progress, prompt, reservation, self._ledger)
        try:
            reply = await complete_with_retries(
                attempts, prompt, progress.take, retries=self._spec.retries, deadline=request.deadline
            )
            await progress.finish()
            return reply
        finally:
            progress.stop()

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
        self, model: Model, progress: _Progress, prompt: ModelPrompt, reservation: Reservation, ledger: Ledger
    ) -> None:
        self._model = model
        self._progress = progress
        self._prompt = prompt
        self._reservation = reservation
        self._ledger = ledger

    async def complete(
        self, prompt: ModelPrompt, on_text: OnText, on_usage: OnUsage = ignore_usage
    ) -> ModelReply:
        self._progress.begin()
        before = self._progress.size_bytes
        reported: list[Usage] = []
        try:
            return await self._model.complete(prompt, on_text, reported.append)
        except (asyncio.CancelledError, RetinueError):
            self._settle(sum(reported, Usage()), self._progress.size_bytes - before)
            raise

    def _settle(self, reported: Usage, written_bytes: int) -> None:
        if written_bytes:
            # a provider may report the usage at the end only
            estimated = self._ledger.estimate(self._prompt, written_bytes)
            reported = Usage(
                reported.input_tokens or estimated.input_tokens,
                max(reported.output_tokens, estimated.output_tokens),
                reported.cost_usd,
                is_estimated=True,
            )
        if reported.tokens:
            self._reservation.settle(self._ledger.price(reported))


class _Progress:
    """Sends an answer as text while it is written: in pieces, not more often than `PROGRESS_S`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pending: list[str] = []
        self._begins = True
        self._sent_at = -PROGRESS_S
        self._sending: asyncio.Task[None] | None = None
        self._is_complete = asyncio.Event()
        self.size_bytes = 0

    def begin(self) -> None:
        """Begin the text: an attempt writes it from its start."""
        self._pending = []
        self._begins = True

    async def take(self, piece: str) -> None:
        """Send a piece now, or with the next ones."""
        self.size_bytes += len(piece.encode())
        self._pending.append(piece)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_later())
            await asyncio.sleep(0)  # the first piece goes at once

    async def finish(self) -> None:
        """Send the rest: the whole answer is there."""
        self._is_complete.set()
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=FLUSH_S)
            if self._pending and self._sending.done():
                self._sending = asyncio.create_task(self._send_later())
                await asyncio.wait([self._sending], timeout=FLUSH_S)

    def stop(self) -> None:
        """Stop sending: the call has ended."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send_later(self) -> None:
        wait_s = self._sent_at + PROGRESS_S - time.monotonic()
        if wait_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._is_complete.wait()
        text = "".join(self._pending)
        self._pending = []
        if text:
            begins, self._begins = self._begins, False
            self._sent_at = time.monotonic()
            await self._context.stream_text(text, begins=begins)


def model_agent(spec: ModelSpec, open_model: OpenModel, ledger: Ledger, *, version: str) -> Agent:
    """The agent of a model."""
    calls = ModelCalls(spec, open_model, ledger)
    agent = Agent(**_facts(spec, version))
    _add_roles(agent, spec, calls)
    _add_ask(agent, spec, calls)
    _add_code_skills(agent, spec, calls)
    return agent


def describe_model(spec: ModelSpec, version: str) -> AgentRecord:
    """The record of a model that is not started: that of its agent, without an endpoint.

    It has the skills by which a model is chosen as such. Those of code, which other agents offer too, are
    left out: a search for them should find the agents that can be called. None is a tool of MCP clients.
    """

    async def refuse() -> Model:
        raise ModelError(spec.name, "unavailable", "it is not started")

    record = model_agent(spec, refuse, Ledger(Path(), spec), version=version).record()
    shown = [replace(skill, listed=False) for skill in record.skills if skill.id in {*skill.roles, ASK}]
    return replace(record, skills=tuple(shown))


def _facts(spec: ModelSpec, version: str) -> dict[str, Any]:
    model = spec.model or (spec.asks_model if spec.backend != "command" else "")
    through = {"anthropic": "Anthropic", "google": "Google", "openai": "OpenAI or a compatible server"}
    vendor = through.get(spec.provider or "", spec.program or "a command")
    labels = {"kind": "model", "provider": spec.provider or "", "model": model}
    return {
        "name": spec.name,
        "version": version,
        "title": spec.name,
        "description": f"Plans, does and reviews tasks given in words: a language model ({model or vendor}).",
        "topics": ("Planning", "Code", "Review", "Writing"),
        "scores": spec.scores or None,
        "context_window": spec.context_window,
        "languages": spec.languages,
        "labels": {name: value for name, value in labels.items() if value},
    }


def _add_roles(agent: Agent, spec: ModelSpec, calls: ModelCalls) -> None:
    descriptions: Mapping[prompts.Role, str] = {
        "plan": "Writes a plan for a task given in words.",
        "execute": "Carries out a task given in words, and returns the result.",
        "review": "Reviews what is given in words, and returns the findings.",
    }

    def add(role: prompts.Role) -> None:
        @agent.skill(
            role,
            description=descriptions[role],
            roles=[role],
            expose=True,
            listed=False,
            open_world=True,
            timeout_s=spec.timeout_s + ALLOWANCE_S,
        )
        async def take_role(
            prompt: Annotated[Text, Field(description="The task, in words")],
            ctx: Context,
            context: Annotated[
                Any, Field(description="Data that the task is about, such as results of other agents")
            ] = None,
        ) -> Answer:
            task = prompts.write_task(prompt, [("what the task is about", context)])
            return await calls.answer(ctx, prompts.ROLE_INSTRUCTIONS[role], task)

    for role in descriptions:
        add(role)


def _add_ask(agent: Agent, spec: ModelSpec, calls: ModelCalls) -> None:
    @agent.skill(ASK, expose=True, open_world=True, timeout_s=spec.timeout_s + ALLOWANCE_S)
    async def ask(
        prompt: Annotated[Text, Field(description="The question or task, in words")],
        ctx: Context,
        timeoutMs: Annotated[  # noqa: N803 - the name of seed 004
            int | None, Field(ge=1, description="Time limit in milliseconds")
        ] = None,
    ) -> Answer:
        """Asks the model and returns its answer."""
        timeout_s = None if timeoutMs is None else timeoutMs / 1000
        return await calls.answer(ctx, prompts.ASK_INSTRUCTIONS, prompt, timeout_s=timeout_s)


def _add_code_skills(agent: Agent, spec: ModelSpec, calls: ModelCalls) -> None:
    shared: dict[str, Any] = {
        "expose": True,
        "listed": False,
        "open_world": True,
        "timeout_s": spec.timeout_s + ALLOWANCE_S,
    }

    def form(texts: Sequence[str], lists: Sequence[str] = ()) -> dict[str, Any]:
        kinds = {key: {"type": "string"} for key in texts} | {key: {"type": "array"} for key in lists}
        return {"type": "object", "properties": kinds, "required": list(texts)}

    @agent.skill(tags=["planning"], roles=["plan"], output_schema=form(["plan"], ["steps"]), **shared)
    async def create_plan(
        requirements: Annotated[Text, Field(description="What is to be made, in words")],
        ctx: Context,
        context: Annotated[Any, Field(description="Data that the requirements are about")] = None,
    ) -> Answer:
        """Creates a structured implementation plan from requirements."""
        task = prompts.write_task(
            f"Write the plan for these requirements:\n\n{requirements}", [("context", context)]
        )
        return await calls.answer_form(
            ctx, prompts.PLAN_INSTRUCTIONS, task, lambda text: read_object(text, ("plan",), ("steps",))
        )

    @agent.skill(tags=["execution", "code"], roles=["execute"], output_schema=form(["code"]), **shared)
    async def generate_code(
        plan: Annotated[Text, Field(description="The plan to implement")],
        ctx: Context,
        requirements: Annotated[str, Field(description="The requirements behind the plan")] = "",
        code: Annotated[str, Field(description="The code of the previous round, to be improved")] = "",
        feedback: Annotated[str, Field(description="What a review of that code asks for")] = "",
    ) -> Answer:
        """Generates code from a plan, or improves it by the feedback of a review."""
        task = prompts.write_task(
            "Write the code that the plan describes"
            + (", improving the previous code by the feedback." if code or feedback else "."),
            [
                ("the plan", plan),
                ("the requirements", requirements),
                ("the previous code", code),
                ("the feedback of its review", feedback),
            ],
        )
        return await calls.answer_form(
            ctx, prompts.CODE_INSTRUCTIONS, task, lambda text: {"code": read_code(text)}
        )

    @agent.skill(
        tags=["review", "code"], roles=["review"], output_schema=form(["review", "feedback"]), **shared
    )
    async def review_code(
        code: Annotated[Text, Field(description="The code to review")],
        ctx: Context,
        requirements: Annotated[str, Field(description="What the code has to do")] = "",
        plan: Annotated[str, Field(description="The plan that it implements")] = "",
    ) -> Answer:
        """Reviews code: a judgement, and what to change."""
        task = prompts.write_task(
            "Review this code.", [("the code", code), ("its requirements", requirements), ("its plan", plan)]
        )
        return await calls.answer_form(
            ctx, prompts.REVIEW_INSTRUCTIONS, task, lambda text: read_object(text, ("review", "feedback"))
        )
