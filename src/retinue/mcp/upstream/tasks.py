"""Runs tools of an imported server as tasks (2025-11-25), for tools that run in no other way.

The call is answered with a task, whose state is asked for as often as the server wishes. Its status messages
are progress of the call. While it waits for input, its questions come with the response to ``tasks/result``.
The end of the call, by its caller or its time limit, cancels the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from retinue.core.errors import AgentUnreachableError, InputRequiredError, RemoteFaultError
from retinue.mcp.codec.messages import Reply
from retinue.mcp.codec.tasks import ServerTask, find_related, parse_task
from retinue.mcp.upstream.open_calls import HOLD_S
from retinue.mesh.channel import Channel

CANCEL_S = 2.0
"""How long a server may take to cancel a task."""

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Reply]]
"""Sends a request about the task of one call; questions that come with the response go to its caller."""


class _Followed:
    """A task of a call in flight."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.task = ServerTask("", "working")
        self.changed = asyncio.Event()

    async def update(self, task: ServerTask) -> None:
        """Take up a state, and pass on its message if it is a new one."""
        is_news = bool(task.message) and task.message != self.task.message
        self.task = task
        self.changed.set()
        if is_news:
            await self.channel.progress(None, task.message)


class ServerTasks:
    """The tasks of the calls in flight of one session with ``server``."""

    def __init__(self, server: str, *, hold_s: float = HOLD_S) -> None:
        self._server = server
        self._hold_s = hold_s
        self._followed: dict[str, _Followed] = {}
        self._begun = asyncio.Event()
        """Set by the next task that is followed."""

    def find_channel(self, document: Mapping[str, Any]) -> Channel | None:
        """The channel of the call whose task a message of the server names."""
        followed = self._followed.get(find_related(document) or "")
        return None if followed is None else followed.channel

    async def await_channel(self, task_id: str) -> Channel:
        """The channel of the call whose task this is; the task may be created at this moment.

        Raises InputRequiredError where it becomes the task of no call in flight.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._hold_s):
                while task_id not in self._followed:
                    await self._begun.wait()
        if (followed := self._followed.get(task_id)) is None:
            raise InputRequiredError(
                f"server {self._server} asks for task {task_id[:100]!r}, which is no task of a call in flight"
            )
        return followed.channel

    async def take_status(self, document: Mapping[str, Any]) -> None:
        """Take up a notification about the state of a task."""
        task = parse_task(document.get("params"))
        if task is not None and task.id in self._followed:
            await self._followed[task.id].update(task)

    async def run(
        self, create: Coroutine[Any, Any, Reply], ask: Ask, channel: Channel, *, can_cancel: bool
    ) -> Reply:
        """The reply to a call that ``create`` sends, once its task is over.

        Raises AgentUnreachableError and RemoteFaultError. On cancellation the task is cancelled, if
        ``can_cancel`` says that the server does that.
        """
        creating = asyncio.ensure_future(create)
        try:
            reply = await asyncio.shield(creating)
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(creating, ask, can_cancel=can_cancel))
            raise
        task = _created(reply)
        if task is None:
            return reply  # an error, or the result of a server that runs the tool at once
        followed = self._followed[task.id] = _Followed(channel)
        self._begun.set()
        self._begun = asyncio.Event()
        try:
            await followed.update(task)
            return await self._follow(followed, ask)
        except AgentUnreachableError as error:
            error.sent = True  # the task runs, so the call must not be repeated
            raise
        except BaseException:
            if can_cancel and not followed.task.is_over:
                await asyncio.shield(_cancel(task.id, ask))
            raise
        finally:
            del self._followed[task.id]

    async def _follow(self, followed: _Followed, ask: Ask) -> Reply:
        named = {"taskId": followed.task.id}
        while not (followed.task.is_over or followed.task.asks):
            followed.changed.clear()
            try:
                async with asyncio.timeout(followed.task.poll_s):
                    await followed.changed.wait()
            except TimeoutError:
                reply = await ask("tasks/get", named)
                if reply.error is not None:
                    raise self._fault(reply.error, "the state of its task is not known") from None
                await followed.update(parse_task(reply.result) or followed.task)
        if followed.task.status == "cancelled":
            raise self._fault({}, followed.task.message or "it cancelled the task")
        reply = await ask("tasks/result", named)
        if reply.error is not None and followed.task.status == "failed" and followed.task.message:
            raise self._fault(reply.error, followed.task.message)
        return reply

    def _fault(self, error: Mapping[str, Any], problem: str) -> RemoteFaultError:
        code, message = error.get("code"), error.get("message")
        detail = f": {message}" if isinstance(message, str) and message not in problem else ""
        text = f"server {self._server}: {problem}{detail}"
        return RemoteFaultError(self._server, code if type(code) is int else -32603, text, error.get("data"))

    async def _abandon(self, creating: asyncio.Future[Reply], ask: Ask, *, can_cancel: bool) -> None:
        """Cancel a task that the server is still creating, or the request for it."""
        with suppress(AgentUnreachableError, RemoteFaultError, TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                task = _created(await creating)
            if task is not None and can_cancel:
                await _cancel(task.id, ask)


def _created(reply: Reply) -> ServerTask | None:
    return parse_task((reply.result or {}).get("task"))


async def _cancel(task_id: str, ask: Ask) -> None:
    with suppress(AgentUnreachableError, RemoteFaultError, TimeoutError):
        async with asyncio.timeout(CANCEL_S):
            await ask("tasks/cancel", {"taskId": task_id})
