"""One MCP server that gets each request twice: once as it is, and once so that the SDK answers it.

A header that stands twice sends a request to the SDK and means nothing else, so that both answers come from
one server with one state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue import Agent, Context, Part
from retinue.authoring.local import local_dispatcher
from retinue.mcp.server.endpoint import McpServer
from retinue.mcp.server.lazy_server import mcp_route
from retinue.mcp.server.offer import HEARTBEAT_S
from retinue.runtime.endpoints.agent_mcp import agent_server
from retinue.settings_tables import LimitTable, McpTable
from retinue.web.security import SecurityMiddleware

MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
META = "io.modelcontextprotocol/"
TWICE = (b"x-twice", b"1")
WAIT_S = 60.0

Lines = list[tuple[bytes, bytes]]


def make_agent() -> Agent:
    """Skills of every kind that the two ways could treat differently."""
    agent = Agent("pair-agent", version="1.2.3")

    @agent.skill(expose=True)
    async def echo(text: str, count: int = 1) -> dict[str, str | int]:
        """Gives back what it was given."""
        return {"text": text, "count": count}

    @agent.skill("fs:say", expose=True)
    async def say(text: Annotated[str, Field(max_length=400)]) -> str:
        return text

    @agent.skill(expose=True)
    async def numbers(values: list[float]) -> list[float | None]:
        return [*values, 1e-7, 1e22, 0.1, None]

    @agent.skill(expose=True)
    async def anything(value: Any = None) -> Any:
        return value

    @agent.skill(expose=True)
    async def picture() -> Any:
        return ["as asked:", Part.image(b"\x89PNG")]

    @agent.skill(expose=True)
    async def fails(text: str = "ü") -> str:
        raise ValueError(text)

    @agent.skill(expose=True)
    async def wrong() -> dict[str, int]:
        return {"count": "many"}  # type: ignore[dict-item]

    @agent.skill(expose=True)
    async def asks(ctx: Context) -> str:
        await ctx.progress(0.5)
        return str(await ctx.elicit("Which?", {"type": "string"}))

    @agent.skill(expose=True, runs_code=True)
    async def runs() -> str:
        return "ran"

    @agent.skill(
        expose=True,
        input_schema={
            "type": "object",
            "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        },
    )
    async def mirrored(region: str = "") -> str:
        return region

    @agent.skill
    async def hidden() -> str:
        return "seen by the mesh only"

    return agent


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @property
    def message(self) -> Any:
        """The JSON in the body, or in the last event of a stream."""
        lines = [one.removeprefix(b"data:") for one in self.body.splitlines() if one.startswith(b"data:")]
        return orjson.loads(lines[-1] if lines else self.body)


@dataclass(slots=True)
class Exchange:
    """One request that is under way: `leave` disconnects its client."""

    lines: Lines
    chunks: list[bytes]
    sent: list[Message] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> Message:
        if self.chunks:
            chunk = self.chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(self.chunks)}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.news.set()

    def leave(self) -> None:
        self.gone.set()

    @property
    def reply(self) -> Reply:
        head, *rest = self.sent
        body = b"".join(one.get("body", b"") for one in rest)
        return Reply(head["status"], tuple(sorted(head["headers"])), body)


class Pair:
    """The server, its loop, and the number of requests that reached the SDK."""

    def __init__(self, runner: asyncio.Runner, app: ASGIApp, server: McpServer) -> None:
        self.runner = runner
        self.server = server
        self._app = app
        self.to_sdk = 0
        self._sdk = server._manager.asgi_app
        server._manager.asgi_app = self._count  # type: ignore[assignment]

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.to_sdk += 1
        await self._sdk(scope, receive, send)

    async def run(self, exchange: Exchange, method: str = "POST") -> Reply:
        scope: Scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "root_path": "",
            "query_string": b"",
            "headers": list(exchange.lines),
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 80),
        }
        await self._app(scope, exchange.receive, exchange.send)
        return exchange.reply

    async def ask(self, lines: Lines, *chunks: bytes, method: str = "POST") -> Reply:
        """The response to one request; its client disconnects only after it."""
        exchange = Exchange(lines, list(chunks) or [b""])
        async with asyncio.timeout(WAIT_S):
            return await self.run(exchange, method)

    def both(self, lines: Lines, *chunks: bytes) -> tuple[Reply, Reply, bool]:
        """The response, that of the SDK to the same request, and whether the first one was fast."""

        async def ask_both() -> tuple[Reply, Reply, bool]:
            before = self.to_sdk
            found = await self.ask(lines, *chunks)
            was_fast = self.to_sdk == before
            return found, await self.ask([*lines, TWICE, TWICE], *chunks), was_fast

        return self.runner.run(ask_both())

    async def open_session(self, capabilities: dict[str, Any] | None = None) -> bytes:
        """The id of a new session, whose handshake is complete."""
        begin = {
            "protocolVersion": HANDSHAKE,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        body = encode("initialize", begin)
        reply = await self.ask(head_of(HANDSHAKE, "initialize", {}, len(body)), body)
        session = dict(reply.headers)[b"mcp-session-id"]
        told = orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
        lines = [*head_of(HANDSHAKE, "", {}, len(told)), (b"mcp-session-id", session)]
        assert (await self.ask(lines, told)).status == 202
        return session


@contextmanager
def open_pair(agent: Agent | None = None, *, heartbeat_s: float = HEARTBEAT_S) -> Iterator[Pair]:
    """A server of `make_agent`, or of another agent, in a loop of its own."""
    served = agent or make_agent()
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def start() -> Pair:
            limit_bytes = LimitTable().body_bytes
            mcp = agent_server(
                served, local_dispatcher(served), None, McpTable(), limit_bytes, heartbeat_s=heartbeat_s
            )
            stack.push_async_callback(mcp.aclose)
            app = SecurityMiddleware(Router(routes=[mcp_route(mcp)]))
            return Pair(runner, app, await mcp.open())

        pair = runner.run(start())
        try:
            yield pair
        finally:
            runner.run(stack.aclose())


def encode(method: str, params: dict[str, Any] | None, request_id: Any = 1) -> bytes:
    """One request as bytes."""
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return orjson.dumps(message if params is None else {**message, "params": params})


def head_of(version: str, method: str, params: dict[str, Any], length: int) -> Lines:
    """The headers of a request as the official client sends them."""
    lines = [
        (b"host", b"127.0.0.1"),
        (b"accept", b"application/json, text/event-stream"),
        (b"content-type", b"application/json"),
        (b"mcp-protocol-version", version.encode()),
        (b"content-length", str(length).encode()),
    ]
    if version == MODERN:
        lines.append((b"mcp-method", method.encode()))
        if isinstance(params.get("name"), str):
            lines.append((b"mcp-name", params["name"].encode("utf-8", "surrogatepass")))
    return lines


def modern(
    method: str, params: dict[str, Any], request_id: Any = 1, **meta: Any
) -> tuple[Sequence[tuple[bytes, bytes]], bytes]:
    """Headers and body of one request of 2026-07-28."""
    given = {
        f"{META}protocolVersion": MODERN,
        f"{META}clientCapabilities": {},
        f"{META}clientInfo": {"name": "test", "version": "1"},
        **meta,
    }
    body = encode(method, {**params, "_meta": given}, request_id)
    return head_of(MODERN, method, params, len(body)), body


def in_session(
    session: bytes, method: str, params: dict[str, Any] | None, request_id: Any = 1
) -> tuple[Sequence[tuple[bytes, bytes]], bytes]:
    """Headers and body of one request in a session."""
    body = encode(method, params, request_id)
    lines = head_of(HANDSHAKE, method, params or {}, len(body))
    return [*lines, (b"mcp-session-id", session)], body
