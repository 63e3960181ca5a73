"""The official MCP client, as the tests of the doors use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


@asynccontextmanager
async def open_client(
    base: str, mode: str = "auto", token: str | None = None, **options: Any
) -> AsyncIterator[Client]:
    """A client of ``{base}/mcp``; ``token`` is the whole ``Authorization``."""
    async with AsyncExitStack() as stack:
        transport: Any = f"{base}/mcp"
        if token is not None:
            http = await stack.enter_async_context(httpx2.AsyncClient(headers={"authorization": token}))
            transport = streamable_http_client(f"{base}/mcp", http_client=http)
        yield await stack.enter_async_context(Client(transport, mode=mode, **options))


def text_of(result: Any) -> str:
    """The first text of a tool's result."""
    return str(result.content[0].text)
