"""Responses that are read as they come, by both HTTP clients; the plain one also against hostile servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from starlette.types import Receive, Scope, Send

from retinue.web.fast.plain_connection import MAX_HEAD_BYTES, StreamedResponse
from retinue.web.fast.plain_http_client import PlainStream
from retinue.web.http_client import AiohttpStream, HttpClient
from retinue.web.transport import ResponseTooLargeError, TransportError
from tests.serving import serve_app

WITHIN_S = 60.0
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class AiohttpClient(HttpClient):
    """The client as it sends what the plain one cannot: through aiohttp."""

    async def __aenter__(self) -> HttpClient:
        self._plain.can_request = lambda url: False  # type: ignore[method-assign]
        return await super().__aenter__()


@pytest.fixture(params=[AiohttpClient, HttpClient])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[HttpClient]:
    async with asyncio.timeout(WITHIN_S), request.param() as opened:
        yield opened


@asynccontextmanager
async def raw_server(handle: Handler) -> AsyncIterator[str]:
    """Gives each connection to ``handle`` after the head of its first request."""

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await handle(reader, writer)

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


def says(answer: bytes) -> Handler:
    """Sends these bytes and hangs up."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    return handle


async def test_plain_http_to_an_address_takes_the_plain_client() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with raw_server(says(answer)) as url:
        for kind, stream in ((HttpClient, PlainStream), (AiohttpClient, AiohttpStream)):
            async with kind() as client, client.stream("GET", url, headers={}) as reply:
                assert isinstance(reply, stream)
                assert (reply.status, await reply.read()) == (200, b"ok")


async def test_each_part_is_read_when_it_comes(client: HttpClient) -> None:
    was_read = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS)
        writer.write(b"3\r\none\r\n")
        await was_read.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")
        writer.close()

    async with raw_server(handle) as url, client.stream("GET", url, headers={}) as reply:
        assert reply.headers["content-type"] == "text/event-stream"
        assert await reply.read_some() == b"one"
        was_read.set()
        assert await reply.read() == b"two"
        assert await reply.read_some() == b""


async def test_leaving_early_tells_the_server(client: HttpClient) -> None:
    is_gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        is_gone.set()

    async with serve_app(app) as url:
        async with client.stream("GET", url, headers={}) as reply:
            assert await reply.read_some() == b"begun"
        await is_gone.wait()


async def test_a_cancelled_wait_for_the_head_tells_the_server(client: HttpClient) -> None:
    is_asked, is_gone = asyncio.Event(), asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_asked.set()
        assert await reader.read() == b""
        is_gone.set()
        writer.close()

    async def ask(url: str) -> None:
        async with client.stream("GET", url, headers={}):
            raise AssertionError("it never began")

    async with raw_server(handle) as url:
        asking = asyncio.create_task(ask(url))
        await is_asked.wait()
        asking.cancel()
        await is_gone.wait()


async def test_a_stream_that_is_cut_off_at_any_byte_is_an_error(client: HttpClient) -> None:
    whole = EVENTS + b"2\r\nok\r\n0\r\n\r\n"
    for cut in range(len(whole)):
        async with raw_server(says(whole[:cut])) as url:
            with pytest.raises(TransportError) as caught:
                async with client.stream("GET", url, headers={}) as reply:
                    await reply.read()
        assert caught.value.sent
    async with raw_server(says(whole)) as url, client.stream("GET", url, headers={}) as reply:
        assert await reply.read() == b"ok"


async def test_a_body_without_length_ends_with_its_connection(client: HttpClient) -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\n\r\nuntil the end"
    async with raw_server(says(answer)) as url, client.stream("GET", url, headers={}) as reply:
        assert reply.status == 200
        assert "link" not in reply.headers
        assert await reply.read() == b"until the end"


async def test_a_body_over_the_limit_is_not_read_to_its_end(client: HttpClient) -> None:
    answer = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000
    async with raw_server(says(answer)) as url, client.stream("GET", url, headers={}) as reply:
        with pytest.raises(ResponseTooLargeError):
            await reply.read(1000)


@pytest.mark.parametrize("line", [b"X-More: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=["many", "one"])
async def test_a_head_without_end_is_refused(client: HttpClient, line: bytes) -> None:
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nX-One: ")
        try:
            while sent < 100 * MAX_HEAD_BYTES:
                writer.write(line)
                sent += len(line)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    async with raw_server(handle) as url:
        with pytest.raises(TransportError):
            async with client.stream("GET", url, headers={}):
                raise AssertionError("it has no end")
    assert sent < 100 * MAX_HEAD_BYTES


async def test_trailers_without_end_are_refused() -> None:
    """After the last chunk no part of a body comes that would stop a server from sending."""
    is_gone = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS + b"3\r\none\r\n0\r\nX-More: ")
        try:
            while True:
                writer.write(b"y" * 1000)
                await writer.drain()
        except ConnectionError:
            is_gone.set()

    async with raw_server(handle) as url, HttpClient() as client:
        async with client.stream("GET", url, headers={}) as reply:
            with pytest.raises(TransportError, match="larger than 131,072 bytes"):
                await reply.read()
        with pytest.raises(TransportError, match="larger than 131,072 bytes"):
            await client.request("GET", url, timeout_s=WITHIN_S)
        await is_gone.wait()


async def test_a_connection_whose_body_nobody_read_is_not_used_again() -> None:
    """Reading from it is stopped: a second request would wait for ever."""
    body = b"x" * (200 * 1024)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async with asyncio.timeout(WITHIN_S), serve_app(app) as url, HttpClient() as client:
        for _ in range(20):
            async with client.stream("GET", url, headers={}) as reply:
                assert isinstance(reply, PlainStream)
                while not reply.is_held:
                    await asyncio.sleep(0)
            reply_again = await client.request("GET", url, timeout_s=WITHIN_S)
            assert reply_again.body == body


async def test_an_answer_in_another_protocol_is_an_error() -> None:
    switched = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
    async with HttpClient() as client, raw_server(says(switched)) as url:
        with pytest.raises(TransportError):
            async with client.stream("GET", url, headers={}):
                raise AssertionError("nobody asked for it")
        with pytest.raises(TransportError):
            await client.request("GET", url, timeout_s=WITHIN_S)


async def test_what_nobody_reads_is_not_taken_from_the_socket() -> None:
    held: list[bool] = []
    response = StreamedResponse(held.append, is_head=False)
    for _ in range(4):
        response.add(b"x" * 64 * 1024)
    assert held == [True]
    assert len(await response.read_some()) == 4 * 64 * 1024
    assert held == [True, False]


async def test_what_came_before_a_failure_is_read_first() -> None:
    response = StreamedResponse(lambda _: None, is_head=False)
    response.add(b"said")
    response.fail(ConnectionError("cut"))
    assert await response.read_some() == b"said"
    for _ in range(2):
        with pytest.raises(ConnectionError, match="cut"):
            await response.read_some()
