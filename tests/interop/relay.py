"""A hub before the everything server, and clients of both eras that come through it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from mcp import Client

from tests.interop.upstream import NAME, Everything
from tests.mcp.clients import ACCEPT, connect, sessionless
from tests.system import Hub, Reply, System, Wire


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

    def client(
        self, mode: str, *, token: str | None = None, **options: Any
    ) -> AbstractAsyncContextManager[Client]:
        """The official client, through the hub."""
        return connect(self.url, mode, authorization=token, **options)

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
    """One request of 2026-07-28 that wants progress, and the headers that belong to it but ``accept``."""
    message, headers = sessionless(method, params, progressToken="p")
    del headers["accept"]
    return message, headers


def tool_call(name: str, **arguments: Any) -> dict[str, Any]:
    """The parameters of a tool call that wants progress."""
    return {"name": name, "arguments": arguments, "_meta": {"progressToken": "p"}}


def read_events(body: bytes) -> list[Any]:
    """The messages of a stream."""
    lines = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
    return [orjson.loads(line) for line in lines if line]
