"""The hub's tool ``query_capabilities``: asks an agent what it can do now."""

from __future__ import annotations

from typing import Any

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.record import HUB_NAME, QUERY_CAPABILITIES
from retinue.mesh.asking.query import answer_query, parse_query

Json = dict[str, Any]

_DESCRIPTION = (
    "Asks an agent what it can do now: summary, specific (capabilities, match_type all or any) "
    "or action_details (action_name)."
)

_INPUT: Json = {
    "type": "object",
    "properties": {
        "query_type": {"type": "string", "enum": ["summary", "specific", "action_details"]},
        "query_parameters": {
            "type": "object",
            "properties": {
                "capabilities": {"type": "array", "items": {"type": "string"}},
                "match_type": {"type": "string", "enum": ["all", "any"], "default": "all"},
                "action_name": {"type": "string"},
            },
        },
        "agent": {"type": "string", "description": "Name of the agent; default: this hub itself"},
    },
    "required": ["query_type"],
    "additionalProperties": False,
}


def add_query_skill(hub: Agent) -> None:
    """Add the tool; over every endpoint of the hub it also answers for the hub itself."""

    @hub.skill(QUERY_CAPABILITIES, description=_DESCRIPTION, input_schema=_INPUT, expose=True, read_only=True)
    async def query_capabilities(
        query_type: str,
        ctx: Context,
        query_parameters: Json | None = None,
        agent: str | None = None,
    ) -> Any:
        payload = {"query_type": query_type, "query_parameters": query_parameters}
        query = parse_query(payload)
        if agent is None or agent == HUB_NAME:
            return answer_query(hub.record(), query, ctx.principal.scopes)
        outcome = await ctx.relay(QUERY_CAPABILITIES, query.as_payload(), agent=agent)
        return outcome.get()
