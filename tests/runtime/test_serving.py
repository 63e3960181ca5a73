"""What callers hear of a server that stops."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from retinue.runtime.serving import Stop, bind, serving, url_of
from retinue.web.http_client import HttpClient


async def test_a_call_that_a_stopping_server_cuts_off_is_told_so_as_by_one_that_is_gone() -> None:
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await asyncio.Event().wait()

    listener = bind("127.0.0.1", 0)
    async with HttpClient() as http:
        async with serving(app, listener, Stop()):
            asking = asyncio.create_task(http.request("GET", url_of(listener), timeout_s=30))
            await begun.wait()
        reply = await asking
    assert (reply.status, reply.body) == (503, b"stopping")
