"""Performative messages as a part."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from retinue.core.record import HUB_NAME
from retinue.hub.messages import add_message_skill
from retinue.parts.part import Kind, Opened, Part
from retinue.parts.process import Process
from retinue.runtime.messages import MessageCalls, Messages, make_messages
from retinue.settings import Settings

_SERVING = frozenset[Kind]({"hub", "agent"})


class MessagesPart(Part):
    """Performative messages: their endpoint, and calls of agents that take messages alone."""

    name = "messages"
    kinds = frozenset({"hub", "agent", "worker", "command"})
    gives = Messages
    rank = 30
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        messages = make_messages(
            process.dispatcher, process.shown, process.tables.get(Settings), process.state
        )
        try:
            if process.kind in _SERVING:
                await messages.recover()
            calls = MessageCalls(process.http, process.signer, process.token_for, messages)
            is_hub = process.agent.name == HUB_NAME and process.kind != "agent"
            yield Opened(
                product=messages,
                routes=messages.routes if process.kind in _SERVING else (),
                protocols={"messages": calls},
                skills=partial(add_message_skill, send=messages.answer_in) if is_hub else None,
            )
        finally:
            await messages.aclose()
