"""The door ``/agents/{agent}/mcp``: every message of an MCP client to an agent, through the hub.

Each POSTed message is admitted, guarded (the hub stands in ``via``), seen with its principal's view and
audited; a ``tools/call`` is one dispatch. What the agent answers passes as it is, so that progress, log
lines, sampling, elicitation, subscriptions and cancellation work in both eras without code for each
(https://modelcontextprotocol.io/specification/2025-11-25/basic/transports, and 2026-07-28).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
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
    RequestError,
    RetinueError,
    UnknownAgentError,
)
from retinue.core.record import Listing
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.gate import Gate
from retinue.mesh.patience import PatientChannel
from retinue.mesh.time_limit import TimeLimit
from retinue.protocols.mcp.messages import (
    Message,
    name_read,
    parse_message,
    render_cancelled,
    render_error,
)
from retinue.protocols.trace import merge_traces, parse_trace_meta, render_trace_meta
from retinue.surfaces.asgi import HangUpWatch, read_body
from retinue.surfaces.mcp_relay.answering import EVENT_STREAM, Answering
from retinue.surfaces.mcp_relay.doorless import Doorless, receive_again
from retinue.surfaces.mcp_relay.exchange import Exchange, Upstream, Upstreams
from retinue.surfaces.mcp_relay.lookup import BareListings, PinnedLookup, find_tool
from retinue.surfaces.mcp_relay.questions import OpenQuestions, key_of
from retinue.surfaces.mcp_relay.sessions import Session, Sessions
from retinue.surfaces.mcp_relay.view import narrow_tools
from retinue.surfaces.mcp_relay.visits import SESSION, VERSION, Agents, SessionGoneError, Visit, Visits

PATH = "/agents/{agent}/mcp"
DOOR = "mcp"

_METHODS = ("POST", "GET", "DELETE")
_CANCEL_WITHIN_S = 5.0
_NO_TRACE = TraceContext(id="")

_log = structlog.get_logger(__name__)


class _NoDoorError(Exception):
    """The agent speaks no MCP; another door is to answer."""

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing.key)
        self.listing = listing


def mcp_relay_route(door: RelayDoor) -> Route:
    """The route of the relay."""
    return Route(PATH, door)


class RelayDoor:
    """The door as an ASGI app."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        agents: Agents,
        upstreams: Upstreams,
        *,
        sessions: Sessions | None = None,
        doorless: Callable[[Listing], Awaitable[ASGIApp]] | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._gate = Gate(dispatcher.guard, dispatcher.limits, dispatcher.events)
        self._upstreams = upstreams
        self._sessions = Sessions() if sessions is None else sessions
        self._visits = Visits(agents, dispatcher.access, self._sessions)
        self._doorless = Doorless(doorless)
        self._bare = BareListings()
        self._cancelling: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Answering(send)
        message: Message | None = None
        body: bytes | None = None
        method = scope["method"]
        if method not in _METHODS:
            await answer.whole(405, b"", {"allow": ", ".join(_METHODS)})
            return
        try:
            if method == "POST":
                body = await read_body(receive)
                if body is None:
                    return
                message = parse_message(body)
            listing = await self._visits.find(scope)
            instead = await self._doorless.find(listing, scope)
            if instead is not None:
                await instead(scope, receive_again(body, receive), send)
                return
            visit = await self._visits.make(scope, message, listing)
            with HangUpWatch(receive), self._sessions.using(visit.session):
                if message is None:
                    await self._pass_stream(method, visit, answer)
                else:
                    await self._pass_message(message, visit, answer)
        except _NoDoorError as found:
            instead = await self._doorless.note(found.listing)
            await instead(scope, receive_again(body, receive), send)
        except SessionGoneError:
            await answer.whole(404, render_error(None, -32600, "Session not found"), {})
        except RetinueError as error:
            status = 404 if isinstance(error, UnknownAgentError) else None
            status = 400 if isinstance(error, RequestError) else status
            await answer.refuse(error, None if message is None else message.id, status=status)
        except Exception:  # noqa: BLE001 - our own mistake: its text belongs in the log, not on the wire
            _log.exception("relay failed", path=scope["path"])
            await answer.refuse(
                ExecutionFailedError("internal error"), None if message is None else message.id
            )

    async def _pass_message(self, message: Message, visit: Visit, answer: Answering) -> None:
        exchange = Exchange(
            self._upstreams,
            message,
            visit.headers,
            visit.principal,
            answer,
            lambda listing, upstream: self._note_session(message, visit, listing, upstream),
            OpenQuestions(visit.session),
        )
        is_call = message.kind == "request" and message.method == "tools/call"
        error: RetinueError | None
        async with exchange:
            try:
                if is_call:
                    error = await self._call(message, visit, exchange)
                else:
                    error = await self._carry(message, visit, exchange)
            finally:
                if exchange.given_up:
                    self._give_up(message, visit, exchange)
            if exchange.final is not None and (error is None or error is exchange.fault):
                final = exchange.final
                if message.method == "tools/list" and error is None:
                    final = narrow_tools(final, visit.listing.record, visit.principal.scopes)
                if is_call and final.message and not answer.streaming:
                    # a stream of one event says no more than the message in it, and costs more
                    await answer.whole(final.status, final.message, final.headers)
                elif final.media_type == EVENT_STREAM:
                    await answer.stream(final.body, final.headers, last=True)
                else:
                    await answer.whole(final.status, final.body, final.headers)
                return
            if not exchange.has_door and visit.session is None and self._doorless.is_open:
                raise _NoDoorError(visit.listing)
            assert error is not None, "an answer without an end is an error"
            status = None if message.kind == "request" else 502 if isinstance(error, ExecutionError) else 400
            await answer.refuse(error, message.id, tool_call=is_call, modern=visit.modern, status=status)

    async def _call(self, message: Message, visit: Visit, exchange: Exchange) -> RetinueError | None:
        """A tool call: one dispatch, whose only candidate is this agent and whose invoker is the exchange."""
        name = message.params.get("name")
        if not isinstance(name, str):
            return InvalidRequestError("params.name must be a string")
        dispatcher = replace(
            self._dispatcher,
            lookup=PinnedLookup(self._dispatcher.lookup, visit.listing, self._bare),
            invoker_of=lambda _: exchange,
        )
        arguments = message.params.get("arguments")
        skill = find_tool(visit.listing.record, name, visit.principal.scopes)
        skill_id = name if skill is None else skill.id
        call = self._as_call(message, visit, skill_id, {} if arguments is None else arguments)
        return (await dispatcher.dispatch(call, exchange.questions)).error

    async def _carry(self, message: Message, visit: Visit, exchange: Exchange) -> RetinueError | None:
        """Everything else; a response to a question of the agent's passes with the session alone."""
        try:
            if message.kind == "response":
                if visit.session is not None and message.id is not None:
                    answered = visit.session.questions.get(key_of(message.id))
                    if answered is not None:
                        answered.set()
                trace = self._dispatcher.guard.forward(self._trace_of(message, visit))
                await exchange.send(visit.listing, trace, message.method)
                return None
            call = self._as_call(message, visit, message.method, message.params)
            agent = visit.listing.record.name
            if message.method == "subscriptions/listen":
                with self._gate.admit(call, agent) as passage:
                    trace = self._dispatcher.guard.forward(passage.trace)
                await exchange.send(visit.listing, trace, message.method)
                return None
            timeout_s = self._dispatcher.timeouts.door_s
            with self._gate.admit(call, agent) as passage:
                try:
                    with TimeLimit(timeout_s) as limit:
                        exchange.channel = PatientChannel(exchange.questions, limit)
                        with passage.forward() as departure:
                            await exchange.send(visit.listing, departure.trace, name_read(message))
                except TimeoutError:
                    raise CallTimedOutError(
                        message.method, timeout_s, layer=f"door {DOOR}", setting="timeouts.door_s"
                    ) from None
        except RetinueError as error:
            return error
        return None

    async def _pass_stream(self, method: str, visit: Visit, answer: Answering) -> None:
        """GET: what the agent says by itself, for as long as both want. DELETE: the end of a session."""
        opened = self._upstreams.open(visit.listing, method, visit.headers, visit.principal)
        async with opened as upstream:
            if upstream.headers.get("content-type", "").startswith(EVENT_STREAM):
                await answer.stream(b"", upstream.headers)
                with suppress(ExecutionError):  # a client whose stream ends comes again by itself
                    while chunk := await upstream.read_some():
                        await answer.stream(chunk, upstream.headers)
                await answer.end()
                return
            body = await upstream.read()
            self._forget_lost(visit.session, upstream.status)
            if method == "DELETE" and visit.session is not None and upstream.status < 300:
                self._sessions.close(visit.session)
            is_json = upstream.headers.get("content-type", "").startswith("application/json")
            await answer.whole(upstream.status, body if is_json else b"", upstream.headers)

    def _as_call(self, message: Message, visit: Visit, skill: str, arguments: object) -> Call:
        return Call(
            id=new_id(),
            skill=skill,
            arguments=arguments,
            principal=visit.principal,
            door=DOOR,
            trace=self._trace_of(message, visit),
            agent=visit.listing.record.name,
        )

    @staticmethod
    def _trace_of(message: Message, visit: Visit) -> TraceContext:
        return merge_traces(visit.trace, parse_trace_meta(message.meta)) or _NO_TRACE

    def _note_session(self, message: Message, visit: Visit, listing: Listing, upstream: Upstream) -> None:
        session_id = upstream.headers.get(SESSION)
        if message.method == "initialize" and session_id is not None and upstream.status == 200:
            agent = listing.record.name
            if not self._sessions.open(agent, session_id, listing.id, visit.principal):
                raise ExecutionFailedError(f"agent {agent} gave a session id that is in use")
        self._forget_lost(visit.session, upstream.status)

    def _forget_lost(self, session: Session | None, status: int) -> None:
        if status == 404 and session is not None:
            self._sessions.close(session)

    def _give_up(self, message: Message, visit: Visit, exchange: Exchange) -> None:
        """Tell the agent that nobody waits any more: in a session by a message, else the stream's end does.

        A client that could take its stream up again has not given up.
        """
        if visit.session is None or message.kind != "request" or exchange.resumable or exchange.trace is None:
            return
        task = asyncio.create_task(self._cancel(message, visit, exchange.trace))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def _cancel(self, message: Message, visit: Visit, trace: TraceContext) -> None:
        body = render_cancelled(message.id, "nobody waits for the answer", render_trace_meta(trace))
        headers = {name: visit.headers[name] for name in (SESSION, VERSION) if name in visit.headers}
        headers |= {"content-type": "application/json", "accept": f"application/json, {EVENT_STREAM}"}
        with suppress(RetinueError, TimeoutError):
            async with (
                asyncio.timeout(_CANCEL_WITHIN_S),
                self._upstreams.open(
                    visit.listing, "POST", headers, visit.principal, trace=trace, body=body
                ) as upstream,
            ):
                await upstream.drain(_CANCEL_WITHIN_S)
