"""What a caller sees of an agent's list of tools: an agent that knows no visibility may list too much."""

from __future__ import annotations

from dataclasses import replace

import orjson

from retinue.core.record import AgentRecord
from retinue.mesh.visibility import is_visible
from retinue.protocols.mcp.sse import parse_event, render_event
from retinue.surfaces.mcp_relay.answering import EVENT_STREAM
from retinue.surfaces.mcp_relay.exchange import Final


def narrow_tools(final: Final, record: AgentRecord, scopes: frozenset[str]) -> Final:
    """The answer to ``tools/list`` without what the card hides from these scopes, else as it came.

    A tool that the card does not know yet stays: the agent has learnt it since, and a call finds out.
    """
    hidden = {skill.id for skill in record.skills if not is_visible(skill, scopes)}
    if not hidden:
        return final
    is_event = final.media_type == EVENT_STREAM
    document = orjson.loads(parse_event(final.body).data if is_event else final.body)
    result = document.get("result")
    tools = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(tools, list):
        return final
    shown = [tool for tool in tools if not (isinstance(tool, dict) and tool.get("name") in hidden)]
    if len(shown) == len(tools):
        return final
    result["tools"] = shown
    body = orjson.dumps(document)
    if not is_event:
        return replace(final, body=body)
    return replace(final, body=render_event(body), message=body if final.message else b"")
