"""A session with a foreign MCP server: start, lists, calls, questions of the server.

`ServerSession` speaks both protocol eras over a `Transport`: HTTP (`mcp.upstream.http_transport`) or the
standard streams of a program (`mcp.stdio.server_program`). Every request and notification carries a trace in
``_meta``, which HTTP repeats in headers: that of the call that causes it, else one of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, nullcontext, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import structlog

from retinue.core.call import Answer
from retinue.core.errors import AgentUnreachableError, ExecutionFailedError, RemoteFaultError
from retinue.core.record import Skill
from retinue.mcp.codec.foreign import (
    Era,
    ForeignServerFacts,
    Requests,
    ServerLists,
    call_params,
    offers_single_requests,
    parse_discovered,
    parse_initialized,
    read_page,
)
from retinue.mcp.codec.messages import Message, Reply, notification, parse_reply, with_meta
from retinue.mcp.codec.tasks import STATUS_METHOD, find_related, needs_task
from retinue.mcp.codec.tool_calls import find_lacking, param_headers, parse_feedback, read_answer, read_state
from retinue.mcp.codec.wire import VERSION_KEY
from retinue.mcp.upstream.flood import LogLines
from retinue.mcp.upstream.invoker import MAX_ROUNDS, answer_questions
from retinue.mcp.upstream.open_calls import OpenCalls
from retinue.mcp.upstream.questions import ServerQuestions
from retinue.mcp.upstream.tasks import ServerTasks
from retinue.mcp.upstream.traces import TraceMeta, own_trace, trace_of
from retinue.mcp.upstream.transport import Transport
from retinue.mesh.channel import Channel, NullChannel

MAX_LISTED = 10_000
"""Entries of one list of a server; the rest is left out, with a line in the log."""

_NO_METHOD = -32601
_GIVE_UP_S = 2.0
"""How long a cancelled request may take to tell the server so."""

_PROBE_S = 5.0
"""How long a server with a session may take to say whether it speaks 2026-07-28, too."""

_KEPT_S = 60.0
"""How much longer than the time of its call a server is asked to keep a task."""

_TASK_S = 3600.0
"""The time of a call without a limit that runs as a task."""

_NOBODY = NullChannel()

_log = structlog.get_logger("retinue.imports")


class ServerSession:
    """One session with the server ``name``; requests may run at the same time.

    A server at a url may speak both eras. Calls of a client of 2026-07-28 then go to it as that client would
    send them, all others in the session, because a tool that asks in one era only is called in the era of its
    caller.
    """

    def __init__(self, name: str, transport: Transport, client_version: str) -> None:
        self.name = name
        self.facts = ForeignServerFacts("handshake", None)
        self._transport = transport
        self._requests = Requests("retinue", client_version)
        self._open = OpenCalls(name)
        self._tasks = ServerTasks(name)
        self._questions = ServerQuestions(transport.send, transport.flood, self._open, self._tasks)
        self._lines = LogLines(name)
        self._followed: frozenset[str] = frozenset()
        self._follows_others = asyncio.Event()
        self._is_level_set = False
        self._task_tools: frozenset[str] | None = None
        """The tools that run as tasks only; None before they are known."""

    @property
    def calls_in_flight(self) -> int:
        return len(self._open)

    async def start(self, trace_meta: TraceMeta | None = None) -> ForeignServerFacts:
        """Agree on a protocol version. Raises AgentUnreachableError and RemoteFaultError.

        ``trace_meta`` is the trace of the call that needs the session, None without one.
        """
        trace = trace_meta or own_trace()
        reply = await self._exchange(self._requests.initialize(), _NOBODY, trace)
        if reply.error is None:
            self.facts = parse_initialized(reply.result or {})
        else:
            modern = await self._exchange(self._requests.discover(), _NOBODY, trace)
            if modern.error is not None:
                raise fault_of(self.name, reply.error)
            self.facts = parse_discovered(modern.result or {})
        self._requests.era = self.facts.era
        self._transport.agree(self.facts)
        if self.facts.era == "handshake":
            await self._transport.send(with_meta(notification("notifications/initialized"), trace))
            if not self._transport.ends_with_stream:  # standard streams have one era
                self.facts = replace(self.facts, is_bilingual=await self._takes_single_requests(trace))
        return self.facts

    async def _takes_single_requests(self, trace: TraceMeta) -> bool:
        try:
            async with asyncio.timeout(_PROBE_S):
                reply = await self._exchange(self._requests.discover(), _NOBODY, trace)
        except (AgentUnreachableError, RemoteFaultError, TimeoutError):
            return False  # older servers refuse it in every way; the session stands
        return offers_single_requests(reply.result or {})

    async def read_lists(self, trace_meta: TraceMeta | None = None) -> ServerLists:
        """Everything that the server offers. Raises AgentUnreachableError and RemoteFaultError."""
        offers, trace = self.facts.capabilities, trace_meta or own_trace()
        tools = await self._list("tools/list", trace) if "tools" in offers else []
        resources = await self._list("resources/list", trace) if "resources" in offers else []
        resources += await self._list("resources/templates/list", trace) if "resources" in offers else []
        prompts = await self._list("prompts/list", trace) if "prompts" in offers else []
        as_tasks = self._note_task_tools(tools)
        if self.facts.runs_tasks or not as_tasks:
            return ServerLists(tuple(tools), tuple(resources), tuple(prompts))
        callable_ones = tuple(tool for tool in tools if not needs_task(tool))
        return ServerLists(callable_ones, tuple(resources), tuple(prompts), tuple(sorted(as_tasks)))

    def _note_task_tools(self, tools: list[Mapping[str, Any]]) -> frozenset[str]:
        self._task_tools = frozenset(str(tool.get("name")) for tool in tools if needs_task(tool))
        return self._task_tools

    async def watch(self, on_lists: Callable[[], None], on_resource: Callable[[str], None]) -> None:
        """Call ``on_lists`` when a list has changed and ``on_resource`` with the URI of a changed resource.

        Returns when the connection ends, or the server says no more of changes.
        """

        async def read(messages: AsyncGenerator[Mapping[str, Any], None]) -> None:
            async with aclosing(messages):
                async for document in messages:
                    method = document.get("method")
                    if method == "notifications/resources/updated":
                        params = document.get("params")
                        uri = params.get("uri") if isinstance(params, Mapping) else None
                        if isinstance(uri, str):
                            on_resource(uri)
                    elif isinstance(method, str) and method.endswith("/list_changed"):
                        on_lists()
                    else:
                        await self._take(document, None)

        listening = asyncio.create_task(read(self._transport.listen()))
        subscribed = asyncio.create_task(self._subscribe(read))
        try:
            if self._transport.ends_with_stream:
                await listening
            else:
                await asyncio.gather(listening, subscribed)
        finally:
            self._questions.withdraw_all()
            for task in (listening, subscribed):
                task.cancel()
            await asyncio.gather(listening, subscribed, return_exceptions=True)

    async def _subscribe(
        self, read: Callable[[AsyncGenerator[Mapping[str, Any], None]], Awaitable[None]]
    ) -> None:
        """The stream of changes of the sessionless era, opened again when other resources are followed.

        A server of both eras may tell only there what a request of that era has changed.
        """
        while self.facts.era == "modern" or self.facts.is_bilingual:
            self._follows_others.clear()
            message = self._requests.listen(self._followed if self.facts.era == "modern" else ())
            message = with_meta(message, own_trace())
            stream = asyncio.ensure_future(read(self._transport.exchange(message)))
            moved = asyncio.create_task(self._follows_others.wait())
            try:
                await asyncio.wait({stream, moved}, return_when=asyncio.FIRST_COMPLETED)
                if stream.done():
                    stream.result()
                    return
                await self._give_up(message)
            finally:
                for task in (stream, moved):
                    task.cancel()
                await asyncio.gather(stream, moved, return_exceptions=True)

    async def follow(self, uris: frozenset[str]) -> None:
        """Hear of changes of these resources and no others. Raises AgentUnreachableError."""
        before, self._followed = self._followed, uris
        if self.facts.era == "modern":
            if uris != before:
                self._follows_others.set()
            return
        if not self.facts.subscribes:
            return
        requests = [("resources/subscribe", uri) for uri in sorted(uris - before)]
        requests += [("resources/unsubscribe", uri) for uri in sorted(before - uris)]
        for method, uri in requests:
            try:
                await self.request(method, {"uri": uri}, own_trace())
            except RemoteFaultError as error:
                _log.warning("not followed", server=self.name, resource=uri, error=error.message)

    async def call(
        self,
        skill: Skill,
        arguments: Any,
        trace_meta: Mapping[str, Any],
        channel: Channel,
        *,
        within_s: float | None = None,
    ) -> Answer:
        """Run a tool. Raises AgentUnreachableError, RemoteFaultError, and the errors of the channel.

        ``within_s`` is the time that the caller gives it; the caller cancels it then.
        """
        params = call_params(skill, arguments, trace_meta)
        if self.facts.runs_tasks:
            if self._task_tools is None:  # the first call of a connection that has not read the lists
                self._note_task_tools(await self._list("tools/list", trace_of(params)))
            if skill.id in (self._task_tools or ()):
                return read_answer(await self._run_task(params, channel, within_s), self.name, skill)
        repeated = param_headers(skill.input_schema, arguments) if self._era_for(channel) == "modern" else {}
        reply = await self._converse("tools/call", params, skill.id, channel, repeated)
        return read_answer(reply, self.name, skill)

    async def read(
        self, method: str, params: Mapping[str, Any], trace_meta: Mapping[str, Any], channel: Channel
    ) -> Mapping[str, Any]:
        """The result of a read. Raises AgentUnreachableError, RemoteFaultError, and the errors of the
        channel."""
        sent = {**params, "_meta": dict(trace_meta)}
        reply = await self._converse(method, sent, method, channel)
        if reply.error is not None:
            raise find_lacking(reply.error) or fault_of(self.name, reply.error)
        return reply.result or {}

    async def request(self, method: str, params: Mapping[str, Any], trace: TraceMeta) -> Mapping[str, Any]:
        """The result of any other request. Raises AgentUnreachableError and RemoteFaultError."""
        reply = await self._exchange(self._requests.of(method, params), _NOBODY, trace)
        if reply.error is not None:
            raise fault_of(self.name, reply.error)
        return reply.result or {}

    async def _list(self, method: str, trace: TraceMeta) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = []
        cursor: str | None = None
        while True:
            try:
                result = await self.request(method, {} if cursor is None else {"cursor": cursor}, trace)
            except RemoteFaultError as error:
                if error.code == _NO_METHOD:
                    return rows  # the server declares the capability, but not this list
                raise
            page, cursor = read_page(method, result)
            rows += page
            if cursor is None or not page:
                return rows
            if len(rows) >= MAX_LISTED:
                _log.warning("list cut", server=self.name, list=method, entries=MAX_LISTED)
                return rows[:MAX_LISTED]

    def _era_for(self, channel: Channel) -> Era:
        return "modern" if self.facts.is_bilingual and channel.is_sessionless else self.facts.era

    async def _converse(
        self,
        method: str,
        params: Mapping[str, Any],
        name: str,
        channel: Channel,
        repeated: Mapping[str, str] = MappingProxyType({}),
    ) -> Reply:
        """The last reply to a request, after the caller has answered all questions in results."""
        era, trace = self._era_for(channel), trace_of(params)
        if "log" in channel.capabilities and era == "handshake":
            await self._ask_for_log_lines(trace)
        sent = params
        for _ in range(MAX_ROUNDS):
            message = self._requests.of(method, sent, capabilities=channel.capabilities, era=era)
            if repeated:
                message = replace(message, param_headers=repeated)
            # a request outside the session gets everything on its own stream
            is_counted = era == self.facts.era
            async with self._open.running(message.id, name, channel) if is_counted else nullcontext():
                reply = await self._exchange(message, channel, trace)
            if not reply.needs_input:
                return reply
            # a round holds the state of the last result, or none
            sent = {**params, "inputResponses": await answer_questions(channel, reply)}
            if (state := read_state(reply)) is not None:
                sent["requestState"] = state
        raise ExecutionFailedError(f"server {self.name} asks without end: over {MAX_ROUNDS} rounds")

    async def _run_task(self, params: Mapping[str, Any], channel: Channel, within_s: float | None) -> Reply:
        """The reply to a call that runs as a task; it is in the session also for a client of 2026-07-28."""
        trace = trace_of(params)
        if "log" in channel.capabilities:
            await self._ask_for_log_lines(trace)
        ttl_ms = int(((_TASK_S if within_s is None else within_s) + _KEPT_S) * 1000)
        sent = {**params, "task": {"ttl": ttl_ms}}
        message = self._requests.of("tools/call", sent, capabilities=channel.capabilities)

        async def ask(method: str, named: Mapping[str, Any]) -> Reply:
            return await self._exchange(self._requests.of(method, named), channel, trace)

        async with self._open.running(message.id, str(params["name"]), channel, is_task=True):
            creating = self._exchange(message, channel, trace)
            return await self._tasks.run(creating, ask, channel, can_cancel=self.facts.cancels_tasks)

    async def _ask_for_log_lines(self, trace: TraceMeta) -> None:
        """Set the log level of a session once; each message is then filtered by the caller's own level."""
        if self._is_level_set or "logging" not in self.facts.capabilities:
            return
        self._is_level_set = True
        with suppress(RemoteFaultError):  # a server that declares logging need not have levels
            await self.request("logging/setLevel", {"level": "debug"}, trace)

    async def _exchange(self, message: Message, channel: Channel, trace: TraceMeta) -> Reply:
        message = with_meta(message, trace)
        asked: list[asyncio.Task[None]] = []
        try:
            async with aclosing(self._transport.exchange(message)) as messages:
                async for document in messages:
                    if (reply := parse_reply(document)) is not None and document.get("id") == message.id:
                        return reply
                    task = await self._take(document, channel)
                    if task is not None:
                        asked.append(task)
        except asyncio.CancelledError:
            if message.method != "initialize":
                await asyncio.shield(self._give_up(message))
            raise
        finally:
            for task in asked:
                task.cancel()  # the answer to a question of a call that has ended is not needed
        raise AgentUnreachableError(self.name, "its server", "no response", sent=True)

    async def _give_up(self, message: Message) -> None:
        """Cancel the request at the server; over HTTP of 2026-07-28 the end of the stream does."""
        if VERSION_KEY in message.meta and not self._transport.ends_with_stream:
            return
        with suppress(AgentUnreachableError, TimeoutError):
            async with asyncio.timeout(_GIVE_UP_S):
                facts = {"requestId": message.id, "reason": "the caller cancelled the call"}
                cancelled = notification("notifications/cancelled", facts)
                await self._transport.send(with_meta(cancelled, trace_of(message.params)))

    async def _take(self, document: Mapping[str, Any], channel: Channel | None) -> asyncio.Task[None] | None:
        """Pass on progress and log lines; begin to answer a request of the server.

        ``channel`` is that of the call on whose stream the message came, None for the common stream.
        """
        method = document.get("method")
        if channel is None:
            channel = self._tasks.find_channel(document)
        if method == STATUS_METHOD:
            await self._tasks.take_status(document)
            return None
        if "id" in document and isinstance(method, str):
            return await self._questions.begin(document, channel)
        if method == "notifications/cancelled":
            params = document.get("params")
            withdrawn = params.get("requestId") if isinstance(params, Mapping) else None
            if isinstance(withdrawn, str | int):
                self._questions.withdraw(withdrawn)
            return None
        news = parse_feedback(document)
        if news is None:
            return None
        if news.kind == "progress":
            named = self._open.find_by_token(document)
            channel = named.channel if channel is None and named is not None else channel
            channel = channel or _NOBODY
            if news.piece is not None:
                await channel.stream_text(news.piece)
            else:
                await channel.progress(news.fraction, news.text)
        else:
            # A log line on the common stream names no call. With several in flight it belongs to none, nor
            # does that of a task which no call has.
            owner = channel if find_related(document) is not None else channel or self._open.find_only()
            if owner is None or owner is _NOBODY or (channel is None and "log" not in owner.capabilities):
                self._lines.write(news.level, news.text)
            else:
                await owner.log(news.level, news.text, news.data)  # type: ignore[arg-type]
        return None


def fault_of(name: str, error: Mapping[str, Any]) -> RemoteFaultError:
    """The error of a response of server ``name``."""
    code, message = error.get("code"), error.get("message")
    return RemoteFaultError(
        name,
        code if type(code) is int else -32603,
        message if isinstance(message, str) else "no message given",
        error.get("data"),
    )
