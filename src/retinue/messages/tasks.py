"""Runs accepted tasks in the background: start, status, cancellation and news.

A task is one call on the dispatch path. It belongs to the principal that requested it, for others it does not
exist. Results are kept for an hour, at most ``KEEP`` of them; `retinue.messages.journal` stores them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from retinue.core.call import Outcome, TextPiece, new_id
from retinue.core.errors import BusyError, ExecutionFailedError
from retinue.mesh.channel import Capability, Channel, LogLevel, NullChannel
from retinue.messages.codec.envelope import Envelope
from retinue.messages.codec.payloads import PerformativeReply, accepted, failed, reply_of_outcome

_log = structlog.get_logger(__name__)

RUNNING = 500
"""Tasks that run at once; one more is rejected as busy."""

KEEP = 1_000
KEEP_S = 3600.0

_CAPABILITIES: frozenset[Capability] = frozenset({"progress", "log"})

News = Callable[["MessageTask", PerformativeReply], None]
"""Receives the messages about a task: TASK_ACCEPT with its progress, and the reply that ends it."""


class NewsChannel(NullChannel):
    """Turns progress and log lines of a task into news; questions fail, because news have no answers.

    It claims to listen only where the task is to be accepted at once, because through a hub, a call with
    progress takes a longer way.
    """

    def __init__(self, tell: Callable[[str], None], *, listens: bool) -> None:
        self._tell = tell
        if listens:
            self.capabilities = _CAPABILITIES

    async def progress(self, fraction: float | None, message: str = "") -> None:
        share = "" if fraction is None else f"{fraction:.0%}"
        self._tell(" ".join(part for part in (share, message) if part) or "running")

    async def stream_text(self, piece: TextPiece) -> None:
        if piece.text.strip():
            self._tell(piece.for_people)

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        self._tell(f"{level}: {message}")


@dataclass(slots=True, eq=False)
class MessageTask:
    """One task; ``reply`` is the message that ended it, None while it runs.

    ``waiting`` is the number of requests that wait for its end; ``ran_to_end``: its skill answered, or failed
    by itself.
    """

    id: str
    owner: str
    request: Envelope
    agent: str
    comments: str = "running"
    reply: PerformativeReply | None = None
    ended_at: float | None = None
    calls_used: int | None = None
    observers: list[News] = field(default_factory=list)
    work: asyncio.Task[None] | None = None
    waiting: int = 0
    ran_to_end: bool = False

    def describe(self) -> PerformativeReply:
        """The state of the task: its end, otherwise TASK_ACCEPT with its progress."""
        return self.reply or accepted(self.id, self.comments)

    def names(self) -> tuple[str, ...]:
        """The keys of a task: its id, and the ids of the request."""
        ids = (self.id, self.request.message_id, self.request.reply_with)
        return tuple(dict.fromkeys(reference for reference in ids if reference is not None))


Run = Callable[[Channel], Awaitable[Outcome]]


class Tasks:
    """The tasks of one process."""

    def __init__(
        self,
        *,
        running: int = RUNNING,
        keep: int = KEEP,
        keep_s: float = KEEP_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = running
        self._keep = keep
        self._keep_s = keep_s
        self._clock = clock
        self._running: set[MessageTask] = set()
        self._ended: dict[str, MessageTask] = {}
        self._named: dict[tuple[str, str], MessageTask] = {}

    def start(
        self, request: Envelope, owner: str, agent: str, run: Run, *, listens: bool = True
    ) -> MessageTask:
        """Start a task; ``listens`` = its progress is asked for.

        Raises BusyError when too many are running.
        """
        if len(self._running) >= self._limit:
            raise BusyError(f"{self._limit} tasks are running", 1.0)
        task = MessageTask(new_id(), owner, request, agent)
        for name in task.names():
            self._named[owner, name] = task
        self._running.add(task)
        task.work = asyncio.create_task(self._work(task, run, listens), name=f"message task {task.id}")
        # before the callbacks of the waiting code
        task.work.add_done_callback(lambda _: self._settle(task))
        return task

    def find(self, reference: str, owner: str) -> MessageTask | None:
        """The task of this owner that an id names: its own, the message's, or ``reply_with``."""
        self._prune()
        return self._named.get((owner, reference.removeprefix("task:")))

    def forget(self, task: MessageTask) -> None:
        """Drop a task that has ended."""
        self._ended.pop(task.id, None)
        for name in task.names():
            if self._named.get((task.owner, name)) is task:
                del self._named[task.owner, name]

    async def cancel(self, task: MessageTask) -> None:
        """Cancel the call behind a task and wait until it has ended."""
        if task.work is not None and not task.work.done():
            task.work.cancel()
            await asyncio.gather(task.work, return_exceptions=True)

    def adopt(self, task: MessageTask, age_s: float) -> None:
        """Keep a task of an earlier process that has ended ``age_s`` seconds ago."""
        task.ended_at = self._clock() - max(age_s, 0.0)
        for name in task.names():
            self._named[task.owner, name] = task
        self._ended[task.id] = task
        self._prune()

    async def aclose(self, reply_of: Callable[[str], PerformativeReply] | None = None) -> None:
        """Cancel every task; ``reply_of`` gives the last reply of the task with this id."""
        running = list(self._running)
        for task in running:
            if reply_of is not None and task.reply is None:
                task.reply = reply_of(task.id)
        await asyncio.gather(*(self.cancel(task) for task in running))

    async def _work(self, task: MessageTask, run: Run, listens: bool) -> None:
        def tell(comments: str) -> None:
            task.comments = comments[:500]
            self._notify(task, task.describe())

        try:
            outcome = await run(NewsChannel(tell, listens=listens))
            task.calls_used = outcome.calls_used
            task.ran_to_end = outcome.error is None or isinstance(outcome.error, ExecutionFailedError)
            task.reply = reply_of_outcome(outcome, task.id)
        except Exception:  # noqa: BLE001 - a request for the task must get an answer
            _log.exception("a task broke", task=task.id)
            task.reply = failed("internal_error", f"internal error — see the log for task {task.id}")

    def _settle(self, task: MessageTask) -> None:
        """Keep the end of a task; a cancelled one may never have begun."""
        if task.reply is None:
            task.reply = failed("cancelled", f"task {task.id} was cancelled", {"task_id": task.id})
        self._running.discard(task)
        task.ended_at = self._clock()
        self._ended[task.id] = task
        self._prune()
        self._notify(task, task.reply)

    def _notify(self, task: MessageTask, reply: PerformativeReply) -> None:
        for observer in list(task.observers):
            observer(task, reply)

    def _prune(self) -> None:
        limit = self._clock() - self._keep_s
        while self._ended:
            oldest = next(iter(self._ended.values()))
            if len(self._ended) <= self._keep and (oldest.ended_at or 0.0) > limit:
                return
            self.forget(oldest)
