"""The way back to an MCP client while its call runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.core.errors import InputRequiredError
from retinue.mesh.channel import LogLevel
from retinue.surfaces.mcp.callers import Context


class McpChannel:
    """Progress over the request's own stream."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    async def progress(self, fraction: float | None, message: str = "") -> None:
        if fraction is not None:
            await self._context.session.report_progress(fraction, 1.0, message or None)

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        return None

    async def elicit(self, message: str, schema: Mapping[str, Any]) -> Any:
        raise InputRequiredError(f"input required: {message}")

    async def sample(self, prompt: str, *, max_tokens: int = 1024) -> str:
        raise InputRequiredError("no model behind this caller")
