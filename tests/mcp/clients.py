"""The official Python client at the door of an agent under test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from tests.system import Served

MODES = ("auto", "legacy")
"""``auto`` ends up in the sessionless era, ``legacy`` in the handshake's."""


@asynccontextmanager
async def connect(
    served: Served | str, mode: str, *, authorization: str | None = None, **options: Any
) -> AsyncIterator[Client]:
    """A client of ``/mcp``; ``options`` are the official client's, such as its callbacks."""
    url = served if isinstance(served, str) else f"{served.url}/mcp"
    headers = {} if authorization is None else {"authorization": authorization}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode, **options) as client:
            yield client


def texts(result: CallToolResult) -> list[str]:
    """The text blocks of a result."""
    return [block.text for block in result.content if isinstance(block, TextContent)]
