"""The MCP client for agents: which token goes where, and what is remembered of an agent without MCP."""

from __future__ import annotations

from dataclasses import replace

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from retinue.core.call import ANONYMOUS
from retinue.core.record import AgentRecord, Endpoint, Listing
from retinue.mcp.upstream.client import ASK_AGAIN_S, AgentClient
from retinue.web.http_client import HttpClient
from tests.serving import serve_app


async def test_the_token_is_the_one_for_the_place_that_it_is_sent_to() -> None:
    """A card may name its MCP endpoint on another host than its own."""

    async def echo(request: Request) -> JSONResponse:
        return JSONResponse({"sent": request.headers.get("authorization")})

    async with (
        serve_app(Starlette(routes=[Route("/mcp", echo, methods=["POST"])])) as url,
        HttpClient() as http,
    ):
        endpoint = Endpoint("mcp", f"{url}/mcp")
        record = AgentRecord("one-agent", endpoints=(Endpoint("execute", "http://10.0.0.9:1"), endpoint))
        listing = Listing(record, "home", "agents/one")
        client = AgentClient(http, lambda source, place: f"{source} {place}")
        headers = {"content-type": "application/json"}
        async with client.open(listing, "POST", headers, ANONYMOUS, None, b"{}") as response:
            assert await response.read() == f'{{"sent":"Bearer home {url}/mcp"}}'.encode()


async def test_an_agent_without_an_endpoint_is_asked_again_later_and_at_another_url() -> None:
    """A session goes on with the substitute that it began with."""
    now = 0.0
    async with HttpClient() as http:
        client = AgentClient(http, clock=lambda: now)
        record = AgentRecord("old-agent", endpoints=(Endpoint("execute", "http://10.0.0.9:1"),))
        listing = Listing(record, "home", "agents/old")
        assert not client.lacks_endpoint(listing)
        client.note_lacking(listing)
        assert client.lacks_endpoint(listing)
        moved = replace(record, endpoints=(Endpoint("execute", "http://10.0.0.9:2"),))
        assert not client.lacks_endpoint(replace(listing, record=moved))
        now = ASK_AGAIN_S + 1
        assert not client.lacks_endpoint(listing)
        assert client.lacks_endpoint(listing, in_session=True)
