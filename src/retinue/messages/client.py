"""The calling side: sends messages to the ``/messages`` of agents without another endpoint.

An agent whose card names an endpoint with the protocol ``messages`` and no ``url`` is called with
TASK_REQUEST. Its INFORM_RESULT is the value of the call; an accepted task is asked for until it ends, and
cancelled when the call is. Its reply may also arrive on its own, at this process's ``/messages``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from retinue.core.call import Answer, Call, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    BusyError,
    ExecutionFailedError,
    InvalidParametersError,
    NotAuthenticatedError,
    Problem,
    RemoteFaultError,
    RetinueError,
    UnknownSkillError,
    find_guard_error,
)
from retinue.core.record import HUB_NAME, QUERY_CAPABILITIES, Listing, Skill
from retinue.core.usage import read_usage
from retinue.mesh.channel import Channel
from retinue.mesh.guard.trace_guard import AdmittedCall, TraceSigner
from retinue.messages.codec.envelope import Envelope, NotUnderstoodError, new_envelope, parse_envelope
from retinue.messages.codec.envelope import render_envelope as render
from retinue.messages.codec.payloads import INTERRUPTED
from retinue.messages.conversations import Conversations
from retinue.web.codec.peer_requests import check_not_refused, is_lost, lost, render_rights
from retinue.web.codec.trace import CALLS_USED_KEY, render_trace_headers
from retinue.web.transport import HttpRequester, ResponseTooLargeError, TransportError

PROTOCOL = "messages"
_EXECUTION_FAILED = -32603
_UNBOUNDED_S = 3600.0
WAIT_S = 20.0
"""How long the agent is asked to wait for the result before it accepts the task."""

ASK_EVERY_S = 1.0
"""Between two questions for the result of an accepted task."""

_CANCEL_S = 2.0


class MessageInvoker:
    """Runs skills of agents that have an endpoint for messages.

    ``token_for`` gives the token for an agent of a source at a URL, None for none; ``signer`` signs the
    trace.
    """

    def __init__(
        self,
        http: HttpRequester,
        *,
        signer: TraceSigner | None = None,
        token_for: Callable[[str, str], str | None] = lambda source, url: None,
        conversations: Conversations | None = None,
    ) -> None:
        self._http = http
        self._signer = signer
        self._token_for = token_for
        self._conversations = Conversations() if conversations is None else conversations

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One TASK_REQUEST, or QUERY_CAPABILITIES for the reserved skill."""
        url = find_messages_url(listing)
        if url is None:
            raise AgentUnreachableError(
                listing.record.name, "(no url)", "its card names no endpoint for messages"
            )
        peer = _Peer(self._http, listing.record.name, url, self._headers_of(listing, url, call))
        with admitted.forward() as outgoing:
            trace = outgoing.trace
            if self._signer is not None:
                trace = self._signer.sign(trace, peer.name, skill.id)
            request = _make_request(listing.record.name, skill, call)
            try:
                reply = await self._converse(peer, request, trace, call)
            except AgentUnreachableError as error:
                if not error.sent:
                    outgoing.record_usage(0)
                raise
            used = reply.trace.get(CALLS_USED_KEY)
            used = used if isinstance(used, int) and used >= 0 else 0
            usage = outgoing.record_reply(used, read_usage(reply.payload.get("usage")), trace, self._signer)
            if reply.payload.get("error_code") == INTERRUPTED:
                # its process has ended, so nobody knows what the task has spent
                outgoing.record_usage(None)
            value = value_of(reply, peer.name, skill.id)
        return Answer(value, usage=usage, warnings=reply.warnings)

    def _headers_of(self, listing: Listing, url: str, call: Call) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if call.idempotency_key is not None:
            headers["idempotency-key"] = call.idempotency_key
        token = self._token_for(listing.source, url)
        if token is not None:
            headers |= {"authorization": f"Bearer {token}", **render_rights(call.principal)}
        return headers

    async def _converse(self, peer: _Peer, request: Envelope, trace: TraceContext, call: Call) -> Envelope:
        """The message that ends the task, in the response, on its own, or asked for."""
        arrived: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()

        def listen(message: Envelope) -> None:
            if message.performative != "TASK_ACCEPT" and not arrived.done():
                arrived.set_result(message)

        conversation = self._conversations.begin(request, listener=listen)
        task_id: Any = None
        try:
            reply = await peer.send(request, trace, left_s=_left_s(call), wait_s=min(_left_s(call), WAIT_S))
            while reply.performative == "TASK_ACCEPT":
                conversation.state = "accepted"
                task_id = task_id or reply.payload.get("task_id_assigned") or request.message_id
                with suppress(TimeoutError):
                    return await asyncio.wait_for(asyncio.shield(arrived), ASK_EVERY_S)
                question = new_envelope(
                    "QUERY_REF", {"reference": task_id}, sender=request.sender, receiver=peer.name
                )
                answer = await peer.send(question, trace, left_s=_left_s(call))
                # an agent that cannot be asked reports on its own
                reply = answer if answer.performative != "NOT_UNDERSTOOD" else reply
            return reply
        except asyncio.CancelledError:
            await self._cancel(peer, request, task_id, trace)
            raise
        finally:
            self._conversations.forget(conversation)

    async def _cancel(self, peer: _Peer, request: Envelope, task_id: Any, trace: TraceContext) -> None:
        cancel = new_envelope(
            "CANCEL",
            {"task_id": task_id or request.message_id},
            sender=request.sender,
            receiver=peer.name,
        )
        with suppress(RetinueError, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                await peer.send(replace(cancel, in_reply_to=request.message_id), trace, left_s=_CANCEL_S)


class _Peer:
    """One agent's ``/messages``."""

    def __init__(self, http: HttpRequester, name: str, url: str, headers: Mapping[str, str]) -> None:
        self._http = http
        self.name = name
        self._url = url
        self._headers = headers

    async def send(
        self, message: Envelope, trace: TraceContext, *, left_s: float, wait_s: float | None = None
    ) -> Envelope:
        """Send one message; the reply. Raises AgentUnreachableError and RemoteFaultError."""
        headers = {**self._headers, **render_trace_headers(trace)}
        if wait_s is not None:
            headers["prefer"] = f"wait={int(wait_s)}"
        try:
            body = orjson.dumps(render(message))
        except TypeError as error:
            raise InvalidParametersError([Problem("", f"the arguments are not JSON: {error}")]) from error
        try:
            response = await self._http.request(
                "POST",
                self._url,
                headers=headers,
                body=body,
                timeout_s=max(left_s, 0.001),
                what=message.performative,
                layer="caller",
                setting="the call's timeout",
            )
        except ResponseTooLargeError as error:
            raise RemoteFaultError(
                self.name, _EXECUTION_FAILED, f"agent {self.name}: {error.cause}"
            ) from error
        except TransportError as error:
            raise AgentUnreachableError(self.name, self._url, error.cause, sent=error.sent) from error
        if response.status >= 400:
            check_not_refused(self.name, self._url, response.status, response.headers)
            if is_lost(response.status):
                raise lost(self.name, self._url, response.status, response.body)
        try:
            return parse_envelope(orjson.loads(response.body))
        except (orjson.JSONDecodeError, NotUnderstoodError) as error:
            problem = f"agent {self.name} answered {response.status} with no message: {error}"
            raise RemoteFaultError(self.name, _EXECUTION_FAILED, problem) from error


def find_messages_url(listing: Listing) -> str | None:
    """The messages url of an agent, from its card."""
    return next(
        (endpoint.url for endpoint in listing.record.endpoints if endpoint.protocol == PROTOCOL), None
    )


def _make_request(receiver: str, skill: Skill, call: Call) -> Envelope:
    sender = call.principal.id if call.principal.kind == "agent" else HUB_NAME
    arguments = dict(call.arguments or {})
    if skill.id == QUERY_CAPABILITIES:
        return new_envelope("QUERY_CAPABILITIES", arguments, sender=sender, receiver=receiver)
    reply_by = None
    if call.deadline is not None:
        until = datetime.now(UTC) + timedelta(seconds=_left_s(call))
        reply_by = until.isoformat(timespec="milliseconds")
    payload = {"task_type": skill.id, "task_parameters": arguments}
    return new_envelope("TASK_REQUEST", payload, sender=sender, receiver=receiver, reply_by=reply_by)


def _left_s(call: Call) -> float:
    if call.deadline is None:
        return _UNBOUNDED_S
    return max(call.deadline - asyncio.get_running_loop().time(), 0.001)


def value_of(reply: Envelope, agent: str, skill: str) -> Any:
    """The value of a reply that ended a task; raises its error."""
    payload = reply.payload
    if reply.performative == "INFORM_CAPABILITIES":
        return dict(payload)
    if reply.performative == "INFORM_RESULT":
        if payload.get("task_status", "success") == "failure":
            raise ExecutionFailedError(_text(payload, "result_summary", "the task failed"), skill=skill)
        details = payload.get("result_details", payload.get("result_summary"))
        if isinstance(details, dict) and details.keys() == {"result"}:
            return details["result"]
        return details
    raise error_of(reply, agent, skill)


def error_of(reply: Envelope, agent: str, skill: str) -> RetinueError:
    """The error of a TASK_REJECT, FAILURE or NOT_UNDERSTOOD."""
    payload = reply.payload
    text = _text(
        payload, "reason_text", _text(payload, "error_text", f"{reply.performative} without a reason")
    )
    code = payload.get("reason_code") or payload.get("error_code")
    data = payload.get("data")
    remedy = data.get("remedy") if isinstance(data, dict) else None
    if isinstance(remedy, str):
        # the next report of the error adds the remedy again
        text = text.removesuffix(f" — {remedy}")
    if reply.performative == "TASK_REJECT":
        if (guard := find_guard_error(code)) is not None:
            return guard.relay(text, data)
        if code == "incapable":
            return UnknownSkillError(skill)
        if code == "unauthorized":
            return NotAuthenticatedError(f"agent {agent}: {text}")
        if code == "busy":
            wait_s = data.get("retry_after_s") if isinstance(data, dict) else None
            return BusyError(
                f"agent {agent}: {text}", float(wait_s) if isinstance(wait_s, int | float) else 1.0
            )
    if reply.performative == "NOT_UNDERSTOOD" and code == "invalid_payload_structure":
        return InvalidParametersError([Problem("", text.removeprefix("Invalid parameters: "))])
    return RemoteFaultError(agent, _EXECUTION_FAILED, text, data)


def _text(payload: Mapping[str, Any], name: str, default: str) -> str:
    value = payload.get(name)
    return value if isinstance(value, str) and value else default
