"""What passes over the wire, written down in order: put before an app, or before a server elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OWN_HEADERS = frozenset({"transfer-encoding", "connection", "date", "server", "host"})


@dataclass(slots=True)
class Exchange:
    """One request to ``to`` and its reply; header names are lower case."""

    to: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    status: int = 0
    reply_headers: dict[str, str] = field(default_factory=dict)
    reply: bytes = b""

    @property
    def request(self) -> Any:
        return orjson.loads(self.body)

    @property
    def answer(self) -> Any:
        return orjson.loads(self.reply)


Arrow = tuple[Literal["->", "<-"], Exchange]


class Recording:
    """Everything that passed, ``arrows`` in the order of the wire: requests and replies."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.arrows: list[Arrow] = []

    def before(self, name: str, app: ASGIApp) -> ASGIApp:
        """``app``, with everything that reaches it written down as sent to ``name``."""

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            query = scope["query_string"].decode()
            exchange = Exchange(
                name,
                scope["method"],
                scope["path"] + (f"?{query}" if query else ""),
                {key.decode(): value.decode("latin-1") for key, value in scope["headers"]},
            )
            self.exchanges.append(exchange)
            self.arrows.append(("->", exchange))

            async def hear() -> Message:
                message = await receive()
                exchange.body += message.get("body", b"")
                return message

            async def say(message: Message) -> None:
                if message["type"] == "http.response.start":
                    exchange.status = message["status"]
                    exchange.reply_headers = {k.decode(): v.decode() for k, v in message["headers"]}
                exchange.reply += message.get("body", b"")
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    self.arrows.append(("<-", exchange))
                await send(message)

            await app(scope, hear, say)

        return recorded

    def to(self, name: str, path: str = "") -> list[Exchange]:
        """What was sent to ``name``, to paths that begin so."""
        return [one for one in self.exchanges if one.to == name and one.path.startswith(path)]

    def clear(self) -> None:
        self.exchanges.clear()
        self.arrows.clear()


@asynccontextmanager
async def relay_to(target: str) -> AsyncIterator[ASGIApp]:
    """An app that hands every reading request on to the server at ``target``."""
    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def forward(request: Request) -> Response:
            url = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            headers = {k: v for k, v in request.headers.items() if k not in _OWN_HEADERS}
            async with session.request(request.method, target + url, headers=headers) as answer:
                kept = {k: v for k, v in answer.headers.items() if k.lower() not in _OWN_HEADERS}
                return Response(await answer.read(), answer.status, kept)

        yield Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "HEAD"])])
