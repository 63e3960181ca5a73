"""Requests between the processes of one hub."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.mesh.observing.metrics import Figures, Histogram
from retinue.runtime.hub_processes.forwarding import ORIGIN, Forwarder, restored
from retinue.runtime.hub_processes.leader import ROWS_PATH, inner_app
from retinue.runtime.hub_processes.other_figures import add_figures, render_figures
from retinue.runtime.hub_processes.place import HubPlace
from retinue.runtime.serving import HttpServer, Stop
from retinue.web.disconnect import read_body


async def _show(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer in two pieces with what arrived."""
    body = await read_body(receive)
    shown = {
        "client": scope["client"],
        "path": scope["path"],
        "query": scope["query_string"].decode(),
        "size": len(body or b""),
        "names": sorted(name.decode() for name, _ in scope["headers"]),
    }
    headers = [(b"x-two", b"1"), (b"x-two", b"2"), (b"x-name", dict(scope["headers"])[b"x-name"])]
    await send({"type": "http.response.start", "status": 207, "headers": headers})
    await send({"type": "http.response.body", "body": orjson.dumps(shown), "more_body": True})
    await send({"type": "http.response.body", "body": b"\n"})


@asynccontextmanager
async def _leader(folder: Path) -> AsyncIterator[Forwarder]:
    place = HubPlace(1, 2, folder, "hub-1", 0, 0, 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as inner:
        inner.bind(place.socket_of(0))
        inner.listen()
        forwarder = Forwarder(place)
        async with HttpServer(restored(_show)).running((inner,), Stop()):
            yield forwarder
            await forwarder.aclose()


async def _ask(forwarder: Forwarder, body: bytes, headers: list[tuple[bytes, bytes]]) -> list[Message]:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/a b",
        "raw_path": b"/a%20b",
        "query_string": b"q=%2F",
        "headers": [(b"host", b"hub.example"), (ORIGIN, b"[null]"), *headers],
        "client": ("192.0.2.7", 4711),
        "server": ("192.0.2.1", 9000),
        "scheme": "http",
    }
    pieces = [body[: len(body) // 2], body[len(body) // 2 :]]
    messages: list[Message] = []

    async def receive() -> Message:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(message: Message) -> None:
        messages.append(message)

    await forwarder.forward(0, scope, receive, send)
    return messages


async def test_a_forwarded_request_arrives_as_its_client_has_sent_it(tmp_path: Path) -> None:
    async with _leader(tmp_path) as forwarder:
        for size, length in ((10, b"10"), (1_000_000, b"1000000")):
            start, *rest = await _ask(
                forwarder, b"x" * size, [(b"content-length", length), (b"x-name", "Zoë".encode())]
            )
            assert start["status"] == 207
            assert b"date" not in dict(start["headers"]), "the server that the client reached adds it"
            assert dict(start["headers"])[b"x-name"].decode() == "Zoë"
            assert [pair for pair in start["headers"] if pair[0] == b"x-two"] == [
                (b"x-two", b"1"),
                (b"x-two", b"2"),
            ]
            shown: dict[str, Any] = orjson.loads(b"".join(message["body"] for message in rest))
            assert shown == {
                "client": ["192.0.2.7", 4711],
                "path": "/a b",
                "query": "q=%2F",
                "size": size,
                "names": ["content-length", "host", "x-name"],
            }


async def test_a_request_whose_process_is_gone_is_answered_with_503(tmp_path: Path) -> None:
    forwarder = Forwarder(HubPlace(1, 2, tmp_path, "hub-1", 0, 0, 0))
    start, body = await _ask(forwarder, b"{}", [(b"content-length", b"2")])
    await forwarder.aclose()
    assert start["status"] == 503
    assert b"ask again" in body["body"]


def test_figures_of_two_processes_are_summed() -> None:
    own, other = Figures(), Figures()
    for figures, calls in ((own, 2), (other, 3)):
        figures.put("retinue_calls_total", calls, "echo", "echo", "execute", "done")
        figures.put("retinue_ready", 1)
        histogram = Histogram()
        histogram.observe(0.02)
        figures.histograms["retinue_call_duration_seconds"] = {("echo", "echo"): histogram}
    add_figures(own, orjson.loads(render_figures(other, 0)))
    assert own.values["retinue_calls_total"] == {("echo", "echo", "execute", "done"): 5}
    assert own.values["retinue_ready"] == {(): 1}
    (summed,) = own.histograms["retinue_call_duration_seconds"].values()
    assert sum(summed.counts) == 2


async def test_a_request_that_was_forwarded_for_a_client_reaches_no_exchange_of_processes() -> None:
    reached: list[str] = []

    def answer(name: str) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            reached.append(name)

        return app

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent")

    route = inner_app(answer("exchange"), answer("app"))
    for headers in ([], [(ORIGIN, b'[null,null,"http"]')]):
        await route({"type": "http", "path": ROWS_PATH, "headers": headers}, receive, send)
    assert reached == ["exchange", "app"]
