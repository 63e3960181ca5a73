"""The connections of `Context.mcp`: an agent of the mesh by name, or an MCP server by URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from retinue.core.call import Answer, Principal
from retinue.core.errors import ExecutionFailedError, InvalidParametersError, Problem
from retinue.core.record import Listing, Skill
from retinue.core.usage import Usage, add_usage
from retinue.mcp.codec.foreign import (
    Requests,
    call_params,
    completion_params,
    parse_completion,
    parse_contents,
    parse_prompt_messages,
    parse_prompts,
    parse_resources,
    parse_tools,
    read_page,
    trace_for,
)
from retinue.mcp.codec.messages import Reply, name_read
from retinue.mcp.codec.tool_calls import list_questions, read_answer, read_state
from retinue.mcp.upstream.client import AgentClient
from retinue.mcp.upstream.http_transport import HttpTransport
from retinue.mcp.upstream.invoker import MAX_ROUNDS, answer_question, read_reply
from retinue.mcp.upstream.open_calls import RequestLimit
from retinue.mcp.upstream.session import MAX_LISTED, ServerSession, fault_of
from retinue.mesh.channel import Channel
from retinue.mesh.guard.spending import deduct_usage
from retinue.mesh.guard.trace_guard import OutgoingCall
from retinue.mesh.reading import Completion, PromptMessage, PromptText
from retinue.mesh.servers import Ask, ServerRequest
from retinue.web.codec.trace import parse_trace_meta
from retinue.web.http_client import HttpClient

Route = Callable[[str], Awaitable[tuple[Listing, AgentClient]]]
"""Finds where an agent is reached over MCP; raises UnknownAgentError and NotAllowedError."""

Send = Callable[[str, Mapping[str, Any]], Awaitable[Reply]]

_LISTS = {
    "tools": ("tools/list",),
    "resources": ("resources/list", "resources/templates/list"),
    "prompts": ("prompts/list",),
}
_NO_METHOD = -32601


class MeshServers:
    """The servers that the skills of one process use; URLs pass the checks of ``http``.

    Requests to one URL are limited as those to an import are: the limit ends a loop through a server that
    forwards no trace.
    """

    def __init__(self, http: HttpClient, route: Route, client_version: str, *, team: str = "") -> None:
        """``team`` is that of the agent that asks, "" for none."""
        self._http = http
        self._route = route
        self._version = client_version
        self._team = team
        self._limits: WeakValueDictionary[str, RequestLimit] = WeakValueDictionary()

    @asynccontextmanager
    async def connect(self, server: str, headers: Mapping[str, str]) -> AsyncIterator[Ask]:
        """A connection; that to a URL is opened by its first request and closed on leaving."""
        if "://" not in server:
            if headers:
                problem = f"headers belong to a URL, and {server!r} is the name of an agent"
                raise InvalidParametersError([Problem("headers", problem)])
            listing, client = await self._route(server)
            yield _AgentConnection(listing, client, self._version, self._team).ask
            return
        limit = self._limits.setdefault(server, RequestLimit(server))
        transport = HttpTransport(server, self._http, server, headers)
        try:
            yield _UrlConnection(ServerSession(server, transport, self._version), transport, limit).ask
        finally:
            await transport.aclose()


class _UrlConnection:
    """One session with a server at a URL."""

    def __init__(self, session: ServerSession, transport: HttpTransport, limit: RequestLimit) -> None:
        self._session = session
        self._transport = transport
        self._limit = limit
        self._starting = asyncio.Lock()
        self._is_started = False

    async def ask(
        self, request: ServerRequest, outgoing: OutgoingCall, principal: Principal, channel: Channel
    ) -> Any:
        outgoing.record_usage(0)  # its own calls are not of this mesh
        with self._limit.running():
            result = await self._send(request, trace_for(outgoing.trace), channel)
        return outgoing.take_answer(result) if isinstance(result, Answer) else result

    async def _send(self, request: ServerRequest, meta: Mapping[str, Any], channel: Channel) -> Any:
        async with self._starting:
            if not self._is_started:
                self._transport.trace = parse_trace_meta(meta)
                await self._session.start(meta)
                self._is_started = True
        if request.kind == "call":
            return await self._session.call(Skill(request.name), dict(request.arguments), meta, channel)

        async def send(method: str, params: Mapping[str, Any]) -> Reply:
            return Reply(dict(await self._session.read(method, params, meta, channel)), None)

        return await _read(self._session.name, request, send)


class _AgentConnection:
    """Requests of 2026-07-28 to an agent, each with the trace signed for it."""

    def __init__(self, listing: Listing, client: AgentClient, client_version: str, team: str) -> None:
        self._listing = listing
        self._client = client
        self._team = team
        self._requests = Requests("retinue", client_version, era="modern")

    async def ask(
        self, request: ServerRequest, outgoing: OutgoingCall, principal: Principal, channel: Channel
    ) -> Any:
        caller = replace(principal, team=self._team)

        async def send(method: str, params: Mapping[str, Any]) -> Reply:
            return await self._converse(method, params, outgoing, caller, channel)

        name = self._listing.record.name
        if request.kind == "call":
            reply = await send("tools/call", call_params(Skill(request.name), dict(request.arguments), {}))
            return read_answer(reply, name, Skill(request.name))
        return await _read(name, request, send)

    async def _converse(
        self,
        method: str,
        params: Mapping[str, Any],
        outgoing: OutgoingCall,
        principal: Principal,
        channel: Channel,
    ) -> Reply:
        usage: Usage | None = None
        for _ in range(MAX_ROUNDS):
            trace = outgoing.trace if usage is None else deduct_usage(outgoing.trace, usage)
            message = self._requests.of(method, params, capabilities=channel.capabilities)
            signed_for = str(params["name"]) if method == "tools/call" else name_read(message)
            sending = self._client.post(self._listing, message, trace, principal, signed_for=signed_for)
            async with sending as response:
                reply = await read_reply(response, channel)
            usage = add_usage(usage, self._client.record_reply(outgoing, sending.trace, reply))
            outgoing.usage = outgoing.usage if usage is None else usage
            if method.endswith("/list"):
                outgoing.used = 0  # it runs nothing
            if not reply.needs_input:
                return reply
            answers = {
                key: await answer_question(channel, key, asked_method, asked_params)
                for key, asked_method, asked_params in list_questions(reply)
            }
            params = {**params, "inputResponses": answers}
            if (state := read_state(reply)) is not None:
                params["requestState"] = state
        name = self._listing.record.name
        raise ExecutionFailedError(f"agent {name} asks without end: over {MAX_ROUNDS} rounds")


async def _read(server: str, request: ServerRequest, send: Send) -> Any:
    """A list or a read, as nouns of the mesh."""
    if request.kind in _LISTS:
        entries = [entry for method in _LISTS[request.kind] for entry in await _list(server, method, send)]
        if request.kind == "tools":
            return tuple(parse_tools(entries, "exposed"))
        if request.kind == "resources":
            return tuple(parse_resources(entries, "exposed"))
        return tuple(parse_prompts(entries, "exposed"))
    if request.kind == "resource":
        return parse_contents(
            request.name, await _result(server, "resources/read", {"uri": request.name}, send)
        )
    if request.kind == "prompt":
        params: dict[str, Any] = {"name": request.name, "arguments": dict(request.arguments)}
        result = await _result(server, "prompts/get", params, send)
        described = result.get("description")
        messages = tuple(PromptMessage(role, part) for role, part in parse_prompt_messages(result))
        return PromptText(messages, described if isinstance(described, str) else "")
    params = completion_params(request.name, request.argument, request.value, request.arguments)
    return Completion(*parse_completion(await _result(server, "completion/complete", params, send)))


async def _list(server: str, method: str, send: Send) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    cursor: str | None = None
    while len(rows) < MAX_LISTED:
        reply = await send(method, {} if cursor is None else {"cursor": cursor})
        if reply.error is not None and reply.error.get("code") == _NO_METHOD:
            break  # a server without resources or prompts has none
        if reply.error is not None:
            raise fault_of(server, reply.error)
        page, cursor = read_page(method, reply.result or {})
        rows += page
        if cursor is None or not page:
            break
    return rows


async def _result(server: str, method: str, params: Mapping[str, Any], send: Send) -> Mapping[str, Any]:
    reply = await send(method, params)
    if reply.error is not None:
        raise fault_of(server, reply.error)
    return reply.result or {}
