"""Messages of MCP to agents elsewhere: which token goes to which place."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from retinue.core.call import ANONYMOUS
from retinue.core.record import AgentRecord, Endpoint, Listing
from retinue.drivers.http import HttpClient
from retinue.drivers.mcp_peers import McpPeers
from tests.serving import serve_app


async def test_the_token_is_the_one_for_the_place_that_it_is_sent_to() -> None:
    """A card may name its MCP door on another host than its own."""

    async def echo(request: Request) -> JSONResponse:
        return JSONResponse({"sent": request.headers.get("authorization")})

    async with (
        serve_app(Starlette(routes=[Route("/mcp", echo, methods=["POST"])])) as url,
        HttpClient() as http,
    ):
        door = Endpoint("mcp", f"{url}/mcp")
        record = AgentRecord("one-agent", endpoints=(Endpoint("execute", "http://10.0.0.9:1"), door))
        listing = Listing(record, "home", "agents/one")
        peers = McpPeers(http, lambda source, place: f"{source} {place}")
        async with peers.open(
            listing, "POST", {"content-type": "application/json"}, ANONYMOUS, body=b"{}"
        ) as reply:
            assert await reply.read() == f'{{"sent":"Bearer home {url}/mcp"}}'.encode()
