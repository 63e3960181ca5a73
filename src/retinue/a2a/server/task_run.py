"""One running task: its state, its followers and its questions.

A call runs in an asyncio task of its own, which outlives the request that started it. Its reports become
events for every follower. A question puts the task into the state input-required; the next message of the
client with the id of the task answers it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.a2a.codec.calls import read_answer
from retinue.a2a.codec.faults import A2aError, unsupported_operation
from retinue.a2a.codec.requests import IncomingMessage, PushConfig
from retinue.a2a.codec.tasks import (
    CANCELED,
    ENDED,
    INPUT_REQUIRED,
    WORKING,
    Event,
    State,
    Task,
    add_artifact,
    add_message,
    agent_message,
    set_status,
    state_of,
)
from retinue.core.approval_lines import read_approval_line
from retinue.core.call import TextPiece
from retinue.core.errors import BusyError, CannotAskError, InputRequiredError
from retinue.mesh.channel import Capability, LogLevel, Root
from retinue.mesh.schema.checks import compile_schema

ANSWER_WITHIN_S = 600.0
"""How long a question waits for its answer."""

MAX_QUESTIONS = 50
"""Questions of one task that are open at once."""

MAX_BEHIND = 1000
"""Events that a follower may be behind; a slower one is cut off, and can subscribe again."""

APPROVAL_KEY = "approval"
SCHEMA_KEY = "schema"
PROGRESS_KEY = "progress"
LOG_KEY = "log"
TEXT_KEY = "text"
"""Keys in the metadata: of a question, and of an event."""

_CAPABILITIES: frozenset[Capability] = frozenset({"progress", "log", "elicitation"})


@dataclass(slots=True)
class _Question:
    """An open question; ``schema`` None = its answer is the next message itself."""

    text: str
    schema: Mapping[str, Any] | None
    metadata: Mapping[str, Any]
    answer: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Held:
    """A call of the task that waits for a person who may approve it; ``text`` says how to answer."""

    approval: str
    text: str


@dataclass(slots=True)
class Follower:
    """The events of one task that one client has not got yet; None = the end."""

    events: asyncio.Queue[Event | None] = field(default_factory=lambda: asyncio.Queue(MAX_BEHIND))

    def tell(self, event: Event | None) -> bool:
        """Whether there was room for the event."""
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            return False
        return True


class TaskRun:
    """A running task; ``on_change`` is called after each event with the event.

    ``check_asking`` is called before each question, and raises BusyError where too many are open.

    ``is_shown``: some client may know of it, so that an error ends the task instead of refusing the request.
    ``ran_to_end``: its skill answered, or failed by itself.
    ``refusal`` is the error of a request that became no task; ``first_follower`` is that of a stream.
    """

    def __init__(
        self,
        task: Task,
        agent: str,
        owner: str,
        on_change: Callable[[TaskRun, Event], None],
        check_asking: Callable[[TaskRun], None],
    ) -> None:
        self.task = task
        self.agent = agent
        self.owner = owner
        self.is_shown = False
        self.refusal: A2aError | None = None
        self.push: dict[str, PushConfig] = {}
        self.runner: asyncio.Task[None] | None = None
        self.has_news = False
        self.ran_to_end = False
        self.first_follower: Follower | None = None
        self._on_change = on_change
        self._check_asking = check_asking
        self._followers: list[Follower] = []
        self._questions: deque[_Question] = deque()
        self._held: dict[str, _Held] = {}
        self._news = asyncio.Event()

    @property
    def id(self) -> str:
        return str(self.task["id"])

    @property
    def has_ended(self) -> bool:
        return state_of(self.task) in ENDED

    @property
    def is_settled(self) -> bool:
        """Whether a blocking request is answered: the task has ended, was refused, or asks its client."""
        return self.refusal is not None or self.has_ended or state_of(self.task) == INPUT_REQUIRED

    @property
    def is_asking(self) -> bool:
        """Whether a question of a call is open."""
        return any(question.schema is not None for question in self._questions)

    @property
    def open_approval(self) -> str | None:
        """The approval that the task waits for; None for none."""
        return next((held.approval for held in self._held.values()), None)

    def end_approval(self, approval: str) -> None:
        """The approval was answered: the task goes on, unless another one is open."""
        self._held = {step: held for step, held in self._held.items() if held.approval != approval}
        if self._held:
            self._show_held(next(iter(self._held.values())))
        else:
            self._publish(set_status(self.task, WORKING))

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that changes with an event."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    def follow(self) -> Follower:
        """A new follower, which gets every event from now on."""
        follower = Follower()
        self._followers.append(follower)
        return follower

    def unfollow(self, follower: Follower) -> None:
        if follower in self._followers:
            self._followers.remove(follower)

    def refuse(self, error: A2aError) -> None:
        """Nothing was shown yet: the request that started the call is answered with an error."""
        self.refusal = error
        self._wake()
        self._end_followers()

    def report(self, text: str, metadata: Mapping[str, Any]) -> None:
        """Tell the followers of progress, or a log line.

        While a call waits for a person to approve it, the task is in the state input-required.
        """
        line = read_approval_line(text)
        if line is not None and line.approval is not None and not self.has_ended:
            self._held[line.step] = _Held(line.approval, text)
            self._show_held(self._held[line.step])
        elif line is not None and self._held.pop(line.step, None) is not None and not self.has_ended:
            if self._held:
                self._show_held(next(iter(self._held.values())))
            elif not self._questions:
                self._publish(set_status(self.task, WORKING, agent_message([{"text": text}], self.task)))
        elif not self.is_settled:
            message = agent_message([{"text": text}], self.task) if text else None
            self._publish(set_status(self.task, WORKING, message, metadata))

    async def ask(self, text: str, schema: Mapping[str, Any]) -> Any:
        """Ask the client; raises InputRequiredError without an answer in time, and BusyError."""
        self._check_asking(self)
        if len(self._questions) >= MAX_QUESTIONS:
            raise BusyError("too many questions of this task wait for an answer", 10.0)
        return await self._wait_for_answer(text, schema, {SCHEMA_KEY: dict(schema)})

    async def ask_for_message(self, text: str, metadata: Mapping[str, Any]) -> IncomingMessage:
        """The client's next message, for which the text asks; raises InputRequiredError without one in time.

        It is for tasks without a call, which hold nothing while they wait.
        """
        message: IncomingMessage = await self._wait_for_answer(text, None, metadata)
        return message

    async def _wait_for_answer(
        self, text: str, schema: Mapping[str, Any] | None, metadata: Mapping[str, Any]
    ) -> Any:
        question = _Question(text, schema, metadata, asyncio.get_running_loop().create_future())
        self._questions.append(question)
        try:
            if len(self._questions) == 1:
                self._show_question()
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await question.answer
        except TimeoutError:
            raise InputRequiredError(f"nobody answered within {ANSWER_WITHIN_S:g} s: {text}") from None
        finally:
            self._questions.remove(question)
            if self._questions and not self.has_ended:
                self._show_question()

    def answer(self, message: IncomingMessage) -> None:
        """Take the client's next message as the answer to the open question; raises A2aError."""
        if self.has_ended:
            raise unsupported_operation(f"task {self.id} has ended; send a message without taskId")
        waiting = [question for question in self._questions if not question.answer.done()]
        if not waiting and self._held:
            add_message(self.task, message.json)
            self._show_held(next(iter(self._held.values())), "This answer does not count. ")
            return
        if not waiting:
            raise unsupported_operation(
                f"task {self.id} is working and asks nothing; follow it with SubscribeToTask"
            )
        question = waiting[0]
        if question.schema is None:
            add_message(self.task, message.json)
            question.answer.set_result(message)
            self._publish(set_status(self.task, WORKING))
            return
        value = read_answer(message, question.schema)
        add_message(self.task, message.json)
        problems = compile_schema(question.schema, "question").problems(value)
        if problems:
            self._show_question(
                f"The answer does not fit the question: {problems[0].message}. {question.text}"
            )
            return
        question.answer.set_result(value)
        self._publish(set_status(self.task, WORKING))

    def complete(self, parts: list[dict[str, Any]], name: str, state: State) -> None:
        """End the task with its result."""
        self._publish(add_artifact(self.task, parts, name))
        self.end(state)

    def end(self, state: State, text: str = "", metadata: Mapping[str, Any] | None = None) -> None:
        """End the task, with a message if there is a text; once only."""
        if self.has_ended:
            return
        message = agent_message([{"text": text}], self.task, metadata) if text else None
        self._publish(set_status(self.task, state, message))
        self._end_followers()

    def cancel(self) -> None:
        """End the task and cancel its call."""
        self.end(CANCELED, "canceled by the client")
        if self.runner is not None:
            self.runner.cancel()

    def _show_held(self, held: _Held, before: str = "") -> None:
        message = agent_message([{"text": before + held.text}], self.task, {APPROVAL_KEY: held.approval})
        add_message(self.task, message)
        self._publish(set_status(self.task, INPUT_REQUIRED, message))

    def _show_question(self, text: str | None = None) -> None:
        question = self._questions[0]
        parts = [{"text": question.text if text is None else text}]
        message = agent_message(parts, self.task, question.metadata)
        add_message(self.task, message)
        self._publish(set_status(self.task, INPUT_REQUIRED, message))

    def _publish(self, event: Event) -> None:
        self.has_news = True
        for follower in list(self._followers):
            if not follower.tell(event):
                self._followers.remove(follower)
                follower.events.get_nowait()
                follower.tell(None)
        self._on_change(self, event)
        self._wake()

    def _end_followers(self) -> None:
        for follower in self._followers:
            if not follower.tell(None):
                follower.events.get_nowait()
                follower.tell(None)
        self._followers.clear()

    def _wake(self) -> None:
        self._news.set()


class TaskChannel:
    """The channel of a call that is a task."""

    __slots__ = ("_run",)

    def __init__(self, run: TaskRun) -> None:
        self._run = run

    @property
    def capabilities(self) -> frozenset[Capability]:
        return _CAPABILITIES

    @property
    def is_sessionless(self) -> bool:
        return False

    async def progress(self, fraction: float | None, message: str = "") -> None:
        self._run.report(message, {PROGRESS_KEY: fraction})

    async def stream_text(self, piece: TextPiece) -> None:
        self._run.report(piece.for_people, {TEXT_KEY: piece.to_json()})

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        self._run.report(
            message, {LOG_KEY: {"level": level, **({} if data is None else {"data": dict(data)})}}
        )

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        return await self._run.ask(message, schema)

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        raise CannotAskError("sampling")

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        raise CannotAskError("roots")
