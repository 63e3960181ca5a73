"""Loopback servers that speak the wire formats of three vendors, streaming included, by a script of turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.llm.vendor_events import HEADS, act, answer, begin, error, refusal, sse
from tests.llm.vendor_turns import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    VENDORS,
    Act,
    Cut,
    EndEarly,
    Fail,
    Garbage,
    Hang,
    Move,
    OnlyDone,
    Pause,
    Refuse,
    Say,
    ToolCall,
    Turn,
    Vendor,
)

__all__ = [
    "INPUT_TOKENS",
    "OUTPUT_TOKENS",
    "VENDORS",
    "Act",
    "Cut",
    "EndEarly",
    "Fail",
    "Garbage",
    "Hang",
    "Move",
    "OnlyDone",
    "Pause",
    "Refuse",
    "Say",
    "ToolCall",
    "Turn",
    "Vendor",
    "VendorServer",
    "find_text",
    "vendor",
]


@dataclass
class VendorServer:
    """One vendor; ``requests`` are the bodies it received, ``keys`` the credentials that came with them."""

    vendor: Vendor
    turns: list[Turn]
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has closed the connection of a `Hang`."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the test that lets a `Pause` go on."""
    url: str = ""

    @property
    def base_url(self) -> str:
        """What is configured as ``base_url``."""
        return f"{self.url}/v1" if self.vendor == "openai" else self.url

    @property
    def prompts(self) -> list[str]:
        """The text of every request, instructions included."""
        return [json.dumps(one, ensure_ascii=False) for one in self.requests]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.paths.append(request.path)
        key = request.headers.get("x-api-key") or request.headers.get("x-goog-api-key")
        self.keys.append(key or request.headers.get("authorization", "").removeprefix("Bearer "))
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if isinstance(turn, Fail):
            headers = {"retry-after": turn.retry_after} if turn.retry_after else {}
            return web.json_response(error(self.vendor, turn), status=turn.status, headers=headers)
        if isinstance(turn, Move):
            raise web.HTTPTemporaryRedirect(f"{turn.url}{request.path_qs}")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if isinstance(turn, Garbage):
            await response.write(turn.body)
            return response
        if isinstance(turn, Act):
            for event in act(self.vendor, turn):
                await response.write(event)
            if turn.stops == "drop":
                assert request.transport is not None
                request.transport.abort()
            return response
        if isinstance(turn, EndEarly | OnlyDone):
            end = [sse("[DONE]")] if isinstance(turn, OnlyDone) else []
            for event in (*begin(self.vendor, turn.text), *end):
                await response.write(event)
            return response
        if isinstance(turn, Cut | Hang):
            for event in begin(self.vendor, turn.text):
                await response.write(event)
            self.begun.set()
            assert request.transport is not None
            if isinstance(turn, Cut):
                request.transport.abort()
                return response
            try:
                while not request.transport.is_closing():
                    await asyncio.sleep(0.01)
            finally:
                self.gone.set()
            return response
        if isinstance(turn, Pause):
            for event in begin(self.vendor, turn.text):
                await response.write(event)
            self.begun.set()
            await self.go_on.wait()
            for event in answer(self.vendor, Say(turn.rest))[HEADS[self.vendor] :]:
                await response.write(event)
            return response
        events = refusal(self.vendor) if isinstance(turn, Refuse) else answer(self.vendor, turn)
        for event in events:
            await response.write(event)
        return response


@asynccontextmanager
async def vendor(kind: Vendor, *turns: Turn) -> AsyncIterator[VendorServer]:
    """A running server; the last turn is repeated."""
    server = VendorServer(kind, list(turns))
    app = web.Application(client_max_size=64 * 1024**2)
    app.router.add_post("/{path:.*}", server.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def find_text(prompts: Sequence[str], text: str) -> bool:
    """Whether any request holds the text."""
    return any(text in one for one in prompts)
