"""The official Python client, and requests by hand, for MCP endpoints under test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from tests.system import WAIT_S, Served

VERSION = "2026-07-28"
ACCEPT = "application/json, text/event-stream"
MODES = ("auto", "legacy")
"""``auto`` ends up in the sessionless era, ``legacy`` in the handshake's."""


@asynccontextmanager
async def connect(
    served: Served | str, mode: str = "auto", *, authorization: str | None = None, **options: Any
) -> AsyncIterator[Client]:
    """A client of ``/mcp``; ``options`` are the official client's, such as its callbacks."""
    url = served if isinstance(served, str) else f"{served.url}/mcp"
    headers = {} if authorization is None else {"authorization": authorization}
    # no certificates are needed here, and reading them takes longer than most tests
    async with httpx2.AsyncClient(headers=headers, timeout=120, verify=False) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode, **options) as client:
            yield client


def texts(result: CallToolResult) -> list[str]:
    """The text blocks of a result."""
    return [block.text for block in result.content if isinstance(block, TextContent)]


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


class Pipe:
    """A client of ``retinue serve --stdio``, one message a line; whatever else is printed fails it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.notifications: list[Any] = []

    async def tell(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(orjson.dumps(message) + b"\n")
        await self.process.stdin.drain()

    async def ask(self, message: dict[str, Any]) -> Any:
        """Send a request and read until its reply; notifications on the way are kept."""
        await self.tell(message)
        while True:
            found = await self.read()
            if found.get("id") == message["id"] and "method" not in found:
                return found
            self.notifications.append(found)

    async def read(self) -> Any:
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = await self.process.stdout.readline()
        assert line, "the agent closed its output"
        return orjson.loads(line)

    async def close(self) -> int:
        """Close the agent's input, which ends it; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(WAIT_S):
            return await self.process.wait()


@asynccontextmanager
async def connect_stdio(target: Path) -> AsyncIterator[Pipe]:
    """``retinue serve TARGET --stdio`` while inside; it ends well when its input ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "retinue", "serve", str(target), "--stdio"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=16 * 1024 * 1024,
    )
    pipe = Pipe(process)
    try:
        yield pipe
        assert await pipe.close() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
