"""What callers hear of a server that stops."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect
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
    assert (reply.status, reply.headers["content-type"]) == (503, "application/json")
    assert reply.body == b'{"detail":"it was stopping","data":{"type":"cancelled"}}'


async def test_a_call_that_fails_while_the_server_stops_is_answered_as_any_failure() -> None:
    begun, stopping = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await stopping.wait()
        raise ValueError("broken")

    listener = bind("127.0.0.1", 0)
    async with HttpClient() as http:
        async with serving(app, listener, Stop()):
            asking = asyncio.create_task(http.request("GET", url_of(listener), timeout_s=30))
            await begun.wait()
            # the server looks for running calls 0.1 s after it has begun to stop
            asyncio.get_running_loop().call_later(0.05, stopping.set)
        reply = await asking
    assert (reply.status, reply.body) == (500, b"Internal Server Error")


@pytest.mark.parametrize(("error", "lines"), [(ClientDisconnect(), 0), (ValueError("broken"), 1)])
async def test_a_client_that_went_away_leaves_no_traceback_in_the_log(
    error: Exception, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    listener = bind("127.0.0.1", 0)
    async with HttpClient() as http, serving(app, listener, Stop()):
        await http.request("GET", url_of(listener), timeout_s=30)
    assert len([one for one in caplog.records if one.exc_info]) == lines
