"""The interface of a connection to one MCP server, over HTTP or the standard streams of a program."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from retinue.mcp.codec.foreign import ForeignServerFacts
from retinue.mcp.codec.messages import Message
from retinue.mcp.upstream.flood import FloodMeter


class Transport(Protocol):
    """A connection to one MCP server. Every method raises AgentUnreachableError when it breaks."""

    @property
    def place(self) -> str:
        """The url or the command, for people."""

    @property
    def ends_with_stream(self) -> bool:
        """Whether the end of `listen` is the end of the connection."""

    @property
    def flood(self) -> FloodMeter:
        """Counts unsolicited messages."""

    @property
    def hint(self) -> str:
        """A possible reason for a silent server; "" if nothing was seen."""

    async def open(self) -> None:
        """Start the server's program, if it has one."""

    def exchange(self, message: Message) -> AsyncGenerator[Mapping[str, Any], None]:
        """Send a request and yield the server's messages about it, the response last."""

    def listen(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield messages that belong to no request, until the connection ends."""

    async def send(self, message: Message) -> None:
        """Send a notification or a response."""

    def agree(self, facts: ForeignServerFacts) -> None:
        """Use the negotiated version and session from now on."""

    async def aclose(self) -> None:
        """End the connection and what belongs to it."""
