"""Calls to agents whose caller can be asked or told of progress: over the agent's ``/mcp``.

One POST of 2026-07-28 for each call, and one more for each round of questions. ``/execute`` serves every
other call, because it costs less (`execute.client`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from retinue.core.call import Answer, Call, TraceContext
from retinue.core.errors import AgentUnreachableError, CannotAskError, ExecutionFailedError, InputRefusedError
from retinue.core.record import Listing, Skill
from retinue.mcp.codec.messages import Reply
from retinue.mcp.codec.tool_calls import ToolCall, list_questions, parse_feedback, read_answer, read_state
from retinue.mcp.upstream.client import AgentClient, NoEndpointError
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Invoker
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.permissions import is_exposed_here
from retinue.web.codec.trace import find_calls_used

MAX_ROUNDS = 20
"""Rounds of questions within one call."""


class InteractiveInvoker:
    """Invokes over MCP if the channel has capabilities and the agent an MCP endpoint, else by ``plain``."""

    def __init__(self, client: AgentClient, plain: Invoker) -> None:
        self._client = client
        self._plain = plain
        self._version = version("retinue")

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One attempt; the dispatcher holds the time limit."""
        wanted = channel.capabilities and call.idempotency_key is None and not is_exposed_here(skill)
        if wanted and not self._client.lacks_endpoint(listing):
            with suppress(NoEndpointError):
                return await self._converse(listing, skill, call, admitted, channel)
            self._client.note_lacking(listing)
        return await self._plain.invoke(listing, skill, call, admitted, channel)

    async def _converse(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        name, capabilities = listing.record.name, channel.capabilities
        tool_call = ToolCall(skill, call.arguments, capabilities)
        with admitted.forward() as outgoing:
            for number in range(MAX_ROUNDS):
                try:
                    reply = await self._ask(listing, tool_call, call, outgoing.trace, channel)
                except (AgentUnreachableError, NoEndpointError) as error:
                    if number == 0 and (isinstance(error, NoEndpointError) or not error.sent):
                        outgoing.record_usage(0)
                    raise
                outgoing.record_usage(find_calls_used(reply.meta))
                if not reply.needs_input:
                    return read_answer(reply, name, skill)
                answers = {
                    key: await answer_question(channel, key, method, params)
                    for key, method, params in list_questions(reply)
                }
                tool_call = ToolCall(skill, call.arguments, capabilities, answers, read_state(reply))
        raise ExecutionFailedError(f"agent {name} asks without end: over {MAX_ROUNDS} rounds")

    async def _ask(
        self, listing: Listing, tool_call: ToolCall, call: Call, trace: TraceContext, channel: Channel
    ) -> Reply:
        message = tool_call.as_message("retinue", self._version)
        sending = self._client.post(listing, message, trace, call.principal, signed_for=tool_call.skill.id)
        async with sending as response:
            while batch := await response.next():
                for incoming in batch:
                    if incoming.reply is not None:
                        return incoming.reply
                    told = None if incoming.document is None else parse_feedback(incoming.document)
                    if told is not None and told.kind == "progress":
                        await channel.progress(told.fraction, told.text)
                    elif told is not None:
                        await channel.log(told.level, told.text, told.data)  # type: ignore[arg-type]
            raise response.no_reply()


async def answer_question(
    channel: Channel, key: str, method: str, params: Mapping[str, Any]
) -> dict[str, Any]:
    """The caller's answer to one question, in the form that the agent expects."""
    if method == "elicitation/create":
        message, schema = str(params.get("message", "")), params.get("requestedSchema") or {"type": "object"}
        try:
            return {"action": "accept", "content": await channel.elicit(message, schema, key=key)}
        except InputRefusedError:
            return {"action": "decline"}
    if method == "sampling/createMessage":
        limit = params.get("maxTokens")
        text = await channel.sample(
            _prompt_of(params), max_tokens=limit if isinstance(limit, int) else 1024, key=key
        )
        return {"role": "assistant", "content": {"type": "text", "text": text}, "model": "unknown"}
    if method == "roots/list":
        roots = await channel.roots(key=key)
        return {"roots": [{"uri": one.uri} | ({"name": one.name} if one.name else {}) for one in roots]}
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
