"""Calls with a channel to their caller: over ``/mcp`` of the agent or of the hub.

One POST of 2026-07-28 for each call, and one more for each round of questions. ``/execute`` serves every
other call, because it costs less (`rpc.client`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import Any

from retinue.core.call import Answer, Call, Outcome, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    CannotAskError,
    ExecutionFailedError,
    InputRefusedError,
    RetinueError,
)
from retinue.core.json_values import check_encodable
from retinue.core.parts import value_of_parts
from retinue.core.record import AgentRecord, Endpoint, Listing, Skill
from retinue.core.usage import Usage, add_usage
from retinue.mcp.codec.messages import Reply
from retinue.mcp.codec.tool_calls import (
    ToolCall,
    is_unknown_tool,
    list_questions,
    parse_feedback,
    read_answer,
    read_state,
)
from retinue.mcp.upstream.client import AgentClient, AgentResponse, NoEndpointError
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.dispatch import Calls, Invoker
from retinue.mesh.guard.spending import deduct_usage
from retinue.mesh.guard.trace_guard import AdmittedCall, OutgoingCall
from retinue.mesh.health.failure_policy import status_of
from retinue.mesh.permissions import is_exposed_here

MAX_ROUNDS = 20
"""Rounds of questions within one call."""


class InteractiveInvoker:
    """Invokes over MCP if the channel has capabilities and the agent an MCP endpoint, else by ``plain``."""

    def __init__(self, client: AgentClient, plain: Invoker) -> None:
        self._client = client
        self._plain = plain

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One attempt; the dispatcher holds the time limit."""
        wanted = channel.capabilities and call.idempotency_key is None and not is_exposed_here(skill)
        if wanted and not self._client.lacks_endpoint(listing):
            with suppress(NoEndpointError), admitted.forward() as outgoing:
                reply = await _converse(self._client, listing, skill, call, outgoing, channel)
                return _with_usage(read_answer(reply, listing.record.name, skill), outgoing)
            self._client.note_lacking(listing)
        return await self._plain.invoke(listing, skill, call, admitted, channel)


GIVE_UP_S = 2.0
"""Seconds in which an agent is told that nobody answers its questions any more."""

CALL_SKILL = Skill("call_skill", "Calls a skill of the mesh.")
"""The hub's skill that calls on with the caller's rights; its result is that of the called skill."""


class InteractiveHubCalls:
    """The mesh behind a hub, whose calls go over the hub's ``/mcp`` if the channel has capabilities.

    Every other call goes by ``plain``: calls with an idempotency key, calls for a principal that sees only
    some agents and so not the hub, and those to a hub without ``call_skill``. ``hub`` is the hub's name.
    """

    def __init__(self, client: AgentClient, hub: str, url: str, plain: Calls) -> None:
        self._client = client
        self._plain = plain
        self._hub = Listing(
            record=AgentRecord(hub, endpoints=(Endpoint("execute", url),)), source="hub", key=url
        )

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        """The outcome as the hub reports it; ``agent`` is None where only the hub knows it."""
        channel = channel or NullChannel()
        is_plain = call.idempotency_key is not None or call.principal.agents
        if is_plain or not channel.capabilities or not isinstance(call.arguments, Mapping):
            return await self._plain.dispatch(call, channel)
        target = {"agent": call.agent, "version": call.version_range}
        arguments = {"skill": call.skill, "arguments": call.arguments}
        arguments |= {name: value for name, value in target.items() if value is not None}
        outgoing = OutgoingCall(call.trace)
        began = time.perf_counter()
        try:
            check_encodable(call.arguments)
            relayed = replace(call, arguments=arguments)
            reply = await _converse(self._client, self._hub, CALL_SKILL, relayed, outgoing, channel)
            if is_unknown_tool(reply):
                return await self._plain.dispatch(call, channel)
            answer = _with_usage(read_answer(reply, self._hub.record.name, CALL_SKILL), outgoing)
        except NoEndpointError:
            return await self._plain.dispatch(call, channel)
        except RetinueError as error:
            status = status_of(error)
            return Outcome(
                call.id,
                call.skill,
                status,
                agent=call.agent,
                duration_ms=(time.perf_counter() - began) * 1000,
                usage=outgoing.usage or None,
                error=error,
                calls_used=outgoing.used,
            )
        return Outcome(
            call.id,
            call.skill,
            "done",
            agent=call.agent,
            value=value_of_parts(answer.value, answer.parts),
            parts=answer.parts,
            duration_ms=(time.perf_counter() - began) * 1000,
            usage=answer.usage,
            warnings=answer.warnings,
            calls_used=outgoing.used,
        )


async def _converse(
    client: AgentClient, listing: Listing, skill: Skill, call: Call, outgoing: OutgoingCall, channel: Channel
) -> Reply:
    """The last reply to a tool call, after all questions were answered by ``channel``."""
    tool_call = ToolCall(skill, call.arguments, channel.capabilities)
    usage: Usage | None = None
    for number in range(MAX_ROUNDS):
        trace = outgoing.trace if usage is None else deduct_usage(outgoing.trace, usage)
        try:
            reply, sent = await _ask(client, listing, tool_call, call, trace, channel)
        except (AgentUnreachableError, NoEndpointError) as error:
            if number == 0 and (isinstance(error, NoEndpointError) or not error.sent):
                outgoing.record_usage(0)
            raise
        usage = add_usage(usage, client.record_reply(outgoing, sent, reply))
        outgoing.usage = outgoing.usage if usage is None else usage
        if not reply.needs_input:
            return reply
        try:
            answers = await answer_questions(channel, reply)
        except asyncio.CancelledError:
            # the call waits at the agent for its answers, and no open request of it could end it
            cancelled = {key: {"action": "cancel"} for key, _, _ in list_questions(reply)}
            given_up = replace(tool_call, answers=cancelled, state=read_state(reply))
            with suppress(RetinueError, NoEndpointError, TimeoutError):
                async with asyncio.timeout(GIVE_UP_S):
                    await _ask(client, listing, given_up, call, trace, NullChannel())
            raise
        tool_call = replace(tool_call, answers=answers, state=read_state(reply))
    raise ExecutionFailedError(f"agent {listing.record.name} asks without end: over {MAX_ROUNDS} rounds")


def _with_usage(answer: Answer, outgoing: OutgoingCall) -> Answer:
    """The answer with the usage that was accepted."""
    return answer if answer.usage is None else replace(answer, usage=outgoing.usage or None)


async def _ask(
    client: AgentClient,
    listing: Listing,
    tool_call: ToolCall,
    call: Call,
    trace: TraceContext,
    channel: Channel,
) -> tuple[Reply, TraceContext | None]:
    """The reply, and the trace that was sent."""
    message = tool_call.as_message("retinue", _own_version())
    sending = client.post(listing, message, trace, call.principal, signed_for=tool_call.skill.id)
    async with sending as response:
        return await read_reply(response, channel), sending.trace


async def read_reply(response: AgentResponse, channel: Channel) -> Reply:
    """The response of an agent; its reports go to ``channel``.

    Raises AgentUnreachableError, NoEndpointError and RemoteFaultError.
    """
    while batch := await response.next():
        for incoming in batch:
            if incoming.reply is not None:
                return incoming.reply
            told = None if incoming.document is None else parse_feedback(incoming.document)
            if told is not None and told.piece is not None:
                await channel.stream_text(told.piece)
            elif told is not None and told.kind == "progress":
                await channel.progress(told.fraction, told.text)
            elif told is not None:
                await channel.log(told.level, told.text, told.data)  # type: ignore[arg-type]
    raise response.no_reply()


@cache
def _own_version() -> str:
    return version("retinue")


async def answer_questions(channel: Channel, reply: Reply) -> dict[str, Any]:
    """The caller's answers to all questions of a result, by their keys."""
    asked = list(list_questions(reply))
    if not channel.is_sessionless:
        # a person is asked one thing after the other
        return {key: await answer_question(channel, key, method, params) for key, method, params in asked}
    tasks = [asyncio.create_task(answer_question(channel, *question)) for question in asked]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # of a call that ends with the refusal of one answer
        await asyncio.gather(*tasks, return_exceptions=True)
    return dict(zip((key for key, _, _ in asked), answers, strict=True))


async def answer_question(
    channel: Channel, key: str, method: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """The caller's answer to one question, in the form that the agent expects."""
    if method == "elicitation/create":
        message, schema = str(params.get("message", "")), params.get("requestedSchema") or {"type": "object"}
        try:
            return {"action": "accept", "content": await channel.elicit(message, schema, key=key)}
        except InputRefusedError as error:
            # the agent checks the answer too, and knows then that it was not declined
            is_declined = error.answer is None
            return {"action": "decline"} if is_declined else {"action": "accept", "content": error.answer}
    if method == "sampling/createMessage":
        limit = params.get("maxTokens")
        text = await channel.sample(
            _prompt_of(params), max_tokens=limit if isinstance(limit, int) else 1024, key=key
        )
        return {"role": "assistant", "content": {"type": "text", "text": text}, "model": "unknown"}
    if method == "roots/list":
        roots = await channel.roots(key=key)
        return {"roots": [{"uri": root.uri} | ({"name": root.name} if root.name else {}) for root in roots]}
    raise CannotAskError(method)


def _prompt_of(params: Mapping[str, Any]) -> str:
    """The texts of a sampling request, joined."""
    said: list[str] = []
    messages = params.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        blocks = content if isinstance(content, list) else [content]
        said += [b["text"] for b in blocks if isinstance(b, dict) and isinstance(b.get("text"), str)]
    return "\n\n".join(said)
