"""Loopback servers that speak the wire formats of three vendors, streaming included, by a script of turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

Vendor = Literal["anthropic", "openai", "google"]
VENDORS: tuple[Vendor, ...] = ("anthropic", "openai", "google")

INPUT_TOKENS, OUTPUT_TOKENS = 12, 7

_HEADS: dict[Vendor, int] = {"anthropic": 2, "openai": 1, "google": 0}
"""How many events come before the text of an answer."""


@dataclass(frozen=True)
class Say:
    """Answer with this text, in pieces; ``ends`` is why the answer ends."""

    text: str
    ends: Literal["stop", "length", "filter"] = "stop"


@dataclass(frozen=True)
class Refuse:
    """Refuse in the vendor's own form."""


@dataclass(frozen=True)
class Fail:
    """Answer with an HTTP error."""

    status: int
    kind: str = "api_error"
    message: str = "something went wrong"
    retry_after: str | None = None


@dataclass(frozen=True)
class Garbage:
    """Answer 200 with a body that is no event of any vendor."""

    body: bytes = b"data: {this is not json\n\n"


@dataclass(frozen=True)
class Cut:
    """Begin to answer and drop the connection."""

    text: str = "half of"


@dataclass(frozen=True)
class EndEarly:
    """Begin to answer and end the response without the event that ends an answer."""

    text: str = "half of"


@dataclass(frozen=True)
class OnlyDone:
    """Answer as compatible servers do that send ``[DONE]`` but no finish reason."""

    text: str


@dataclass(frozen=True)
class Hang:
    """Begin to answer and say nothing more."""

    text: str = "thinking"


@dataclass(frozen=True)
class Pause:
    """Answer with the first text, wait for the server's ``go_on``, and answer with the rest."""

    text: str
    rest: str


@dataclass(frozen=True)
class Move:
    """Redirect to another server."""

    url: str


Turn = Say | Refuse | Fail | Garbage | Cut | EndEarly | OnlyDone | Hang | Pause | Move


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
            return web.json_response(_error(self.vendor, turn), status=turn.status, headers=headers)
        if isinstance(turn, Move):
            raise web.HTTPTemporaryRedirect(f"{turn.url}{request.path_qs}")
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if isinstance(turn, Garbage):
            await response.write(turn.body)
            return response
        if isinstance(turn, EndEarly | OnlyDone):
            end = [_sse("[DONE]")] if isinstance(turn, OnlyDone) else []
            for event in (*_begin(self.vendor, turn.text), *end):
                await response.write(event)
            return response
        if isinstance(turn, Cut | Hang):
            for event in _begin(self.vendor, turn.text):
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
            for event in _begin(self.vendor, turn.text):
                await response.write(event)
            self.begun.set()
            await self.go_on.wait()
            for event in _answer(self.vendor, Say(turn.rest))[_HEADS[self.vendor] :]:
                await response.write(event)
            return response
        events = _refusal(self.vendor) if isinstance(turn, Refuse) else _answer(self.vendor, turn)
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


def _sse(data: Any, event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def _pieces(text: str) -> list[str]:
    third = max(1, len(text) // 3)
    return [text[at : at + third] for at in range(0, len(text), third)]


def _begin(kind: Vendor, text: str) -> list[bytes]:
    if kind == "anthropic":
        message: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "model-of-anthropic",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": 1},
        }
        events = [_sse({"type": "message_start", "message": message}, "message_start")]
        if text:
            block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
            events.append(_sse(block, "content_block_start"))
        for piece in _pieces(text):
            delta = {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": piece},
            }
            events.append(_sse(delta, "content_block_delta"))
        return events
    if kind == "openai":
        first = {"role": "assistant", "content": ""}
        return [_chunk(first), *(_chunk({"content": piece}) for piece in _pieces(text))]
    return [_candidate(piece) for piece in _pieces(text)]


def _answer(kind: Vendor, turn: Say) -> list[bytes]:
    events = _begin(kind, turn.text)
    if kind == "anthropic":
        reason = {"stop": "end_turn", "length": "max_tokens", "filter": "refusal"}[turn.ends]
        if turn.text:
            events.append(_sse({"type": "content_block_stop", "index": 0}, "content_block_stop"))
        ending = {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": OUTPUT_TOKENS},
        }
        return [*events, _sse(ending, "message_delta"), _sse({"type": "message_stop"}, "message_stop")]
    if kind == "openai":
        reason = {"stop": "stop", "length": "length", "filter": "content_filter"}[turn.ends]
        usage = {
            "prompt_tokens": INPUT_TOKENS,
            "completion_tokens": OUTPUT_TOKENS,
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        }
        return [*events, _chunk({}, reason), _chunk(None, usage=usage), _sse("[DONE]")]
    reason = {"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}[turn.ends]
    return [*events, _candidate("", reason)]


def _refusal(kind: Vendor) -> list[bytes]:
    if kind == "anthropic":
        return _answer(kind, Say("", "filter"))
    if kind == "openai":
        return [
            _chunk({"role": "assistant", "content": None, "refusal": "I cannot help with that."}),
            _chunk({}, "stop"),
            _sse("[DONE]"),
        ]
    usage = {"promptTokenCount": INPUT_TOKENS, "totalTokenCount": INPUT_TOKENS}
    return [_sse({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": usage})]


def _chunk(delta: Any, reason: str | None = None, usage: Any = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_764_000_000,
        "model": "model-of-openai",
        "choices": choices,
    }
    return _sse(document | ({"usage": usage} if usage else {}))


def _candidate(text: str, reason: str | None = None) -> bytes:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
    document: dict[str, Any] = {"candidates": [candidate], "modelVersion": "model-of-google"}
    if reason:
        candidate["finishReason"] = reason
    document["usageMetadata"] = {
        "promptTokenCount": INPUT_TOKENS,
        "candidatesTokenCount": OUTPUT_TOKENS,
        "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    return _sse(document)


def _error(kind: Vendor, turn: Fail) -> Any:
    if kind == "anthropic":
        return {"type": "error", "error": {"type": turn.kind, "message": turn.message}}
    if kind == "openai":
        return {"error": {"type": turn.kind, "message": turn.message, "code": turn.kind, "param": None}}
    return {"error": {"code": turn.status, "message": turn.message, "status": turn.kind.upper()}}


def find_text(prompts: Sequence[str], text: str) -> bool:
    """Whether any request holds the text."""
    return any(text in one for one in prompts)
