"""Many clients, clients that go away, and what is left of them."""

from __future__ import annotations

import asyncio

import aiohttp
import orjson
import pytest
from mcp.client import Client

from retinue.authoring.agent import Agent
from tests.mcp.clients import MODES, connect, texts
from tests.mcp.test_calling import initialize
from tests.system import WAIT_S, System, Wire

MANY = 200


class Waiting:
    """An agent whose skill waits until it is cancelled."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.agent = Agent("waiting-agent")

        @self.agent.skill(expose=True)
        async def wait() -> str:
            self.running.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "never"

        @self.agent.skill(expose=True)
        async def echo(text: str) -> str:
            return text


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
async def test_a_client_that_disconnects_in_the_middle_cancels_its_skill(
    system: System, wire: Wire, era: str
) -> None:
    waiting = Waiting()
    served = await system.start_agent(waiting.agent)
    url = f"{served.url}/mcp"
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    params: dict[str, object] = {"name": "wait", "arguments": {}}
    if era == "2025-11-25":
        opened = await wire.post(url, initialize(), accept=headers["accept"])
        headers["mcp-session-id"] = opened.headers["mcp-session-id"]
    else:
        headers |= {"mcp-protocol-version": era, "mcp-method": "tools/call", "mcp-name": "wait"}
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": era,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    body = orjson.dumps({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params})

    async def ask() -> None:
        async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as reply:
            await reply.read()

    asking = asyncio.create_task(ask())
    async with asyncio.timeout(WAIT_S):
        await waiting.running.wait()
        asking.cancel()
        await waiting.cancelled.wait()
    await asyncio.gather(asking, return_exceptions=True)
    if era == "2025-11-25":
        # the session goes on
        asked = {"jsonrpc": "2.0", "id": 8, "method": "tools/list"}
        listed = await wire.post(
            url, asked, accept=headers["accept"], mcp_session_id=headers["mcp-session-id"]
        )
        assert b'"echo"' in listed.body


@pytest.mark.parametrize("mode", MODES)
async def test_two_hundred_clients_are_served_at_once(system: System, mode: str) -> None:
    waiting = Waiting()
    served = await system.start_agent(waiting.agent)

    async def one(n: int) -> list[str]:
        async with connect(served, mode) as client:
            return texts(await client.call_tool("echo", {"text": str(n)}))

    found = await asyncio.gather(*(one(n) for n in range(MANY)))
    assert found == [[str(n)] for n in range(MANY)]


async def test_an_agent_stops_although_clients_listen(system: System) -> None:
    served = await system.start_agent(Waiting().agent)
    client = Client(f"{served.url}/mcp", mode="legacy")
    async with client:
        await client.list_tools()
        async with asyncio.timeout(WAIT_S):
            await served.stop()


async def test_a_stream_of_a_client_that_saw_events_before_begins_anew(system: System, wire: Wire) -> None:
    served = await system.start_agent(Waiting().agent)
    hub = await system.start_hub()
    accept = "application/json, text/event-stream"
    for url in (f"{served.url}/mcp", f"{hub.url}/mcp", f"{hub.url}/agents/waiting-agent/mcp"):
        opened = await wire.post(url, initialize(), accept=accept)
        headers = {
            "accept": accept,
            "mcp-protocol-version": "2025-11-25",
            "mcp-session-id": opened.headers["mcp-session-id"],
            "last-event-id": "9",
        }
        async with (
            asyncio.timeout(WAIT_S),
            aiohttp.ClientSession() as client,
            client.get(url, headers=headers) as stream,
        ):
            assert (stream.status, stream.content_type) == (200, "text/event-stream"), url
