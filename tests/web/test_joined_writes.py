"""A response leaves in one write; the head of a stream does not wait for its first event."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from retinue.runtime.serving import Stop, bind, serving
from retinue.web.fast.joined_writes import JoinedWrites

WITHIN_S = 60.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Recorder(asyncio.Transport):
    """Keeps what is written, one entry for each write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_ended = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.written.append(b"".join(bytes(one) for one in list_of_data))

    def is_closing(self) -> bool:
        return self.is_ended

    def write_eof(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.is_ended = True

    def abort(self) -> None:
        self.is_ended = True


async def next_turn() -> None:
    """Until the event loop has run what was scheduled."""
    turned = asyncio.Event()
    asyncio.get_running_loop().call_soon(turned.set)
    await turned.wait()


def wrapped() -> tuple[JoinedWrites, Recorder]:
    recorder = Recorder()
    return JoinedWrites(recorder, asyncio.get_running_loop()), recorder


@pytest.mark.parametrize("body", [b"{}", b"x" * 100_000], ids=["short", "long"])
async def test_the_head_leaves_in_one_write_with_the_body(body: bytes) -> None:
    transport, recorder = wrapped()
    transport.write(HEAD)
    transport.write(body)
    assert recorder.written == [HEAD + body]
    await next_turn()
    assert recorder.written == [HEAD + body]


async def test_a_head_without_a_body_leaves_in_the_next_turn_of_the_loop() -> None:
    transport, recorder = wrapped()
    transport.write(HEAD)
    assert recorder.written == []
    await next_turn()
    assert recorder.written == [HEAD]
    transport.write(b"data: 1\n\n")
    assert recorder.written == [HEAD, b"data: 1\n\n"]


async def test_everything_leaves_in_its_order_whatever_it_begins_with() -> None:
    transport, recorder = wrapped()
    pieces = [HEAD, HEAD, b"ab", HEAD, HEAD, HEAD, b"HTTP/1.1 in a body", b"cd"]
    for piece in pieces:
        transport.write(piece)
    await next_turn()
    assert b"".join(recorder.written) == b"".join(pieces)


@pytest.mark.parametrize("end", ["close", "write_eof"])
async def test_a_waiting_head_leaves_before_the_connection_ends(end: str) -> None:
    transport, recorder = wrapped()
    transport.write(HEAD)
    getattr(transport, end)()
    assert recorder.written == [HEAD]
    assert recorder.is_ended


async def test_an_aborted_connection_sends_nothing_more() -> None:
    transport, recorder = wrapped()
    transport.write(HEAD)
    transport.abort()
    await next_turn()
    assert recorder.written == []


async def test_a_client_gets_the_head_of_a_stream_before_its_first_event() -> None:
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"data: 1\n\n"})

    listener = bind("127.0.0.1", 0)
    async with asyncio.timeout(WITHIN_S), serving(app, listener, Stop()):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"text/event-stream" in await reader.readuntil(b"\r\n\r\n")
        go_on.set()
        assert b"data: 1\n\n" in await reader.readuntil(b"0\r\n\r\n")
        writer.close()


@pytest.mark.parametrize("method", ["HEAD", "GET"])
async def test_a_response_without_a_body_arrives_whole(method: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        status, headers = (200, [(b"content-length", b"5")]) if scope["method"] == "HEAD" else (204, [])
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello" if status == 200 else b""})

    listener = bind("127.0.0.1", 0)
    async with asyncio.timeout(WITHIN_S), serving(app, listener, Stop()):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        for _ in range(2):
            writer.write(f"{method} / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 20")
        writer.close()
