"""What a hub's list of tools costs an MCP client: its size, and an estimate of the tokens that it takes."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from retinue.core.errors import CallTimedOutError, RetinueError, StateError
from retinue.drivers.http import HttpClient, TransportError
from retinue.protocols.mcp.messages import read_reply
from retinue.protocols.mcp.tool_calls import VERSION, render_list

BYTES_PER_TOKEN = 4
"""The usual estimate for English and JSON; models differ by about a third either way."""


@dataclass(frozen=True, slots=True)
class ListCost:
    """How many tools a client is shown, and their size as JSON: name, description and schemas."""

    tools: int
    size_bytes: int

    @property
    def tokens(self) -> int:
        """Roughly what a model reads before each conversation."""
        return round(self.size_bytes / BYTES_PER_TOKEN)

    def __str__(self) -> str:
        return f"{self.tools} tools, about {self.tokens:,} tokens"


async def measure_list(http: HttpClient, url: str, token: str | None, *, timeout_s: float) -> ListCost:
    """Ask the hub at ``url`` for its list as a client of this token would; raises StateError."""
    body, headers = render_list()
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    try:
        reply = await http.request("POST", f"{url}/mcp", headers=headers, body=body, timeout_s=timeout_s)
    except (TransportError, CallTimedOutError) as error:
        raise StateError(
            f"the hub gives no list of tools: {error}", remedy="start it again: retinue hub"
        ) from error
    found = read_reply(reply.body)
    tools = None if found is None or found.result is None else found.result.get("tools")
    if not isinstance(tools, list):
        raise _no_list(reply.status)
    return ListCost(len(tools), sum(len(orjson.dumps(_read_by_model(tool))) for tool in tools))


def _read_by_model(tool: object) -> object:
    """What of a tool reaches the model; ``_meta`` and annotations stay with the client."""
    if not isinstance(tool, dict):
        return tool
    return {key: tool[key] for key in ("name", "description", "inputSchema") if key in tool}


def _no_list(status: int) -> RetinueError:
    return StateError(
        f"the hub answers with status {status} and no list of tools (version {VERSION})",
        remedy="start it again: retinue hub",
    )
