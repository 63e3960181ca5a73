"""Performative messages as a part."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from retinue.hub.messages import add_message_skill
from retinue.mcp.upstream.invoker import InteractiveInvoker
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.messages import PROTOCOL, LazyMessageInvoker, Messages
from retinue.runtime.peers import Peers

_SERVING = frozenset({"hub", "agent"})


class MessagesPart(Part):
    """Performative messages: their endpoint, and calls of agents that take messages alone."""

    name = "messages"
    kinds = frozenset({"hub", "agent", "worker", "command"})
    gives = Messages
    rank = 30
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        messages = Messages(process)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(messages.aclose)
            if process.kind in _SERVING:
                await messages.recover()
            protocols = {}
            if process.kind != "agent":  # an agent's own client is that of its mesh
                peers = process.get(Peers)
                by_messages = LazyMessageInvoker(peers, messages)
                stack.push_async_callback(by_messages.aclose)
                protocols[PROTOCOL] = InteractiveInvoker(peers.mcp_client, by_messages)
            yield Opened(
                product=messages,
                routes=messages.routes if process.kind in _SERVING else (),
                protocols=protocols,
                skills=partial(add_message_skill, send=messages.answer_in) if protocols else None,
            )
