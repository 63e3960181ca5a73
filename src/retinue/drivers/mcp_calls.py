"""Calls to agents whose caller listens: over the agent's ``/mcp``, so that questions come through.

One POST of the sessionless era for each call, and one more for each round of questions. ``/execute`` stays
the way of every other call, because it is the leaner one (`drivers.peers`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from retinue.core.call import Answer, Call, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    CannotAskError,
    ExecutionFailedError,
    InputRefusedError,
    InvalidParametersError,
    Problem,
    RemoteFaultError,
    TooLargeError,
)
from retinue.core.record import Listing, ListingKey, Skill
from retinue.drivers.mcp_peers import McpPeers, Upstream
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Invoker
from retinue.mesh.guards import Passage
from retinue.mesh.lifting import is_lifted
from retinue.protocols.mcp.messages import Reply, read_reply
from retinue.protocols.mcp.sse import EventParser
from retinue.protocols.mcp.tool_calls import (
    ToolCall,
    list_questions,
    read_answer,
    read_state,
    read_told,
)
from retinue.protocols.trace import find_calls_used, render_trace_meta

MAX_ROUNDS = 20
"""Rounds of questions within one call."""

ASK_AGAIN_S = 60.0
"""After so long an agent that had no MCP door is asked again whether it has one."""

_MAX_KNOWN = 10_000
_NO_DOOR = frozenset({404, 405, 501})


class _NoDoorError(Exception):
    """The agent speaks no MCP."""


class AttendedInvoker:
    """Takes a call over MCP where its caller listens and the agent has the door, else to ``plain``."""

    def __init__(
        self,
        peers: McpPeers,
        plain: Invoker,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peers = peers
        self._plain = plain
        self._clock = clock
        self._client_version = version("retinue")
        self._doorless: OrderedDict[ListingKey, tuple[str | None, float]] = OrderedDict()

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, passage: Passage, channel: Channel
    ) -> Answer:
        """One attempt; the dispatcher holds the time limit."""
        wanted = channel.capabilities
        if wanted and call.idempotency_key is None and not is_lifted(skill) and self._may_have_door(listing):
            with suppress(_NoDoorError):
                return await self._converse(listing, skill, call, passage, channel)
            self._doorless[listing.id] = (listing.record.url, self._clock())
            if len(self._doorless) > _MAX_KNOWN:
                self._doorless.popitem(last=False)
        return await self._plain.invoke(listing, skill, call, passage, channel)

    def _may_have_door(self, listing: Listing) -> bool:
        known = self._doorless.get(listing.id)
        return known is None or known[0] != listing.record.url or self._clock() - known[1] > ASK_AGAIN_S

    async def _converse(
        self, listing: Listing, skill: Skill, call: Call, passage: Passage, channel: Channel
    ) -> Answer:
        name, capabilities = listing.record.name, channel.capabilities
        tool_call = ToolCall(skill, call.arguments, capabilities, {})
        with passage.forward() as departure:
            for number in range(MAX_ROUNDS):
                try:
                    reply = await self._ask(listing, tool_call, call, departure.trace, channel)
                except (AgentUnreachableError, _NoDoorError) as error:
                    if number == 0 and (isinstance(error, _NoDoorError) or not error.sent):
                        departure.told(0)
                    raise
                departure.told(find_calls_used(reply.meta))
                if not reply.needs_input:
                    return read_answer(reply, name, skill)
                answers = {
                    key: await _answer(channel, key, method, params)
                    for key, method, params in list_questions(reply)
                }
                tool_call = ToolCall(skill, call.arguments, capabilities, {}, answers, read_state(reply))
        raise ExecutionFailedError(f"agent {name} asks without end: over {MAX_ROUNDS} rounds")

    async def _ask(
        self, listing: Listing, tool_call: ToolCall, call: Call, trace: TraceContext, channel: Channel
    ) -> Reply:
        # a signature counts once, so that each message has its own
        trace = self._peers.sign(trace, listing, tool_call.skill.id)
        tool_call = replace(tool_call, meta=render_trace_meta(trace))
        try:
            body = tool_call.render("retinue", self._client_version)
        except TypeError as error:
            raise InvalidParametersError([Problem("", f"the arguments are no JSON: {error}")]) from error
        opened = self._peers.open(
            listing, "POST", tool_call.headers(), call.principal, trace=trace, body=body
        )
        async with opened as upstream:
            if upstream.headers.get("content-type", "").startswith("text/event-stream"):
                return await _take_events(listing, upstream, channel)
            reply = read_reply(await upstream.read())
            if reply is not None:
                return reply
            if upstream.status in _NO_DOOR:
                raise _NoDoorError
            name = listing.record.name
            cause = f"agent {name} answered {upstream.status} with no JSON-RPC reply"
            raise RemoteFaultError(name, -32603, cause)


async def _take_events(listing: Listing, upstream: Upstream, channel: Channel) -> Reply:
    parser, name = EventParser(), listing.record.name
    while chunk := await upstream.read_some():
        try:
            events = parser.feed(chunk)
        except TooLargeError as error:
            raise RemoteFaultError(name, -32603, f"its answer: {error.message}") from error
        for event in events:
            if (reply := read_reply(event.data)) is not None:
                return reply
            told = read_told(event.data)
            if told is not None and told.kind == "progress":
                await channel.progress(told.fraction, told.text)
            elif told is not None:
                await channel.log(told.level, told.text, told.data)  # type: ignore[arg-type]
    raise AgentUnreachableError(name, listing.record.url or "(no url)", "its answer was cut off", sent=True)


async def _answer(channel: Channel, key: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller says to one question, as the agent expects it."""
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
    """The texts of a request for sampling, one after the other."""
    said: list[str] = []
    messages = params.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        blocks = content if isinstance(content, list) else [content]
        said += [b["text"] for b in blocks if isinstance(b, dict) and isinstance(b.get("text"), str)]
    return "\n\n".join(said)
