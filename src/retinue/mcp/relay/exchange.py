"""Carries one message of a client to an agent, and the response back.

The events of a response pass unchanged, byte for byte. The last one is held back until the dispatch path has
recorded the outcome, so that a call is one outcome here and one response to the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from retinue.core.call import Answer, Call, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    CallCancelledError,
    ExecutionFailedError,
    InputRequiredError,
    RemoteFaultError,
    RetinueError,
)
from retinue.core.record import Listing, Skill
from retinue.core.usage import Usage, read_usage
from retinue.mcp.codec.messages import CANCELLED, Message, Reply
from retinue.mcp.codec.wire import SESSION_HEADER, Incoming
from retinue.mcp.relay.requests import RelayRequest
from retinue.mcp.relay.response_writer import Final, ResponseWriter
from retinue.mcp.relay.sessions import RelayedSession, RelayedSessions
from retinue.mcp.upstream.client import AgentClient, AgentResponse, NoEndpointError
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.web.codec.trace import USAGE_KEY, find_calls_used

_DRAIN_S = 1.0
_TOLD_CHARACTERS = 500


class RelayExchange:
    """Carries one message; for a tool call it is the invoker of the dispatch path.

    ``channel`` tracks questions of the agent: the time limit of the call pauses while one is open.
    """

    def __init__(
        self,
        client: AgentClient,
        sessions: RelayedSessions,
        message: Message,
        request: RelayRequest,
        writer: ResponseWriter,
    ) -> None:
        self._client = client
        self._sessions = sessions
        self._message = message
        self._request = request
        self._writer = writer
        self._http_request: AbstractAsyncContextManager[AgentResponse] | None = None
        self._response: AgentResponse | None = None
        self._reply: Reply | None = None
        self.questions = OpenQuestions(request.session)
        self.channel: Channel = self.questions
        self.final: Final | None = None
        self.fault: RetinueError | None = None
        self.trace: TraceContext | None = None
        self.is_given_up = False
        self.lacks_endpoint = False
        """Whether the agent turned out not to speak MCP."""

    async def __aenter__(self) -> RelayExchange:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.questions.end()
        try:
            if self._response is not None and self.final is not None:
                await self._response.drain(_DRAIN_S)
        finally:
            await self._end_request()

    async def _end_request(self) -> None:
        """Leave the request to the agent; before the end of its response, that cancels it."""
        request, self._http_request, self._response = self._http_request, None, None
        if request is not None:
            await request.__aexit__(None, None, None)

    @property
    def is_resumable(self) -> bool:
        """Whether the client can resume the stream of the response."""
        return self._response is not None and self._response.is_resumable

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """The tool call; the result stays in the bytes for the client."""
        admitted.set_agent(listing.record.name)
        self.channel = channel
        with admitted.forward() as outgoing:
            trace = outgoing.trace
            if call.deadline is not None:
                left_s = max(call.deadline - asyncio.get_running_loop().time(), 0.001)
                trace = replace(trace, seconds_left=round(left_s, 3))
            try:
                await self.send(listing, trace, skill.id)
            except AgentUnreachableError as error:
                if not error.sent:
                    outgoing.record_usage(0)
                raise
            finally:
                usage: Usage | None = None
                if self._reply is not None:
                    meta = self._reply.meta
                    usage = outgoing.record_reply(find_calls_used(meta), read_usage(meta.get(USAGE_KEY)))
        return Answer(usage=usage)

    async def send(self, listing: Listing, trace: TraceContext, skill: str) -> None:
        """Send the message and pass the response on, except for its ``final`` part.

        ``skill`` is the name that the agent's own guard checks. Raises the error in the response (kept as
        ``fault``) and the errors of `AgentClient.post`.
        """
        self.trace = trace
        request = self._request
        sending = self._client.post(
            listing, self._message, trace, request.principal, signed_for=skill, headers=request.headers
        )
        try:
            await self._end_request()  # of an attempt before this one
            response = self._response = await sending.__aenter__()
            self._http_request = sending  # until the client has its response
            self._note_session(listing, response)
            self._reply = await self._pass_on(response)
        except NoEndpointError as error:
            self.lacks_endpoint = True
            raise error.fault from error
        except asyncio.CancelledError:
            self.is_given_up = True
            raise
        self.fault = self._judge(listing.record.name, response)
        if self.fault is not None:
            raise self.fault

    def _note_session(self, listing: Listing, response: AgentResponse) -> None:
        request, agent = self._request, listing.record.name
        session_id = response.headers.get(SESSION_HEADER)
        is_opened = self._message.method == "initialize" and response.status == 200
        if is_opened and session_id is not None:
            is_free = self._sessions.open(agent, session_id, listing.id, request.principal)
            if not is_free:
                raise ExecutionFailedError(f"agent {agent} gave a session id that is in use")
        if request.session is not None and response.is_session_gone:
            self._sessions.close(request.session)

    async def _pass_on(self, response: AgentResponse) -> Reply | None:
        """Pass events to the client as they come; the response itself is kept as ``final``."""
        while batch := await response.next():
            passed = b"".join(message.raw for message in batch if message.reply is None)
            if passed:
                for incoming in batch:
                    if (question_id := incoming.question_id) is not None:
                        self.questions.opened(self.channel, question_id)
                await self._writer.stream(passed, response.headers)
            if response.reply is not None:
                self.final = _as_final(response, batch[-1])
                return response.reply
        self.final = Final(response.status, response.headers, b"", is_event=response.is_stream)
        return None

    def _judge(self, agent: str, response: AgentResponse) -> RetinueError | None:
        """The error in the agent's response; None when there is none."""
        reply = self._reply
        if reply is None:
            # the client resumes the stream with the last event id
            cause = f"agent {agent} goes on in another stream"
            return RemoteFaultError(agent, -32603, cause) if response.is_stream else None
        if reply.error is not None:
            code, text = reply.error.get("code"), reply.error.get("message")
            if code == CANCELLED:
                return CallCancelledError(agent)
            code = code if type(code) is int else -32603
            text = text if isinstance(text, str) else ""
            return RemoteFaultError(agent, code, text, reply.error.get("data"))
        if reply.is_tool_error:
            return RemoteFaultError(agent, -32603, reply.text[:_TOLD_CHARACTERS] or "the tool failed")
        if reply.needs_input:
            return InputRequiredError(f"agent {agent} asks its caller for input")
        return None


def _as_final(response: AgentResponse, last: Incoming) -> Final:
    # an event with an id can be requested again, so it has to stay an event
    message = last.data if last.event_id is None else b""
    return Final(response.status, response.headers, last.raw, response.is_stream, message)


class OpenQuestions(NullChannel):
    """The channel of one relayed call: a question is open until the session brings its answer.

    Question and answer pass like any other message. Only whether one is open is known here, so that the
    time limit of the call can pause (`mesh.channel`).
    """

    def __init__(self, session: RelayedSession | None) -> None:
        self._session = session
        self._waiting: set[asyncio.Task[Any]] = set()

    def opened(self, channel: Channel, question_id: str | int) -> None:
        """Record a question to the client; ``channel`` is this one, as the call sees it."""
        if self._session is not None:
            task = asyncio.create_task(channel.elicit("", {}, key=key_of(question_id)))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        assert self._session is not None
        assert key is not None
        answered = self._session.questions.setdefault(key, asyncio.Event())
        try:
            await answered.wait()
        finally:
            self._session.questions.pop(key, None)

    def end(self) -> None:
        """Close every open question: the call is over."""
        for task in self._waiting:
            task.cancel()


def key_of(question_id: str | int) -> str:
    """One key per id; 1 and "1" are two."""
    return repr(question_id)
