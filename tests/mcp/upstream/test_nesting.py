"""A reply of an imported server that is nested too deeply fails its call at once, and no other."""

from __future__ import annotations

import asyncio
import os
import sys

import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retinue.core.errors import RemoteFaultError
from retinue.mcp.codec.messages import parse_message
from retinue.mcp.stdio.server_program import ServerProgram
from retinue.mcp.upstream.http_transport import HttpTransport
from retinue.mcp.upstream.imports.server import ImportSpec
from retinue.mcp.upstream.transport import Transport
from retinue.web.http_client import HttpClient
from tests.mcp.upstream.test_imports import running
from tests.serving import serve_app

LEVELS = [200, 5_000, 100_000]


def nesting(levels: int) -> ImportSpec:
    def connect() -> Transport:
        command = [sys.executable, "-m", "tests.mcp.upstream.nesting_server", str(levels)]
        return ServerProgram("deep", command, {}, own=os.environ)

    return ImportSpec("deep", connect, "a program")


@pytest.mark.parametrize("levels", LEVELS)
async def test_a_reply_of_a_program_that_is_nested_too_deeply_fails_its_call_at_once(levels: int) -> None:
    async with running(nesting(levels)) as imports:
        await imports.until("deep", lambda seen: seen.health == "healthy")
        async with asyncio.timeout(30):  # a call has 60 s
            outcome = await imports.call("nest", {})
        assert outcome.error is not None
        assert "nested over 128 levels" in outcome.error.message
        assert (await imports.call("plain", {})).value == "done"


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("media_type", ["application/json", "text/event-stream"])
async def test_a_reply_over_http_that_is_nested_too_deeply_fails_its_call_at_once(
    levels: int, media_type: str
) -> None:
    async def answer(request: Request) -> Response:
        request_id = orjson.loads(await request.body())["id"]
        nested = b"[" * levels + b"]" * levels
        body = b'{"jsonrpc":"2.0","id":%d,"result":{"x":%s}}' % (request_id, nested)
        return Response(body if "json" in media_type else b"data: %s\n\n" % body, media_type=media_type)

    call = parse_message(b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"nest"}}')
    async with (
        serve_app(Starlette(routes=[Route("/mcp", answer, methods=["POST"])])) as url,
        HttpClient() as http,
    ):
        transport = HttpTransport("deep", http, f"{url}/mcp", {})
        with pytest.raises(RemoteFaultError, match="nested over 128 levels"):
            _ = [document async for document in transport.exchange(call)]
