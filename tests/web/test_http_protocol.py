"""The limits of the HTTP server, each over a real socket and before the application sees anything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import structlog
from starlette.types import Receive, Scope, Send

from retinue.runtime.serving import Stop, bind, serving
from retinue.web.connection_gate import HttpLimits

WITHIN_S = 60.0
HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /quick HTTP/1.1\r\n" + HOST + b"\r\n"
MIB = 1024 * 1024


@dataclass
class App:
    """Reads the whole body of each request and answers its length; ``/slow`` waits for ``go_on`` first."""

    seen: list[Scope] = field(default_factory=list)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    cut_off: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(scope)
        async with self.arrived:
            self.arrived.notify_all()
        body = b""
        if scope["path"] == "/unread":
            await self.go_on.wait()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.cut_off.set()
                return
            body += message["body"]
            if not message["more_body"]:
                break
        if scope["path"] == "/slow":
            await self.go_on.wait()
        text = str(len(body)).encode()
        headers = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})


class Peer:
    """One raw connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):  # it may have been refused meanwhile
            await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next response."""
        async with asyncio.timeout(WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def flood(self, piece: bytes) -> int:
        """Send the piece until status 431 comes; the number of bytes sent."""
        answer = asyncio.create_task(self.answer())
        sent = 0
        while sent < 4 * MIB and not answer.done():
            await self.send(piece)
            sent += len(piece)
            await asyncio.sleep(0)
        assert (await answer)[0] == 431
        return sent

    async def closed(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(WITHIN_S):
            return await self.reader.read()


@dataclass
class Server:
    app: App
    port: int
    peers: list[Peer] = field(default_factory=list)

    async def connect(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self.peers.append(peer)
        return peer

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        peer = await self.connect()
        await peer.send(data)
        return await peer.answer()


@asynccontextmanager
async def running(limits: HttpLimits | None = None) -> AsyncIterator[Server]:
    app = App()
    listener = bind("127.0.0.1", 0)
    server = Server(app, listener.getsockname()[1])
    async with serving(app, listener, Stop(), limits):
        try:
            yield server
        finally:
            app.go_on.set()
            for peer in server.peers:
                peer.writer.close()


def head(*headers: bytes, path: bytes = b"/quick", method: bytes = b"GET") -> bytes:
    return method + b" " + path + b" HTTP/1.1\r\n" + HOST + b"".join(h + b"\r\n" for h in headers) + b"\r\n"


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(head(b"X-A: " + b"a" * 70_000), id="one long header"),
        pytest.param(head(*[b"X-%d: " % n + b"a" * 900 for n in range(90)]), id="many headers"),
        pytest.param(head(path=b"/quick?" + b"a" * 70_000), id="url"),
        pytest.param(head(*[b"X-%d: 1" % n for n in range(101)]), id="number of headers"),
    ],
)
async def test_a_head_beyond_the_limits_is_answered_with_431_and_not_passed_on(attack: bytes) -> None:
    async with running() as server:
        status, body = await server.ask(attack)
        assert status == 431
        assert b"limits.head" in body
        assert server.app.seen == []


@pytest.mark.parametrize("start", [b"GET /quick HTTP/1.1\r\n" + HOST + b"X-A: ", b"GET /quick?"])
async def test_a_head_that_never_ends_is_refused_while_it_arrives(start: bytes) -> None:
    async with running() as server:
        peer = await server.connect()
        await peer.send(start)
        assert await peer.flood(b"a" * 4096) < 2 * MIB


async def test_a_head_just_below_the_limits_is_passed_on_also_in_many_pieces() -> None:
    request = head(*[b"X-%d: " % n + b"a" * 640 for n in range(96)])
    async with running() as server:
        assert len(request) > 62_000
        assert (await server.ask(request))[0] == 200
        peer = await server.connect()
        for at in range(0, len(request), 997):
            await peer.send(request[at : at + 997])
            await asyncio.sleep(0)
        assert (await peer.answer())[0] == 200
        assert len(server.app.seen[-1]["headers"]) == 97


async def test_a_head_after_a_large_body_in_the_same_piece_counts_only_itself() -> None:
    body = b"b" * 200_000
    first = head(b"Content-Length: 200000", method=b"POST") + body
    async with running() as server:
        peer = await server.connect()
        await peer.send(first + GET[:20])
        assert await peer.answer() == (200, b"200000")
        await peer.send(GET[20:])
        assert await peer.answer() == (200, b"0")


@pytest.mark.parametrize("kind", ["long", "many", "extension"])
async def test_trailers_and_chunk_extensions_without_end_are_refused(kind: str) -> None:
    piece = {
        "long": b"a" * 8192,
        "many": b"".join(b"T-%d: 1\r\n" % n for n in range(200)),
        "extension": b"e" * 8192,
    }[kind]
    start = head(b"Transfer-Encoding: chunked", method=b"POST") + b"2\r\nhi\r\n"
    start += b"2;" if kind == "extension" else b"0\r\nT: "
    async with running() as server:
        peer = await server.connect()
        await peer.send(start)
        assert await peer.flood(piece) < 2 * MIB
        async with asyncio.timeout(WITHIN_S):
            await server.app.cut_off.wait()


async def test_trailers_are_no_headers_of_the_request() -> None:
    request = head(b"Transfer-Encoding: chunked", method=b"POST") + b"0\r\nAuthorization: Bearer x\r\n\r\n"
    async with running() as server:
        assert (await server.ask(request))[0] == 200
        assert [name for name, _ in server.app.seen[0]["headers"]] == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize("start", [b"", b"GET /quick HTT", GET[:-2], b"\r\n\r\n"])
async def test_a_head_that_is_not_complete_in_time_is_answered_with_408(start: bytes) -> None:
    async with running(HttpLimits(head_s=0.2)) as server:
        status, body = await server.ask(start)
        assert status == 408
        assert b"limits.head_s" in body


async def test_the_head_of_a_later_request_has_the_same_time_limit() -> None:
    async with running(HttpLimits(head_s=0.2)) as server:
        peer = await server.connect()
        await peer.send(GET)
        assert (await peer.answer())[0] == 200
        await peer.send(GET[:20])
        assert (await peer.answer())[0] == 408


async def test_the_time_limit_of_a_head_does_not_end_a_call_in_progress() -> None:
    async with running(HttpLimits(head_s=0.1)) as server:
        peer = await server.connect()
        await peer.send(head(path=b"/slow") + b"\r\nGET /qui")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await peer.reader.read(1)
        server.app.go_on.set()
        assert await peer.answer() == (200, b"0")


async def test_a_body_without_progress_is_answered_with_408_and_the_application_is_told() -> None:
    start = head(b"Content-Length: 100000", method=b"POST") + b"b" * 500
    async with running(HttpLimits(body_s=0.2)) as server:
        status, body = await server.ask(start)
        assert status == 408
        assert b"limits.body_s" in body
        async with asyncio.timeout(WITHIN_S):
            await server.app.cut_off.wait()


async def test_a_client_that_waits_for_100_and_sends_nonsense_is_refused_without_an_inner_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = head(b"Transfer-Encoding: chunked", b"Expect: 100-continue", method=b"POST", path=b"/quick")
    async with running() as server:
        assert (await server.ask(start + b"nonsense"))[0] == 400
    assert caplog.records == []


async def test_a_body_is_not_late_while_the_server_does_not_read_it() -> None:
    async with running(HttpLimits(body_s=0.1)) as server:
        peer = await server.connect()
        await peer.send(head(b"Content-Length: 400000", path=b"/unread", method=b"POST"))
        sending = asyncio.create_task(peer.send(b"b" * 400_000))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await peer.reader.read(1)
        server.app.go_on.set()
        assert await peer.answer() == (200, b"400000")
        await sending


async def test_bodies_of_unanswered_requests_are_limited_together_and_small_ones_still_served() -> None:
    start = head(b"Content-Length: 1000000", method=b"POST") + b"b" * 900_000
    async with running(HttpLimits(held_bytes=2 * MIB)) as server:
        holders = [await server.connect() for _ in range(4)]
        for holder in holders:
            await holder.send(start)
        waits = [asyncio.create_task(holder.answer()) for holder in holders]
        async with asyncio.timeout(WITHIN_S):
            ended, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        status, body = ended.pop().result()
        assert status == 503
        assert b"limits.held_bytes" in body
        small = head(b"Content-Length: 50000", method=b"POST") + b"b" * 50_000
        assert await server.ask(small) == (200, b"50000")
        for other in others:
            other.cancel()
        for holder in holders:
            holder.writer.close()
        whole = head(b"Content-Length: 1000000", method=b"POST") + b"b" * 1_000_000
        async with asyncio.timeout(WITHIN_S):
            while (await server.ask(whole))[0] != 200:
                await asyncio.sleep(0.01)


async def test_bodies_that_are_streamed_to_disk_are_not_counted() -> None:
    upload = head(b"Content-Length: 5000000", path=b"/v2/agents/a/blobs/uploads/1", method=b"PATCH")
    async with running(HttpLimits(held_bytes=MIB)) as server:
        assert await server.ask(upload + b"b" * 5_000_000) == (200, b"5000000")


async def test_the_longest_waiting_connection_makes_room_for_a_new_one() -> None:
    async with running(HttpLimits(connections=20)) as server:
        idle = [await server.connect() for _ in range(20)]
        for _ in range(30):
            assert (await server.ask(GET))[0] == 200
        status, body = await idle[0].answer()
        assert status == 408
        assert b"no connection was left" in body


async def test_without_room_a_connection_is_told_so() -> None:
    async with running(HttpLimits(connections=5)) as server:
        busy = [await server.connect() for _ in range(5)]
        for one in busy:
            await one.send(head(path=b"/slow"))
        async with asyncio.timeout(WITHIN_S), server.app.arrived:
            await server.app.arrived.wait_for(lambda: len(server.app.seen) == 5)
        status, body = await server.ask(GET)
        assert status == 503
        assert b"limits.connections" in body
        server.app.go_on.set()
        for one in busy:
            assert (await one.answer())[0] == 200
        # they are idle now, so one of them makes room
        assert (await server.ask(GET))[0] == 200


async def test_two_hundred_pipelined_requests_are_answered_in_order_and_a_thousand_are_too_many() -> None:
    async with running() as server:
        peer = await server.connect()
        await peer.send(GET * 200)
        assert [(await peer.answer())[0] for _ in range(200)] == [200] * 200
        greedy = await server.connect()
        await greedy.send(GET * 1000)
        await greedy.closed()
        assert len(server.app.seen) < 600


async def test_refusals_are_logged_once_a_minute() -> None:
    with structlog.testing.capture_logs() as lines:
        async with running() as server:
            for _ in range(30):
                assert (await server.ask(b"NONSENSE\r\n\r\n"))[0] == 400
    assert len([line for line in lines if line["event"] == "connections refused"]) == 1
