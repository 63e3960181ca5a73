"""The official MCP client, as the tests of the doors use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import orjson
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

VERSION = "2026-07-28"
ACCEPT = "application/json, text/event-stream"


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


def sessionless(method: str, params: dict[str, Any], **meta: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """One request of 2026-07-28 as bytes on a wire: the message, and the headers that belong to it."""
    given = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        **meta,
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": given}}
    headers = {"accept": ACCEPT, "mcp_protocol_version": VERSION, "mcp_method": method}
    if (name := params.get("name") or params.get("uri")) is not None:
        headers["mcp_name"] = name
    return message, headers


def read_result(body: bytes) -> Any:
    """The reply in an answer, whether it came alone or as the last event of a stream."""
    lines = [line.removeprefix(b"data:") for line in body.splitlines() if line.startswith(b"data:")]
    return orjson.loads(lines[-1] if lines else body)


def text_of(result: Any) -> str:
    """The first text of a tool's result."""
    return str(result.content[0].text)
