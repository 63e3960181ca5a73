"""A hub before the everything server, and clients of both eras that come through it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx2
import orjson
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.interop.upstream import NAME, Everything
from tests.system import Hub, Reply, System, Wire

MODERN = "2026-07-28"
ACCEPT = "application/json, text/event-stream"
CLIENT_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


@dataclass(frozen=True, slots=True)
class Relay:
    """The hub, what stands behind it, and ways to ask it."""

    system: System
    hub: Hub
    wire: Wire
    everything: Everything

    @property
    def url(self) -> str:
        return f"{self.hub.url}/agents/{NAME}/mcp"

    @asynccontextmanager
    async def client(self, mode: str, *, token: str | None = None, **options: Any) -> AsyncIterator[Client]:
        """The official client, through the hub."""
        async with AsyncExitStack() as stack:
            transport: Any = self.url
            if token is not None:
                http = httpx2.AsyncClient(headers={"authorization": token}, timeout=30)
                await stack.enter_async_context(http)
                transport = streamable_http_client(self.url, http_client=http)
            yield await stack.enter_async_context(Client(transport, mode=mode, **options))

    async def post(self, message: Any, **headers: str) -> Reply:
        """One message of the handshake era, as bytes or JSON."""
        return await self.wire.post(self.url, message, accept=ACCEPT, **headers)

    async def open_session(self, **headers: str) -> str:
        """A session by hand; its id."""
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        reply = await self.post(request("initialize", params), **headers)
        assert reply.status == 200, reply
        session = reply.headers["mcp-session-id"]
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await self.post(initialized, mcp_session_id=session, **headers)).status == 202
        return session

    def begin(self, session: aiohttp.ClientSession, message: dict[str, Any], **headers: str) -> Any:
        """The context of one POST whose answer is not read yet."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent |= {"accept": ACCEPT, "content-type": "application/json"}
        return session.post(self.url, data=orjson.dumps(message), headers=sent)


def request(method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:  # noqa: A002 - JSON-RPC's name
    """One request of the handshake era."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def modern(method: str, params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """One request of 2026-07-28 that wants progress, and the headers that belong to it."""
    headers = {"mcp_protocol_version": MODERN, "mcp_method": method}
    if "name" in params:
        headers["mcp_name"] = params["name"]
    return request(method, {**params, "_meta": {**CLIENT_META, "progressToken": "p"}}), headers


def tool_call(name: str, **arguments: Any) -> dict[str, Any]:
    """The parameters of a tool call that wants progress."""
    return {"name": name, "arguments": arguments, "_meta": {"progressToken": "p"}}


def read_events(body: bytes) -> list[Any]:
    """The messages of a stream."""
    lines = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
    return [orjson.loads(line) for line in lines if line]
