"""A session with an MCP server of somebody else: start, lists, calls, questions of the server.

`ServerSession` speaks both protocol eras over a `Transport`: HTTP (`mcp.upstream.http_transport`) or the
standard streams of a program (`mcp.stdio.server_program`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Protocol

import structlog

from retinue.core.call import Answer
from retinue.core.errors import AgentUnreachableError, ExecutionFailedError, RemoteFaultError, RetinueError
from retinue.core.record import Skill
from retinue.mcp.codec.foreign import (
    Requests,
    ServerFacts,
    ServerLists,
    call_params,
    parse_discovered,
    parse_initialized,
    parse_prompts,
    parse_resources,
    read_page,
    refusal,
    response,
)
from retinue.mcp.codec.messages import Message, Reply, notification, parse_reply
from retinue.mcp.codec.tool_calls import list_questions, parse_feedback, read_answer, read_state
from retinue.mcp.upstream.invoker import MAX_ROUNDS, answer_question
from retinue.mesh.channel import Channel, NullChannel

MAX_LISTED = 10_000
"""Entries of one list of a server; the rest is left out, with a line in the log."""

_NO_METHOD = -32601
_CANNOT_ASK = -32603
_GIVE_UP_S = 2.0
"""How long a cancelled request may take to tell the server so."""

_log = structlog.get_logger("retinue.imports")


class Transport(Protocol):
    """A connection to one MCP server. Every method raises AgentUnreachableError when it breaks."""

    @property
    def place(self) -> str:
        """The url or the command, for people."""

    @property
    def ends_with_stream(self) -> bool:
        """Whether the end of `listen` is the end of the connection."""

    async def open(self) -> None:
        """Start what must be started."""

    def exchange(self, message: Message) -> AsyncGenerator[Mapping[str, Any], None]:
        """Send a request and yield the server's messages about it, the response last."""

    def listen(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield messages that belong to no request, until the connection ends."""

    async def send(self, message: Message) -> None:
        """Send a notification or a response."""

    def agree(self, facts: ServerFacts) -> None:
        """Use what the server agreed to from now on."""

    async def aclose(self) -> None:
        """End the connection and what belongs to it."""


class ServerSession:
    """One session with the server ``name``; requests may run at the same time."""

    def __init__(self, name: str, transport: Transport, client_version: str) -> None:
        self.name = name
        self.facts = ServerFacts("handshake", None)
        self._transport = transport
        self._requests = Requests("retinue", client_version)

    async def start(self) -> ServerFacts:
        """Agree on a protocol version. Raises AgentUnreachableError and RemoteFaultError."""
        reply = await self._exchange(self._requests.initialize(), NullChannel())
        if reply.error is None:
            self.facts = parse_initialized(reply.result or {})
        else:
            modern = await self._exchange(self._requests.discover(), NullChannel())
            if modern.error is not None:
                raise _fault(self.name, reply.error)
            self.facts = parse_discovered(modern.result or {})
        self._requests.era = self.facts.era
        self._transport.agree(self.facts)
        if self.facts.era == "handshake":
            await self._transport.send(notification("notifications/initialized"))
        return self.facts

    async def read_lists(self) -> ServerLists:
        """Everything that the server offers. Raises AgentUnreachableError and RemoteFaultError."""
        offers = self.facts.capabilities
        tools = await self._list("tools/list") if "tools" in offers else []
        resources = await self._list("resources/list") if "resources" in offers else []
        templates = await self._list("resources/templates/list") if "resources" in offers else []
        prompts = await self._list("prompts/list") if "prompts" in offers else []
        return ServerLists(
            tuple(tools),
            (*parse_resources(resources), *parse_resources(templates)),
            tuple(parse_prompts(prompts)),
        )

    async def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Call ``on_change`` when a list of the server has changed; returns when the connection ends."""
        async with aclosing(self._transport.listen()) as messages:
            async for document in messages:
                method = document.get("method")
                if isinstance(method, str) and method.endswith("/list_changed"):
                    await on_change()
                else:
                    await self._take(document, NullChannel())

    async def call(
        self, skill: Skill, arguments: Any, trace_meta: Mapping[str, Any], channel: Channel
    ) -> Answer:
        """Run a tool. Raises AgentUnreachableError, RemoteFaultError, and what the channel raises."""
        params = call_params(skill, arguments, trace_meta)
        for _ in range(MAX_ROUNDS):
            message = self._requests.of("tools/call", params, capabilities=channel.capabilities)
            reply = await self._exchange(message, channel)
            if not reply.needs_input:
                return read_answer(reply, self.name, skill)
            answers = {
                key: await answer_question(channel, key, method, asked)
                for key, method, asked in list_questions(reply)
            }
            params = {**params, "inputResponses": answers}
            if (state := read_state(reply)) is not None:
                params["requestState"] = state
        raise ExecutionFailedError(f"server {self.name} asks without end: over {MAX_ROUNDS} rounds")

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result of any other request. Raises AgentUnreachableError and RemoteFaultError."""
        reply = await self._exchange(self._requests.of(method, params), NullChannel())
        if reply.error is not None:
            raise _fault(self.name, reply.error)
        return reply.result or {}

    async def _list(self, method: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        cursor: str | None = None
        while True:
            try:
                result = await self.request(method, {} if cursor is None else {"cursor": cursor})
            except RemoteFaultError as error:
                if error.code == _NO_METHOD:
                    return found  # the server declares the capability, but not this list
                raise
            page, cursor = read_page(method, result)
            found += page
            if cursor is None or not page:
                return found
            if len(found) >= MAX_LISTED:
                _log.warning("list cut", server=self.name, list=method, entries=MAX_LISTED)
                return found[:MAX_LISTED]

    async def _exchange(self, message: Message, channel: Channel) -> Reply:
        try:
            async with aclosing(self._transport.exchange(message)) as messages:
                async for document in messages:
                    if (reply := parse_reply(document)) is not None and document.get("id") == message.id:
                        return reply
                    await self._take(document, channel)
        except asyncio.CancelledError:
            if self.facts.era == "handshake" and message.method != "initialize":
                await asyncio.shield(self._give_up(message))
            raise
        raise AgentUnreachableError(self.name, "its server", "no response", sent=True)

    async def _give_up(self, message: Message) -> None:
        """Tell the server that nobody waits for the response."""
        with suppress(AgentUnreachableError, TimeoutError):
            async with asyncio.timeout(_GIVE_UP_S):
                told = {"requestId": message.id, "reason": "the caller cancelled the call"}
                await self._transport.send(notification("notifications/cancelled", told))

    async def _take(self, document: Mapping[str, Any], channel: Channel) -> None:
        """Pass on progress and log lines; answer a request of the server."""
        if "id" in document and isinstance(document.get("method"), str):
            await self._transport.send(await self._answer(document, channel))
            return
        told = parse_feedback(document)
        if told is not None and told.kind == "progress":
            await channel.progress(told.fraction, told.text)
        elif told is not None:
            await channel.log(told.level, told.text, told.data)  # type: ignore[arg-type]

    async def _answer(self, document: Mapping[str, Any], channel: Channel) -> Message:
        request_id, method, params = document["id"], document["method"], document.get("params")
        if method == "ping":
            return response(request_id, {})
        if method not in ("elicitation/create", "sampling/createMessage"):
            return refusal(request_id, _NO_METHOD, f"Method not found: {method}")
        try:
            asked = params if isinstance(params, Mapping) else {}
            return response(request_id, await answer_question(channel, str(request_id), method, asked))
        except RetinueError as error:
            return refusal(request_id, _CANNOT_ASK, error.message)


def _fault(name: str, error: Mapping[str, Any]) -> RemoteFaultError:
    code, message = error.get("code"), error.get("message")
    return RemoteFaultError(
        name,
        code if type(code) is int else -32603,
        message if isinstance(message, str) else "no message given",
        error.get("data"),
    )
