"""The endpoint ``/agents/{agent}/mcp``: forwards messages of MCP clients to an agent through the hub.

Each POSTed message is admitted, guarded (the hub adds itself to ``via``), limited to what its principal
may see, and audited; a ``tools/call`` is one dispatch. Responses of the agent pass unchanged, so that
progress, log lines, sampling, elicitation, subscriptions and cancellation work in all protocol versions
(https://modelcontextprotocol.io/specification/2025-11-25/basic/transports, and 2026-07-28).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import replace

import structlog
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.core.call import Call, TraceContext, new_id
from retinue.core.errors import (
    CallTimedOutError,
    ExecutionError,
    ExecutionFailedError,
    InvalidRequestError,
    OutOfMemoryError,
    RequestError,
    RetinueError,
    UnknownAgentError,
)
from retinue.core.record import Listing
from retinue.mcp.codec.messages import Message, name_read, notification, parse_message, render_error
from retinue.mcp.codec.wire import SESSION_HEADER, VERSION_HEADER, NegotiatedSession
from retinue.mcp.relay.agent_view import (
    LISTS,
    BareListings,
    PinnedLookup,
    find_tool,
    narrow_list,
    read_arguments,
    read_item,
)
from retinue.mcp.relay.exchange import RelayExchange, key_of
from retinue.mcp.relay.requests import RelayRequest, RequestReader, SessionGoneError
from retinue.mcp.relay.response_writer import ResponseWriter
from retinue.mcp.relay.sessions import RelayedSessions
from retinue.mcp.upstream.client import AgentClient
from retinue.mesh.channel import Channel, NullChannel, PausingChannel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.dispatch import Dispatcher, use_permission
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.permissions import decide_listings
from retinue.mesh.time_limit import TimeLimit
from retinue.web.codec.merged_traces import merge_traces
from retinue.web.codec.trace import parse_trace_meta
from retinue.web.disconnect import CancelOnDisconnect, read_body, replay

PATH = "/agents/{agent}/mcp"
ENDPOINT = "mcp"

_METHODS = ("POST", "GET", "DELETE")
_CANCEL_WITHIN_S = 5.0
_NO_TRACE = TraceContext(id="")
_SESSION = SESSION_HEADER.encode()

_log = structlog.get_logger(__name__)


Fallback = Callable[[Listing], Awaitable[ASGIApp]]
"""Returns the MCP server to use for an agent that has none."""

HasFallbackSession = Callable[[Listing, str], bool]
"""Whether a process before this one had a session at the server that is used for an agent."""


def relay_route(endpoint: RelayEndpoint) -> Route:
    """The route of the relay."""
    return Route(PATH, endpoint)


class RelayEndpoint:
    """The endpoint as an ASGI app; ``fallback`` serves agents without MCP."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        directory: Directory,
        client: AgentClient,
        *,
        sessions: RelayedSessions | None = None,
        fallback: Fallback | None = None,
        has_fallback_session: HasFallbackSession = lambda listing, session_id: False,
    ) -> None:
        self._has_fallback_session = has_fallback_session
        self._dispatcher = dispatcher
        self._admission = dispatcher.admission
        self._client = client
        self._sessions = RelayedSessions() if sessions is None else sessions
        self._requests = RequestReader(directory, dispatcher.access, self._sessions)
        self._fallback = fallback
        self._bare = BareListings()
        self._cancelling: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = ResponseWriter(send)
        message: Message | None = None
        body: bytes | None = None
        method = scope["method"]
        if method not in _METHODS:
            await writer.whole(405, b"", {"allow": ", ".join(_METHODS)})
            return
        try:
            if method == "POST":
                body = await read_body(receive)
                if body is None:
                    return
                message = parse_message(body)
            listing = await self._requests.find(scope)
            if listing is not None and (self._is_lacking(listing, scope) or self._is_guarded(listing)):
                await self._fall_back(listing, scope, _receive_again(body, receive), send)
                return
            request = await self._requests.make(scope, message, listing)
            used = nullcontext() if request.session is None else self._sessions.using(request.session)
            has_endpoint = True
            with CancelOnDisconnect(receive), used:
                if message is None:
                    await self._pass_stream(method, request, writer)
                else:
                    has_endpoint = await self._pass_message(message, request, writer)
            if not has_endpoint:
                self._client.note_lacking(request.listing)
                await self._fall_back(request.listing, scope, _receive_again(body, receive), send)
        except SessionGoneError:
            await writer.whole(404, render_error(None, -32600, "Session not found"), {})
        except OutOfMemoryError:
            raise  # the security middleware answers it, with a status
        except RetinueError as error:
            status = 404 if isinstance(error, UnknownAgentError) else None
            status = 400 if isinstance(error, RequestError) else status
            await writer.refuse(error, None if message is None else message.id, status=status)
        except Exception:  # noqa: BLE001 - our own mistake: its text belongs in the log, not on the wire
            _log.exception("relay failed", path=scope["path"])
            await writer.refuse(
                ExecutionFailedError("internal error"), None if message is None else message.id
            )

    def _is_lacking(self, listing: Listing, scope: Scope) -> bool:
        if self._fallback is None or not listing.enabled:
            return False
        sessions = [value.decode("latin-1") for name, value in scope["headers"] if name == _SESSION]
        if self._client.lacks_endpoint(listing, in_session=bool(sessions)):
            return True
        if len(sessions) != 1 or self._sessions.is_open(listing.record.name, sessions[0]):
            return False
        is_with_fallback = self._has_fallback_session(listing, sessions[0])
        if is_with_fallback:
            self._client.note_lacking(listing)
        return is_with_fallback

    def _is_guarded(self, listing: Listing) -> bool:
        """Whether guards or policies look at values of the agent, which they cannot see in bytes."""
        return self._fallback is not None and self._dispatcher.is_guarded(listing.name)

    async def _fall_back(self, listing: Listing, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._fallback is not None
        app = await self._fallback(listing)
        await app(scope, receive, send)

    async def _pass_message(self, message: Message, request: RelayRequest, writer: ResponseWriter) -> bool:
        """Respond to the client; False, without a response, when the agent has no MCP endpoint."""
        is_call = message.kind == "request" and message.method == "tools/call"
        error: RetinueError | None
        async with RelayExchange(self._client, self._sessions, message, request, writer) as exchange:
            try:
                if is_call:
                    error = await self._call(message, request, exchange)
                else:
                    error = await self._carry(message, request, exchange)
            finally:
                if exchange.is_given_up:
                    self._give_up(message, request, exchange)
            if exchange.final is not None and (error is None or error is exchange.fault):
                final = exchange.final
                if message.method in LISTS and error is None:
                    view = self._dispatcher.access.view_of(request.principal)
                    scopes = request.principal.scopes
                    await decide_listings(view, [request.listing])
                    final = narrow_list(final, message.method, request.listing, scopes, view)
                # a stream of one event costs more than the message in it
                await writer.finish(final, may_unwrap=is_call)
                return True
            if exchange.lacks_endpoint and self._fallback is not None:
                return False
            assert error is not None, "a response without an end is an error"
            status = None if message.kind == "request" else 502 if isinstance(error, ExecutionError) else 400
            await writer.refuse(error, message.id, tool_call=is_call, modern=request.is_modern, status=status)
            return True

    async def _call(
        self, message: Message, request: RelayRequest, exchange: RelayExchange
    ) -> RetinueError | None:
        """A tool call: one dispatch with this agent as the only candidate and the exchange as its invoker."""
        name = message.params.get("name")
        if not isinstance(name, str):
            return InvalidRequestError("params.name must be a string")
        dispatcher = replace(
            self._dispatcher,
            lookup=PinnedLookup(self._dispatcher.lookup, request.listing, self._bare),
            invoker_of=lambda _: exchange,
        )
        arguments = message.params.get("arguments")
        skill = find_tool(request.listing.record, name, request.principal.scopes)
        skill_id = name if skill is None else skill.id
        call = self._as_call(message, request, skill_id, {} if arguments is None else arguments)
        return (await dispatcher.dispatch(call, exchange.questions)).error

    async def _carry(
        self, message: Message, request: RelayRequest, exchange: RelayExchange
    ) -> RetinueError | None:
        """Any other message; the response to a question of the agent needs no more than the session."""
        if message.kind == "notification" and not message.method.startswith("notifications/"):
            # a lax server would run it, and no dispatch would have looked at it
            return InvalidRequestError(f"{message.method} is a request: send it with an id")
        try:
            if message.kind == "response":
                if request.session is not None and message.id is not None:
                    answered = request.session.questions.get(key_of(message.id))
                    if answered is not None:
                        answered.set()
                trace = self._admission.guard.forward(self._trace_of(message, request))
                await exchange.send(request.listing, trace, message.method)
                return None
            call = self._as_call(message, request, message.method, message.params)
            agent = request.listing.record.name
            if message.method == "subscriptions/listen":
                with self._admission.message(call, agent) as admitted:
                    trace = self._admission.guard.forward(admitted.trace)
                await exchange.send(request.listing, trace, message.method)
                return None
            timeout_s = self._dispatcher.timeouts.endpoint_s
            with self._admission.message(call, agent) as admitted:
                try:
                    with TimeLimit(timeout_s) as limit:
                        exchange.channel = PausingChannel(exchange.questions, limit)
                        await self._check_read(message, call, request.listing, admitted, exchange.channel)
                        with admitted.forward() as outgoing:
                            await exchange.send(request.listing, outgoing.trace, name_read(message))
                except TimeoutError:
                    raise CallTimedOutError(
                        message.method, timeout_s, layer=f"door {ENDPOINT}", setting="timeouts.door_s"
                    ) from None
        except RetinueError as error:
            return error
        return None

    async def _check_read(
        self, message: Message, call: Call, listing: Listing, admitted: AdmittedCall, channel: Channel
    ) -> None:
        """Let a message pass that reads what policies permit; raises PolicyDeniedError.

        A subscription needs no approval, because it tells only that a resource has changed.
        """
        check = self._dispatcher.check_read
        if check is None or (item := read_item(message)) is None:
            return
        call = replace(call, arguments=read_arguments(message), trace=admitted.trace)
        permitted = await check(call, listing, item, admitted, channel)
        admitted.policy = permitted.note
        if message.method == "resources/subscribe":
            return
        approved = await use_permission(
            permitted, None, NullChannel(), admitted, listing.name, message.method
        )
        if approved is not None:
            admitted.policy = approved.note

    async def _pass_stream(self, method: str, request: RelayRequest, writer: ResponseWriter) -> None:
        """GET: forward unsolicited messages until either side ends the stream. DELETE: end a session."""
        opened = self._client.open(request.listing, method, request.headers, request.principal)
        async with opened as response:
            if response.is_stream:
                await writer.stream(b"", response.headers)
                with suppress(ExecutionError):  # a client whose stream ends opens it again by itself
                    while chunk := await response.read_some():
                        await writer.stream(chunk, response.headers)
                await writer.end()
                return
            body = await response.read()
            is_ended = method == "DELETE" and response.status < 300
            if request.session is not None and (is_ended or response.is_session_gone):
                self._sessions.close(request.session)
            await writer.whole(response.status, body if response.is_json else b"", response.headers)

    def _as_call(self, message: Message, request: RelayRequest, skill: str, arguments: object) -> Call:
        return Call(
            id=new_id(),
            skill=skill,
            arguments=arguments,
            principal=request.principal,
            endpoint=ENDPOINT,
            trace=self._trace_of(message, request),
            agent=request.listing.record.name,
        )

    @staticmethod
    def _trace_of(message: Message, request: RelayRequest) -> TraceContext:
        return merge_traces(request.trace, parse_trace_meta(message.meta)) or _NO_TRACE

    def _give_up(self, message: Message, request: RelayRequest, exchange: RelayExchange) -> None:
        """Cancel the request at the agent: by a message in a session; else the end of the stream does it.

        A client that can resume its stream has not given up.
        """
        if request.session is None or message.kind != "request" or exchange.is_resumable:
            return
        if exchange.trace is None:
            return
        task = asyncio.create_task(self._cancel(message, request, exchange.trace))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _cancel(self, message: Message, request: RelayRequest, trace: TraceContext) -> None:
        wire = NegotiatedSession(request.headers.get(VERSION_HEADER), request.headers.get(SESSION_HEADER))
        params = {"requestId": message.id, "reason": "nobody waits for the answer"}
        cancelled = notification("notifications/cancelled", params)
        sending = self._client.post(
            request.listing,
            cancelled,
            trace,
            request.principal,
            signed_for=cancelled.method,
            headers=wire.headers_of(cancelled),
        )
        with suppress(RetinueError, TimeoutError):
            async with asyncio.timeout(_CANCEL_WITHIN_S), sending as response:
                await response.drain(_CANCEL_WITHIN_S)


def _receive_again(body: bytes | None, receive: Receive) -> Receive:
    """``receive`` of a request whose body was read already."""
    if body is None:
        return receive
    return replay({"type": "http.request", "body": body, "more_body": False}, receive)
