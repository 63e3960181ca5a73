"""Lists that are written once take the place of their mark."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from retinue.mcp.server.tools import fill_in, leave_placeholder
from tests.serving import serve_app
from tests.system import open_wire

LIST = [{"name": "größer"}, {"name": 'with "quotes"\n'}]


async def whole(request: Request) -> Response:
    mark = leave_placeholder(request.scope, orjson.dumps(LIST))
    return Response(orjson.dumps({"tools": mark, "id": 1}), media_type="application/json")


async def streamed(request: Request) -> Response:
    mark = leave_placeholder(request.scope, orjson.dumps(LIST))

    async def chunks() -> Any:
        yield b"data: "
        yield orjson.dumps({"tools": mark, "id": 1})

    return StreamingResponse(chunks())


async def plain(request: Request) -> Response:
    return Response(b"nothing to fill in")


@pytest.mark.parametrize(("path", "lead"), [("whole", b""), ("streamed", b"data: ")])
async def test_the_list_stands_where_the_mark_was(path: str, lead: bytes) -> None:
    inner = Starlette(routes=[Route("/whole", whole), Route("/streamed", streamed), Route("/plain", plain)])

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await inner(scope, receive, fill_in(scope, send))

    async with serve_app(app) as url, open_wire() as wire:
        reply = await wire.get(f"{url}/{path}")
        assert orjson.loads(reply.body.removeprefix(lead)) == {"tools": LIST, "id": 1}
        assert (await wire.get(f"{url}/plain")).body == b"nothing to fill in"


def test_a_mark_is_not_guessed() -> None:
    scope: Scope = {"type": "http"}
    mark = leave_placeholder(scope, b"[]")
    assert len(mark) > 32
