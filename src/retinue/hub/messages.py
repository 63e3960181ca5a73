"""The hub's skill for messages; the receiver is passed in, because it belongs to a protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context

Json = dict[str, Any]

SendMessage = Callable[[Json, Context], Awaitable[Json]]
"""Takes an envelope and the context of the call that brought it; gives the reply, also to a malformed one."""


def add_message_skill(agent: Agent, send: SendMessage) -> None:
    """Add the skill ``send_message``."""

    @agent.skill(expose=True)
    async def send_message(
        message: Annotated[
            Json,
            Field(
                description="performative (QUERY_CAPABILITIES, TASK_REQUEST, QUERY_IF, QUERY_REF, "
                "PROPOSE, …) and payload; receiver names the agent"
            ),
        ],
        ctx: Context,
    ) -> Json:
        """Sends a message (performative and payload) to an agent of the mesh and returns the reply."""
        return await send(message, ctx)
