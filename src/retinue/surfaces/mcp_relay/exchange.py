"""One message on its way to an agent, and what comes back.

The events of an answer pass as they come, byte for byte; the last one, the response, is held until the
dispatch path has had its word, so that a call is one outcome here and one answer there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from retinue.core.call import Answer, Call, Principal, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    CallCancelledError,
    InputRequiredError,
    RemoteFaultError,
    RetinueError,
    TooLargeError,
)
from retinue.core.record import Listing, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.guards import Passage
from retinue.protocols.mcp.messages import (
    CANCELLED,
    Message,
    Reply,
    read_question,
    read_reply,
    render_message,
)
from retinue.protocols.mcp.sse import EventParser
from retinue.protocols.trace import DEPTH_KEY, DETAIL_KEY, ID_KEY, find_calls_used, render_trace_meta
from retinue.surfaces.mcp_relay.answering import EVENT_STREAM, JSON, Answering
from retinue.surfaces.mcp_relay.questions import OpenQuestions

TRACE_KEYS = frozenset(
    {ID_KEY.lower(), DEPTH_KEY.lower(), DETAIL_KEY.lower(), "traceparent", "tracestate", "baggage"}
)
"""What the hub writes into ``_meta`` itself, whatever stood there."""

_DRAIN_S = 1.0
_NO_DOOR = frozenset({404, 405, 501})
_TOLD_CHARACTERS = 500


class Upstream(Protocol):
    """An agent's answer as it comes in."""

    status: int

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read_some(self) -> bytes:
        """The next piece, b"" at the end; raises AgentUnreachableError when it is cut."""

    async def read(self) -> bytes:
        """All of it."""

    async def drain(self, timeout_s: float) -> None:
        """Read to the end, for the sake of the connection."""


class Upstreams(Protocol):
    """The way to the agents' own ``/mcp``."""

    def open(
        self,
        listing: Listing,
        method: str,
        headers: Mapping[str, str],
        principal: Principal,
        *,
        trace: TraceContext | None = None,
        body: bytes | None = None,
    ) -> AbstractAsyncContextManager[Upstream]:
        """Send one request; leaving before the end of its answer gives it up."""

    def sign(self, trace: TraceContext, listing: Listing, skill: str) -> TraceContext:
        """The trace as it goes to this agent for ``skill``, vouched for."""


@dataclass(frozen=True, slots=True)
class Final:
    """What ends an answer, as the agent sent it; ``message`` is the response within an event."""

    body: bytes
    status: int
    headers: Mapping[str, str]
    media_type: str
    message: bytes = b""


class Exchange:
    """Carries one message; for a tool call it is the invoker of the dispatch path."""

    def __init__(
        self,
        upstreams: Upstreams,
        message: Message,
        headers: Mapping[str, str],
        principal: Principal,
        answer: Answering,
        on_answer: Callable[[Listing, Upstream], None],
        questions: OpenQuestions,
    ) -> None:
        self._upstreams = upstreams
        self._message = message
        self._headers = headers
        self._principal = principal
        self._answer = answer
        self._on_answer = on_answer
        self.questions = questions
        self.channel: Channel = questions
        self._stack = AsyncExitStack()
        self._upstream: Upstream | None = None
        self._reply: Reply | None = None
        self.final: Final | None = None
        self.fault: RetinueError | None = None
        self.trace: TraceContext | None = None
        self.listing: Listing | None = None
        self.has_door = True
        """False when the agent speaks no MCP where it was looked for."""
        self.given_up = False
        self.resumable = False

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.questions.end()
        try:
            if self._upstream is not None and self.final is not None:
                await self._upstream.drain(_DRAIN_S)
        finally:
            await self._stack.aclose()

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, passage: Passage, channel: Channel
    ) -> Answer:
        """The tool call; its value stays in the bytes that the caller is handed."""
        passage.arrive(listing.record.name)
        self.channel = channel
        with passage.forward() as departure:
            trace = departure.trace
            if call.deadline is not None:
                left_s = max(call.deadline - asyncio.get_running_loop().time(), 0.001)
                trace = replace(trace, seconds_left=round(left_s, 3))
            try:
                await self.send(listing, trace, skill.id)
            except AgentUnreachableError as error:
                if not error.sent:
                    departure.told(0)
                raise
            finally:
                if self._reply is not None:
                    departure.told(find_calls_used(self._reply.meta))
        return Answer()

    async def send(self, listing: Listing, trace: TraceContext, skill: str) -> None:
        """Take the message to the agent and its answer back, all but the ``final``.

        ``skill`` is what the agent's own guard will hear of. Raises what the agent says has failed (as
        ``fault``), and what went wrong on the way.
        """
        self.listing, self.trace = listing, self._upstreams.sign(trace, listing, skill)
        body = render_message(self._message, render_trace_meta(self.trace), drop=TRACE_KEYS)
        try:
            opened = self._upstreams.open(
                listing, "POST", self._headers, self._principal, trace=self.trace, body=body
            )
            upstream = self._upstream = await self._stack.enter_async_context(opened)
            self._on_answer(listing, upstream)
            media_type = upstream.headers.get("content-type", "").partition(";")[0].strip().lower()
            reply: Reply | None
            if media_type == EVENT_STREAM:
                reply = await self._take_events(listing, upstream)
            else:
                reply = await self._take_body(listing, upstream, media_type)
        except asyncio.CancelledError:
            self.given_up = True
            raise
        self._reply = reply
        self.fault = None if reply is None else _judge(reply, listing.record.name)
        if self.fault is not None:
            raise self.fault

    async def _take_events(self, listing: Listing, upstream: Upstream) -> Reply:
        parser = EventParser()
        while chunk := await upstream.read_some():
            passed = bytearray()
            try:
                events = parser.feed(chunk)
            except TooLargeError as error:
                raise RemoteFaultError(listing.record.name, -32603, f"its answer: {error.message}") from error
            for event in events:
                if event.data and (reply := read_reply(event.data)) is not None:
                    if passed:
                        await self._answer.stream(bytes(passed), upstream.headers)
                    # an event with an id can be asked for again, so it has to stay one
                    alone = event.data if event.id is None else b""
                    self.final = Final(event.raw, upstream.status, upstream.headers, EVENT_STREAM, alone)
                    return reply
                if (question := read_question(event.data)) is not None:
                    self.questions.opened(self.channel, question)
                self.resumable = self.resumable or event.id is not None
                passed += event.raw
            if passed:
                await self._answer.stream(bytes(passed), upstream.headers)
        name, url = listing.record.name, listing.record.url or "(no url)"
        if self.resumable and parser.is_between_events:
            # the client takes it up again with the last id that it saw
            self.final = Final(b"", upstream.status, upstream.headers, EVENT_STREAM)
            self.fault = RemoteFaultError(name, -32603, f"agent {name} goes on in another stream")
            raise self.fault
        raise AgentUnreachableError(name, url, "its answer was cut off", sent=True)

    async def _take_body(self, listing: Listing, upstream: Upstream, media_type: str) -> Reply | None:
        body = await upstream.read()
        reply = read_reply(body) if media_type == JSON else None
        if reply is None and (body or (self._message.kind == "request" and upstream.status < 400)):
            name = listing.record.name
            cause = f"agent {name} answered {upstream.status} with no JSON-RPC reply"
            self.has_door = upstream.status not in _NO_DOOR
            raise RemoteFaultError(name, -32603, cause)
        self.final = Final(body, upstream.status, upstream.headers, JSON)
        return reply


def _judge(reply: Reply, agent: str) -> RetinueError | None:
    """What the agent says has gone wrong; None when nothing has."""
    if reply.error is not None:
        code, text = reply.error.get("code"), reply.error.get("message")
        if code == CANCELLED:
            return CallCancelledError(agent)
        code = code if type(code) is int else -32603
        return RemoteFaultError(agent, code, text if isinstance(text, str) else "", reply.error.get("data"))
    if reply.is_tool_error:
        return RemoteFaultError(agent, -32603, reply.text[:_TOLD_CHARACTERS] or "the tool failed")
    if reply.needs_input:
        return InputRequiredError(f"agent {agent} asks its caller for input")
    return None
