"""What the two eras of MCP want of the same result: handshake (to 2025-11-25) and 2026-07-28."""

from __future__ import annotations

from typing import Any

from mcp.server.lowlevel import Server
from mcp_types import SERVER_INFO_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from retinue.surfaces.mcp.callers import Context

_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}
"""A view belongs to its caller and may change at any time; ``list_changed`` tells when."""


def is_modern(context: Context) -> bool:
    """Whether this message is of the sessionless era, where questions travel inside results."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def complete(context: Context, result: dict[str, Any], *, cacheable: bool = False) -> dict[str, Any]:
    """The result as this era wants it marked."""
    if not is_modern(context):
        return result
    return {"resultType": "complete", **(_UNCACHED if cacheable else {}), **result}


def stamp(context: Context, result: dict[str, Any], server: Server[Any]) -> dict[str, Any]:
    """A result that does not pass the SDK's own shaping, with the server's name where the era wants it."""
    if not is_modern(context):
        return result
    return {**result, "_meta": {**result.get("_meta", {}), SERVER_INFO_META_KEY: server.server_info_stamp}}
