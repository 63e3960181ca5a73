"""Passes the requests of an imported server to the caller that they belong to, and sends the answers.

Each answer is a request of this process, which a server could provoke without end. So the requests of a
server are limited: how many within a second, how many at once, and how long it may take to receive an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from retinue.core.errors import AgentUnreachableError, RetinueError
from retinue.mcp.codec.foreign import refusal, response
from retinue.mcp.codec.messages import Message
from retinue.mcp.codec.tasks import RELATED_KEY, find_related
from retinue.mcp.upstream.flood import FloodMeter
from retinue.mcp.upstream.invoker import answer_question
from retinue.mcp.upstream.open_calls import OpenCalls
from retinue.mcp.upstream.tasks import ServerTasks
from retinue.mesh.channel import Channel

MAX_QUESTIONS = 50
"""Requests of one server that are being answered; further ones are refused."""

_REPLY_S = 10.0
"""How long a server may take to receive an answer."""

_NO_METHOD = -32601
_CANNOT_ASK = -32603


class ServerQuestions:
    """The requests of one server that are being answered; ``send`` sends an answer, ``flood`` counts them."""

    def __init__(
        self,
        send: Callable[[Message], Awaitable[None]],
        flood: FloodMeter,
        calls: OpenCalls,
        tasks: ServerTasks,
    ) -> None:
        self._send = send
        self._flood = flood
        self._calls = calls
        self._tasks = tasks
        self._answering: dict[str | int, asyncio.Task[None]] = {}

    async def begin(self, document: Mapping[str, Any], channel: Channel | None) -> asyncio.Task[None] | None:
        """Answer a request in a task; None for a request that is refused at once or ignored.

        ``channel`` is that of the call on whose stream it came, None for the common stream.
        """
        if self._flood.count_request():
            await self._flood.wait()
        request_id = document["id"]
        if not isinstance(request_id, str | int) or request_id in self._answering:
            return None  # not an id of JSON-RPC, or that of an open request
        if len(self._answering) >= MAX_QUESTIONS:
            await self._reply(refusal(request_id, _CANNOT_ASK, f"{MAX_QUESTIONS} requests are open"))
            return None
        task = asyncio.create_task(self._answer(request_id, document, channel))
        self._answering[request_id] = task
        task.add_done_callback(lambda _: self._answering.pop(request_id, None))
        return task

    def withdraw(self, request_id: str | int) -> None:
        """Stop to answer a request that the server has cancelled."""
        if request_id in self._answering:
            self._answering[request_id].cancel()

    def withdraw_all(self) -> None:
        """Stop to answer."""
        for task in self._answering.values():
            task.cancel()

    async def _answer(
        self, request_id: str | int, document: Mapping[str, Any], channel: Channel | None
    ) -> None:
        method, params = document["method"], document.get("params")
        if method == "ping":
            answer = response(request_id, {})
        elif method not in ("elicitation/create", "sampling/createMessage"):
            answer = refusal(request_id, _NO_METHOD, f"Method not found: {method}")
        else:
            asked = params if isinstance(params, Mapping) else {}
            task_id = find_related(document)
            try:
                if channel is None and task_id is not None:
                    # not that of another call, even if only one is in flight
                    channel = await self._tasks.await_channel(task_id)
                if channel is not None:
                    result = await answer_question(channel, str(request_id), method, asked)
                else:
                    with (await self._calls.find_asker(document)).asking() as asker:
                        result = await answer_question(asker, str(request_id), method, asked)
                if task_id is not None:
                    result = {**result, "_meta": {RELATED_KEY: {"taskId": task_id}}}
                answer = response(request_id, result)
            except RetinueError as error:
                answer = refusal(request_id, _CANNOT_ASK, error.message)
        await self._reply(answer)

    async def _reply(self, answer: Message) -> None:
        # a server that has ended, or takes no answer, does not wait for one
        with suppress(AgentUnreachableError, TimeoutError):
            async with asyncio.timeout(_REPLY_S):
                await self._send(answer)
