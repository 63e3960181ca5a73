"""Requests of skills to MCP servers, and the port of their connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from retinue.core.call import Principal
from retinue.mesh.channel import Channel
from retinue.mesh.guard.trace_guard import OutgoingCall

RequestKind = Literal["tools", "resources", "prompts", "call", "resource", "prompt", "completion"]


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """One request to a server: a list, a call of a tool, or a read.

    The result is a tuple of Skill, Resource or Prompt for a list, an Answer for a call, a tuple of Part for a
    resource, a PromptText for a prompt and a Completion for a completion.
    """

    kind: RequestKind
    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    argument: str = ""
    value: str = ""


Ask = Callable[[ServerRequest, OutgoingCall, Principal, Channel], Awaitable[Any]]
"""Sends one request as a further call of a skill."""


class Servers(Protocol):
    """Connects the skills of a process to MCP servers."""

    def connect(self, server: str, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Ask]:
        """A connection to an agent by its name, or to a server by its URL with these headers.

        Raises UnknownAgentError, NotAllowedError and what the connection raises.
        """
