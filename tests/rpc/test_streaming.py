"""Reports of a skill over ``/execute``, between a client and a server on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
import pytest
from starlette.applications import Starlette

from retinue.core.call import Answer, Call, Outcome, TextPiece, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    CallTimedOutError,
    ExecutionFailedError,
    RemoteFaultError,
    RetinueError,
    StoppingError,
)
from retinue.mesh.channel import Capability, Channel, NullChannel
from retinue.mesh.guard.trace_guard import TraceGuard
from retinue.rpc.client import PeerInvoker
from retinue.rpc.server import execute_route
from retinue.rpc.streaming import MAX_WAITING_BYTES, request_stream
from retinue.web.http_client import HttpClient
from retinue.web.security import LOCAL_TOKEN, SecurityMiddleware, Tokens
from tests.mesh.scripted import make_call, make_listing, make_skill
from tests.serving import serve_app

WAIT_S = 60.0


class Listening(NullChannel):
    """A caller that receives progress, and what it has received."""

    capabilities: frozenset[Capability] = frozenset({"progress"})

    def __init__(self) -> None:
        self.pieces: list[TextPiece] = []
        self.lines: list[tuple[float | None, str]] = []
        self.heard = asyncio.Event()

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    async def stream_text(self, piece: TextPiece) -> None:
        self.pieces.append(piece)
        self.heard.set()

    async def progress(self, fraction: float | None, message: str = "") -> None:
        self.lines.append((fraction, message))


Work = Callable[[Channel], Awaitable[Any]]


@dataclass
class Worker:
    """A process whose one skill is ``work``."""

    work: Work | None = None
    calls: list[Call] = field(default_factory=list)
    channels: list[Channel | None] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        self.calls.append(call)
        self.channels.append(channel)
        try:
            assert self.work is not None
            value = await self.work(channel or NullChannel())
        except RetinueError as error:
            return Outcome(call.id, call.skill, "failed", error=error, calls_used=2)
        finally:
            self.stopped.set()
        usage, warnings = {"input_tokens": 3}, ("take care",)
        return Outcome(call.id, call.skill, "done", value=value, usage=usage, warnings=warnings, calls_used=2)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
async def url(worker: Worker) -> AsyncIterator[str]:
    routes = [execute_route(worker, watch_after_s=0.01)]
    app = SecurityMiddleware(Starlette(routes=routes), tokens=Tokens({"t": LOCAL_TOKEN}))
    async with serve_app(app) as url:
        yield url


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


async def invoke(http: HttpClient, url: str, channel: Channel, **fields: Any) -> Answer:
    call = make_call(trace=TraceContext("t", depth=1), **fields)
    admitted = TraceGuard().enter(call, "plan-agent")
    listing = make_listing("plan-agent", url=url)
    return await PeerInvoker(http).invoke(listing, make_skill(), call, admitted, channel)


def write(*pieces: str, then: Any = "done") -> Work:
    async def work(channel: Channel) -> Any:
        at = 0
        for text in pieces:
            await channel.stream_text(TextPiece(text, at, "writer"))
            at += len(text)
        return then

    return work


async def test_pieces_arrive_exactly_while_the_skill_still_runs(
    worker: Worker, url: str, http: HttpClient
) -> None:
    channel = Listening()

    async def work(caller: Channel) -> str:
        await caller.progress(0.5, "half")
        await caller.stream_text(TextPiece("One,\r\n ", 0, "writer"))
        await channel.heard.wait()
        await caller.stream_text(TextPiece(" \n\ntwo ✓", 7, "writer", "inner"))
        return "One,\r\n  \n\ntwo ✓"

    worker.work = work
    async with asyncio.timeout(WAIT_S):
        answer = await invoke(http, url, channel, idempotency_key="run/plan")
    assert answer.value == channel.text
    assert channel.pieces[-1] == TextPiece(" \n\ntwo ✓", 7, "writer", "inner")
    assert channel.lines == [(0.5, "half")]
    assert (answer.usage, answer.warnings) == ({"input_tokens": 3}, ("take care",))
    assert worker.calls[0].idempotency_key == "run/plan"
    # the connection is used again
    worker.work = write(then="again")
    assert (await invoke(http, url, channel)).value == "again"


async def test_a_caller_that_listens_to_nothing_asks_for_no_stream(
    worker: Worker, url: str, http: HttpClient
) -> None:
    worker.work = write("x")
    assert (await invoke(http, url, NullChannel())).value == "done"
    assert worker.channels == [None]


async def test_a_call_without_reports_is_answered_like_any_other(worker: Worker, url: str) -> None:
    worker.work = write()
    replies = []
    async with aiohttp.ClientSession() as session:
        for accept in ("*/*", "application/json, text/event-stream"):
            request = {"jsonrpc": "2.0", "method": "work", "params": {}, "id": 1}
            async with session.post(f"{url}/execute", json=request, headers={"accept": accept}) as reply:
                headers = {name: text for name, text in reply.headers.items() if name != "Date"}
                replies.append((reply.status, headers, await reply.read()))
    assert replies[0] == replies[1]
    assert replies[0][1]["Content-Type"] == "application/json"


@pytest.mark.parametrize("pieces", [(), ("some ", "text")], ids=["at once", "after text"])
@pytest.mark.parametrize(
    ("error", "code"),
    [(ExecutionFailedError("the disk is on fire"), -32603), (StoppingError(), None)],
    ids=["failed", "stopping"],
)
async def test_a_failure_is_the_same_with_and_without_a_stream(
    worker: Worker, url: str, http: HttpClient, pieces: tuple[str, ...], error: RetinueError, code: int | None
) -> None:
    async def work(channel: Channel) -> Any:
        await write(*pieces)(channel)
        raise error

    worker.work = work
    failures = []
    for channel in (NullChannel(), Listening()):
        with pytest.raises(RetinueError) as caught:
            await invoke(http, url, channel)
        failure = caught.value
        failures.append((type(failure), failure.message, failure.remedy, failure.data))
    assert failures[0] == failures[1]
    if code is not None:
        assert failures[0][0] is RemoteFaultError


async def test_a_process_that_knows_no_stream_is_read_as_ever(http: HttpClient) -> None:
    async def foreign(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            request = orjson.loads((await receive())["body"])
            body = orjson.dumps({"jsonrpc": "2.0", "result": "plain", "id": request["id"]})
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})

    async with serve_app(foreign) as url:
        assert (await invoke(http, url, Listening())).value == "plain"


@pytest.mark.parametrize(
    "events",
    [
        b'event: text\r\ndata: {"text":"half","at":0}\r\n\r\n',
        b"event: text\r\ndata: {not json}\r\n\r\n",
        b'event: reply\r\ndata: {"status":"200"}\r\n\r\n',
        b'event: reply\r\ndata: {"status":200,"headers":{},"bo',
    ],
    ids=["no reply", "no json", "no status", "cut"],
)
async def test_a_stream_without_its_reply_may_have_run_the_skill(http: HttpClient, events: bytes) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await receive()
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": events})

    async with serve_app(broken) as url:
        with pytest.raises(AgentUnreachableError) as caught:
            await invoke(http, url, Listening())
    assert caught.value.sent


async def test_the_time_limit_holds_while_pieces_come(worker: Worker, url: str, http: HttpClient) -> None:
    async def work(channel: Channel) -> None:
        at = 0
        while True:
            await channel.stream_text(TextPiece("x", at))
            at += 1
            await asyncio.sleep(0.01)

    worker.work = work
    deadline = asyncio.get_running_loop().time() + 0.3
    with pytest.raises(CallTimedOutError):
        await invoke(http, url, Listening(), deadline=deadline)
    async with asyncio.timeout(WAIT_S):
        await worker.stopped.wait()


async def test_a_reader_that_stands_still_holds_up_no_skill_and_loses_pieces(
    worker: Worker, url: str
) -> None:
    size, count = 64 * 1024, 1024
    ran = asyncio.Event()

    async def work(channel: Channel) -> str:
        for number in range(count):
            await channel.stream_text(TextPiece("x" * size, number * size))
            if number % 16 == 0:
                await asyncio.sleep(0)
        ran.set()
        return "done"

    worker.work = work
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    body = orjson.dumps({"jsonrpc": "2.0", "method": "work", "params": {}, "id": 1})
    head = (
        f"POST /execute HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    async with asyncio.timeout(WAIT_S):
        await ran.wait()  # nothing was read
        received = b""
        while b"event: reply" not in received[-4096:] and (chunk := await reader.read(1 << 20)):
            received += chunk
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    assert b'"result":"done"' in received[-4096:]
    assert MAX_WAITING_BYTES / 2 < len(received) < count * size / 2


async def test_a_caller_that_leaves_cancels_the_skill(worker: Worker, url: str, http: HttpClient) -> None:
    async def work(channel: Channel) -> None:
        await channel.stream_text(TextPiece("begun"))
        await asyncio.Event().wait()

    worker.work = work
    channel = Listening()
    task = asyncio.create_task(invoke(http, url, channel))
    async with asyncio.timeout(WAIT_S):
        await channel.heard.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await worker.stopped.wait()


async def test_a_reply_with_too_many_levels_is_a_failure_of_the_transport(http: HttpClient) -> None:
    deep = b"[" * 400 + b"]" * 400
    event = b'event: reply\r\ndata: {"status":200,"headers":{},"body":' + deep + b"}\r\n\r\n"

    async def foreign(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await receive()
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": event})

    async with serve_app(foreign) as url:
        with pytest.raises(AgentUnreachableError) as caught:
            await invoke(http, url, Listening())
    assert caught.value.sent


@dataclass
class OpenEnd:
    """A client whose stream has its reply, and then no end."""

    drained_s: list[float] = field(default_factory=list)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[OpenEnd]:
        yield self

    async def read_some(self) -> bytes:
        return b'event: reply\r\ndata: {"status":200,"headers":{},"body":7}\r\n\r\n'

    async def read(self, limit_bytes: int = 0) -> bytes:
        return b""

    async def drain(self, timeout_s: float) -> None:
        self.drained_s.append(timeout_s)
        await asyncio.sleep(timeout_s)


@pytest.mark.parametrize("timeout_s", [0.2, 1000.0])
async def test_an_answer_whose_stream_does_not_end_is_not_taken_back(
    timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.rpc.streaming.DRAIN_S", 0.5)
    http = OpenEnd()
    response = await request_stream(
        http,
        "http://127.0.0.1",
        headers={},
        body=b"",
        timeout_s=timeout_s,
        what="a call",
        layer="http",
        setting="it",
        channel=NullChannel(),
    )
    assert response.body == b"7"
    assert http.drained_s[0] <= min(0.5, timeout_s / 2)
