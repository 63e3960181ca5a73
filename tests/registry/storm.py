"""Bad weather: an app in front of a good registry that answers some paths in its own way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Weather = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass
class Storm:
    """``rules`` by "METHOD path" prefix; a rule may be a list, used up from its start, then none holds."""

    app: ASGIApp
    rules: dict[str, Weather | list[Weather]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    authorizations: list[str | None] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        line = f"{scope['method']} {scope['path']}"
        self.asked[line] += 1
        given = dict(scope["headers"]).get(b"authorization")
        self.authorizations.append(given.decode() if given is not None else None)
        for start, rule in self.rules.items():
            if line.startswith(start):
                weather = rule if not isinstance(rule, list) else (rule.pop(0) if rule else None)
                if weather is not None:
                    await weather(scope, receive, send)
                    return
        await self.app(scope, receive, send)

    def count(self, start: str) -> int:
        return sum(number for line, number in self.asked.items() if line.startswith(start))


def answer(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Weather:
    """The same answer to everything."""

    async def weather(scope: Scope, receive: Receive, send: Send) -> None:
        sent = {"content-length": str(len(body)), **(headers or {})}
        await send(_start(status, sent))
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return weather


def cut_off(body: bytes) -> Weather:
    """Promises twice of what comes, and hangs up."""

    async def weather(scope: Scope, receive: Receive, send: Send) -> None:
        await send(_start(200, {"content-length": str(2 * len(body)), "connection": "close"}))
        await send({"type": "http.response.body", "body": body})

    return weather


async def trickle(scope: Scope, receive: Receive, send: Send) -> None:
    """A byte now and then, for ever."""
    await send(_start(200, {}))
    while True:
        await send({"type": "http.response.body", "body": b" ", "more_body": True})
        await asyncio.sleep(0.01)  # the pace of the weather; nothing is waited for


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    """Takes the request and says nothing until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        continue


def _start(status: int, headers: Mapping[str, str]) -> Message:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}
