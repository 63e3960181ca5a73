"""Agents of other make, which know ``/execute`` and no MCP: the hub is their MCP server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import aiohttp
import orjson
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.mcp.server.shared_sessions import SharedSessions
from retinue.mcp.session_records import RelayedRecords, SessionRecords
from retinue.runtime.endpoints.mcp import SharedMcp
from retinue.storage.state import State
from tests.mcp.clients import connect, read_result, texts
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import System, open_system, publish

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])


def _foreign_app() -> Starlette:
    """An agent as seed 001 has it, and nothing more; every other path is an HTML page."""

    async def execute(request: Request) -> Response:
        asked = orjson.loads(await request.body())
        if asked["method"] == "greet":
            reply: dict[str, Any] = {"result": {"said": f"hello {asked['params'].get('name')}"}}
        else:
            reply = {"error": {"code": -32601, "message": f"Unknown skill: {asked['method']}"}}
        return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], **reply})

    return Starlette(routes=[Route("/execute", execute, methods=["POST"])])


def _card(url: str, *skills: str) -> bytes:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    described = [{"id": one, "description": f"Does {one}", "input_schema": schema} for one in skills]
    card = {"name": "greeter", "description": "Greets", "version": "1.0.0", "url": url, "skills": described}
    return orjson.dumps(card)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with serve_app(_foreign_app()) as url:
        yield url


@both_eras
@requirement("S-16")
async def test_a_foreign_agent_is_an_mcp_server_at_the_hub(system: System, url: str, mode: str) -> None:
    """Made of its card: tools, schemas and calls, checked as everywhere."""
    await publish(system.home, _card(url, "greet"))
    hub = await system.start_hub()
    async with connect(f"{hub.url}/agents/greeter/mcp", mode, authorization=system.token) as client:
        assert client.server_info is not None
        assert client.server_info.name == "greeter"
        (tool,) = (await client.list_tools()).tools
        assert (tool.name, tool.input_schema["required"]) == ("greet", ["name"])
        called = await client.call_tool("greet", {"name": "Bo"})
        assert called.structured_content == {"said": "hello Bo"}
        refused = await client.call_tool("greet", {})
        assert refused.is_error
        assert "missing required field 'name'" in texts(refused)[0]
        with pytest.raises(MCPError, match="Unknown tool: nope"):
            await client.call_tool("nope")


async def test_the_next_leader_of_a_hub_goes_on_with_a_session_of_a_foreign_agent(
    system: System, url: str, tmp_path: Path
) -> None:
    await publish(system.home, _card(url, "greet"))

    def share() -> SharedMcp:
        sessions = SharedSessions(lambda name, news: None, SessionRecords(tmp_path / "sessions"))
        return SharedMcp(
            make_state=token_urlsafe, sessions=sessions, relayed=RelayedRecords(tmp_path / "relayed")
        )

    owner = {"authorization": system.token}
    opening = {"protocolVersion": "2025-11-25", "capabilities": {}} | {
        "clientInfo": {"name": "test", "version": "1"}
    }
    async with aiohttp.ClientSession() as http:
        before = await system.start_hub(shared_mcp=share())
        ask = partial(_ask, http, before.url)
        session, _ = await ask("initialize", opening, owner)
        kept = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        await ask("notifications/initialized", {}, owner | kept)
        # the former leader is as one that is stopped for ever: it ends no session
        after = await system.start_hub(shared_mcp=share())
        ask = partial(_ask, http, after.url)
        for _ in range(2):
            _, listed = await ask("tools/list", {}, owner | kept)
            assert [tool["name"] for tool in listed["result"]["tools"]] == ["greet"]
        _, refused = await ask("tools/list", {}, kept)
        assert "error" in refused, "it is the session of another caller"
        _, unknown = await ask("tools/list", {}, owner | kept | {"mcp-session-id": "unknown"})
        assert unknown["error"]["message"] == "Session not found"


async def _ask(
    http: aiohttp.ClientSession, hub: str, method: str, params: object, headers: dict[str, str]
) -> tuple[str, Any]:
    """The session of the response, and the message in it."""
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    message |= {} if method.startswith("notifications/") else {"id": 1}
    accept = {"accept": "application/json, text/event-stream"}
    url = f"{hub}/agents/greeter/mcp"
    async with http.post(url, json=message, headers=accept | headers) as reply:
        body = await reply.read()
        return reply.headers.get("mcp-session-id", ""), read_result(body) if body else None


async def test_its_list_follows_its_card(system: System, url: str) -> None:
    """A card published again is another list in the session that is open."""
    await publish(system.home, _card(url, "greet"))
    hub = await system.start_hub()
    async with connect(f"{hub.url}/agents/greeter/mcp", "legacy", authorization=system.token) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["greet"]
        await publish(system.home, _card(url, "greet", "part"))
        await hub.mesh.directory.refresh()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["greet", "part"]


async def _names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


@pytest.mark.parametrize(("globs", "seen"), [((), False), (("greeter__*",), True), (("other__*",), False)])
async def test_what_the_hub_exposes_of_a_foreign_agent_clients_see_and_call(
    retinue_home: Path, url: str, globs: tuple[str, ...], seen: bool
) -> None:
    """A foreign card counts as ``mesh``; ``hub.expose`` shows it to who has no token."""
    async with open_system(State(retinue_home), hub={"expose": globs}) as system:
        await publish(system.home, _card(url, "greet"))
        hub = await system.start_hub()
        for _ in range(2):  # read from the registry, and from the store of a hub that ran before
            async with connect(f"{hub.url}/mcp") as client:
                assert ("greeter__greet" in await _names(client)) == seen
                if seen:
                    called = await client.call_tool("greeter__greet", {"name": "Bo"})
                    assert called.structured_content == {"said": "hello Bo"}
            async with connect(f"{hub.url}/agents/greeter/mcp") as client:
                assert (await _names(client) == ["greet"]) == seen
            hub = await system.start_hub()
