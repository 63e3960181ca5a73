"""Reads one incoming message and renders its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from retinue.core.call import Outcome, Principal, TraceContext
from retinue.core.errors import NotAllowedError
from retinue.core.record import AgentRecord
from retinue.mesh.channel import Channel
from retinue.messages.codec.envelope import ANONYMOUS_AGENT, Envelope, parse_time, same_agent

_MESH_ITSELF = frozenset({"local", "mesh"})
"""Ids of principals that hold the mesh's own secret without saying for which agent."""

WAIT_S = 25.0
"""How long a request is held open for the result of its task; after that it is accepted, and asked for."""


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """How messages are read and answered.

    ``strict`` requires every field and a known ontology. ``signatures``: "off" ignores them, "verify" rejects
    invalid ones, "require" rejects messages without one too. ``sign`` signs outgoing messages. ``wait_s`` is
    how long a reply waits for the result of a task.
    """

    strict: bool = False
    signatures: str = "verify"
    sign: bool = False
    wait_s: float = WAIT_S


@dataclass(frozen=True, slots=True)
class MessageReply:
    """A reply; ``later`` = further replies follow, or are asked for."""

    message: dict[str, Any]
    later: bool = False


RecordOf = Callable[[str, Principal], Awaitable[AgentRecord]]
"""The record of an agent that a principal sees, under the name by which it is called.

Raises UnknownAgentError, the same for a hidden and for a missing one.
"""

OnMessage = Callable[[Mapping[str, Any], Principal, TraceContext | None], Awaitable[None]]
"""Is told of a message, of its sender's principal, and of the chain of calls that it belongs to."""

RunSkill = Callable[[str, Mapping[str, Any], str | None, Channel, float | None], Awaitable[Outcome]]
"""Runs a skill of an agent (None = any) with a channel and a deadline, on the dispatch path."""


@dataclass(slots=True)
class MessageExchange:
    """One incoming message while the receiver handles it.

    ``target`` is the agent that it is for; None = any agent that offers the skill. ``run`` calls skills with
    the rights of its sender. ``in_background`` = tasks may outlive the request.
    """

    request: Envelope
    principal: Principal
    owner: str
    target: str | None
    run: RunSkill
    wait_s: float
    in_background: bool = True

    @property
    def deadline(self) -> float | None:
        """``reply_by`` as a time of the event loop."""
        if self.request.reply_by is None:
            return None
        until = parse_time(self.request.reply_by)
        assert until is not None, "checked when it was parsed"
        return asyncio.get_running_loop().time() + (until - datetime.now(UTC)).total_seconds()

    @property
    def is_late(self) -> bool:
        """Whether ``reply_by`` has passed."""
        deadline = self.deadline
        return deadline is not None and deadline <= asyncio.get_running_loop().time()


def check_sender(request: Envelope, principal: Principal) -> None:
    """Refuse a sender that the token contradicts; without a token, or with the mesh's own, any is taken."""
    if principal.kind == "anonymous" or principal.id in _MESH_ITSELF:
        return
    name = principal.id.partition(":")[2] or principal.id
    if request.sender == ANONYMOUS_AGENT or any(
        same_agent(request.sender, own_name) for own_name in (name, principal.id)
    ):
        return
    raise NotAllowedError(
        f"sender.agent_id is {request.sender[:100]!r}, and the token is that of {principal.id}",
        remedy=f"send as {name}, or leave sender out",
    )
