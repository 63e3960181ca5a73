"""One tool call direct, through forwarders and through hubs: the added time of each, in one interleaved run.

Every way is a process of its own in front of the same agent, which `retinue serve` runs. The load is sent by
this process over kept connections; with sessions where the protocol version has them. Processor time per call
is that of the process in the middle alone and can be trusted on a busy machine; times and rates cannot.

npm's mcp-hub and IBM's ContextForge are ways where they can be installed. The first has the older SSE
transport only, so the official client calls it, and the same client calls the agent for comparison; the
second does not have the protocol version without sessions.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from benchmarks.figures import Figure, cpu_s_of, rss_bytes_of
from benchmarks.mcp_hub_processes import context_forge, mcp_hub, program, retinue, wait_until_served

MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
EXECUTE = "execute"
ERAS = (EXECUTE, MODERN, HANDSHAKE)
ROUNDS = 3
CALLS = 1000
MANY = 16
CALLS_OF_MANY = 800
SLOW_CALLS = 20
"""Of a way that takes tens of milliseconds."""

FORWARDER_SHARE = 1.4
PEER_SHARE = 0.5

AGENT = '''
from retinue import Agent

agent = Agent("echo-agent", version="1.0.0")


@agent.skill(expose=True)
async def echo(text: str, count: int) -> dict[str, str | int]:
    """Gives back what it was given."""
    return {"text": text, "count": count}
'''

_JSON = {"content-type": "application/json"}
_ACCEPT = {**_JSON, "accept": "application/json, text/event-stream"}


@dataclass(frozen=True, slots=True)
class Way:
    """A url at which the agent's skill is called under the name ``tool``; ``pid`` is None for the agent."""

    name: str
    url: str
    tool: str = "echo"
    pid: int | None = None
    is_slow: bool = False
    is_by_sdk: bool = False
    token: str | None = None


@dataclass(slots=True)
class Measured:
    """What the rounds of one way and one era gave; times in seconds of all calls by one client."""

    spent_s: list[list[float]] = field(default_factory=list)
    cpu_s: float = 0.0
    calls: int = 0
    per_s: float = 0.0

    @property
    def p50_s(self) -> float:
        """The median of the best round."""
        return min(sorted(one)[len(one) // 2] for one in self.spent_s)

    @property
    def p99_s(self) -> float:
        return min(sorted(one)[int(len(one) * 0.99)] for one in self.spent_s)

    @property
    def cpu_per_call_s(self) -> float:
        return self.cpu_s / self.calls


def measure() -> list[Figure]:
    """The figures of each way and era, and the shares that have a target."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ways-")))
        ways = open_ways(stack, folder)
        found: dict[tuple[str, str], Measured] = {}
        for number in range(ROUNDS):
            for era in ERAS:
                order = ways[era] if number % 2 else ways[era][::-1]
                for way in order:
                    asyncio.run(_round(way, era, found.setdefault((era, way.name), Measured())))
        memory = {way.name: rss_bytes_of(way.pid) for era in ERAS for way in ways[era] if way.pid is not None}
    figures = [one for era in ERAS for way in ways[era] for one in _figures_of(found, era, way)]
    figures += [Figure(f"memory, {name}", size / 1e6, "MB") for name, size in memory.items()]
    return [*figures, *_shares(found)]


def _figures_of(found: dict[tuple[str, str], Measured], era: str, way: Way) -> list[Figure]:
    one = found[era, way.name]
    at = f"{way.name}, {era}"
    direct = found[era, "direct by the SDK's client" if way.is_by_sdk else "direct"]
    figures = [
        Figure(f"p50, {at}", one.p50_s * 1e3, "ms"),
        Figure(f"p99, {at}", one.p99_s * 1e3, "ms"),
        Figure(f"calls per second of {MANY} clients, {at}", one.per_s, "/s"),
    ]
    if way.pid is not None:
        figures += [
            Figure(f"p50 added, {at}", (one.p50_s - direct.p50_s) * 1e3, "ms"),
            Figure(f"CPU per call, {at}", one.cpu_per_call_s * 1e6, "µs"),
        ]
    return figures


def _shares(found: dict[tuple[str, str], Measured]) -> list[Figure]:
    """What the hub adds, as shares of what the forwarder and the best peer add."""

    def added_s(era: str, name: str) -> float:
        return found[era, name].p50_s - found[era, "direct"].p50_s

    def cpu_s(era: str, name: str) -> float:
        return found[era, name].cpu_per_call_s

    share = added_s(EXECUTE, "hub") / added_s(EXECUTE, "forwarder")
    cpu = cpu_s(EXECUTE, "hub") / cpu_s(EXECUTE, "forwarder")
    figures = [
        Figure("p50 added by the hub / by the forwarder, execute", share, "×", target=FORWARDER_SHARE),
        Figure("CPU of the hub / of the forwarder, execute", cpu, "×"),
    ]
    for era in (MODERN, HANDSHAKE):
        peers = ["SDK forwarder", "fastmcp", "fastmcp by default"]
        if (era, "ContextForge") in found:
            peers.append("ContextForge")
        added = {name: added_s(era, name) for name in peers}
        if (era, "mcp-hub") in found:
            by_sse = found[era, "mcp-hub"].p50_s - found[era, "direct by the SDK's client"].p50_s
            added["mcp-hub"] = by_sse
        best = min(added, key=added.__getitem__)
        used = {name: cpu_s(era, name) for name in added}
        least = min(used, key=used.__getitem__)
        for ours in ("hub", "relay"):
            figures += [
                Figure(
                    f"p50 added by the {ours} / by {best}, {era}",
                    added_s(era, ours) / added[best],
                    "×",
                    target=PEER_SHARE,
                ),
                Figure(
                    f"CPU of the {ours} / of {least}, {era}",
                    cpu_s(era, ours) / used[least],
                    "×",
                    target=PEER_SHARE,
                ),
            ]
    return figures


# The processes


def open_ways(stack: ExitStack, folder: Path) -> dict[str, list[Way]]:
    """Start every process; the ways of each era."""
    (folder / "echo_agent.py").write_text(AGENT, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
    home = {**kept, "RETINUE_HOME": str(folder / "state")}
    hub, hub_pid = stack.enter_context(retinue(["hub", "--bare"], home, folder, "/health"))
    agent, _ = stack.enter_context(retinue(["serve", "echo_agent.py"], home, folder, "/health"))
    wait_until_served(f"{hub}/agents/echo-agent/agent-card")
    forwarder, sdk, fastmcp, default = (
        stack.enter_context(program(["-m", "benchmarks.mcp_hub_servers", kind, agent]))
        for kind in ("forwarder", "sdk", "fastmcp", "fastmcp-default")
    )
    ways: dict[str, list[Way]] = {
        EXECUTE: [
            Way("direct", f"{agent}/execute"),
            Way("forwarder", f"{forwarder[0]}/execute", pid=forwarder[1]),
            Way("hub", f"{hub}/execute", pid=hub_pid),
        ]
    }
    for era in (MODERN, HANDSHAKE):
        ways[era] = [
            Way("direct", f"{agent}/mcp"),
            Way("forwarder", f"{forwarder[0]}/mcp", pid=forwarder[1]),
            Way("hub", f"{hub}/mcp", "echo-agent__echo", hub_pid),
            Way("relay", f"{hub}/agents/echo-agent/mcp", pid=hub_pid),
            Way("SDK forwarder", f"{sdk[0]}/mcp", pid=sdk[1]),
            Way("fastmcp", f"{fastmcp[0]}/mcp", pid=fastmcp[1]),
            Way("fastmcp by default", f"{default[0]}/mcp", pid=default[1], is_slow=True),
        ]
    node = stack.enter_context(mcp_hub(agent, folder))
    if node is not None:
        ways[HANDSHAKE] += [
            Way("direct by the SDK's client", f"{agent}/mcp", is_by_sdk=True),
            Way("mcp-hub", node[0], "up__echo", node[1], is_by_sdk=True),
        ]
    forge = stack.enter_context(context_forge(agent, folder))
    if forge is not None:
        ways[HANDSHAKE].append(
            Way("ContextForge", forge[0], "up-echo", forge[1], is_slow=True, token=forge[2])
        )
    return ways


# The load


async def _round(way: Way, era: str, measured: Measured) -> None:
    """One client, whose calls are timed, then many, whose calls are counted."""
    calls, many = (SLOW_CALLS, 2 * SLOW_CALLS) if way.is_slow else (CALLS, CALLS_OF_MANY)
    load = _load_by_sdk if way.is_by_sdk else _load
    one = await load(way, era, 1, calls)
    measured.spent_s.append(one.spent_s)
    measured.cpu_s += one.cpu_s
    measured.calls += calls
    measured.per_s = max(measured.per_s, many / (await load(way, era, MANY, many)).wall_s)


@dataclass(slots=True)
class Load:
    """The time of each call, the processor time of the process in the middle, and the whole time."""

    way: Way
    spent_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what is inside: not the opening of sessions, nor what a first call loads."""
        used, began = self._used_s(), time.perf_counter()
        yield
        self.wall_s, self.cpu_s = time.perf_counter() - began, self._used_s() - used

    def _used_s(self) -> float:
        return 0.0 if self.way.pid is None else cpu_s_of(self.way.pid)


async def _load(way: Way, era: str, clients: int, calls: int) -> Load:
    """``calls`` requests over ``clients`` connections, each with its session."""
    found = Load(way)
    left = calls
    body = orjson.dumps(_request(way, era))

    async def work(session: aiohttp.ClientSession, headers: dict[str, str]) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            async with session.post(way.url, data=body, headers=headers) as reply:
                said = await reply.read()
            found.spent_s.append(time.perf_counter() - began)
            if b'"result"' not in said or b'"isError":true' in said:
                raise RuntimeError(f"{way.name}, {era}: {said.decode()}")

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        heads = [await _open(session, way, era) for _ in range(clients)]
        for head in heads:
            async with session.post(way.url, data=body, headers=head) as reply:
                await reply.read()
        with found.counted():
            await asyncio.gather(*(work(session, head) for head in heads))
    return found


def _request(way: Way, era: str) -> dict[str, object]:
    arguments = {"text": "hello", "count": 3}
    if era == EXECUTE:
        return {"jsonrpc": "2.0", "id": 1, "method": way.tool, "params": arguments}
    params: dict[str, object] = {"name": way.tool, "arguments": arguments}
    if era == MODERN:
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": era,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        }
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def _open(session: aiohttp.ClientSession, way: Way, era: str) -> dict[str, str]:
    """The headers of one client, which opens a session where its era has them."""
    if era == EXECUTE:
        return _JSON
    head = {**_ACCEPT, "mcp-protocol-version": era}
    if way.token is not None:
        head["authorization"] = f"Bearer {way.token}"
    if era == MODERN:
        return {**head, "mcp-method": "tools/call", "mcp-name": way.tool}
    params = {"protocolVersion": era, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    begin = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    async with session.post(way.url, data=orjson.dumps(begin), headers=head) as reply:
        await reply.read()
        if "mcp-session-id" in reply.headers:  # ContextForge has none
            head["mcp-session-id"] = reply.headers["mcp-session-id"]
    ready = orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
    async with session.post(way.url, data=ready, headers=head) as reply:
        await reply.read()
    return head


async def _load_by_sdk(way: Way, era: str, clients: int, calls: int) -> Load:
    """As `_load`, by the official client: over SSE for mcp-hub, over Streamable HTTP for the agent."""
    found = Load(way)
    left = calls
    arguments = {"text": "hello", "count": 3}

    async def work(session: ClientSession) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            result = await session.call_tool(way.tool, arguments)
            found.spent_s.append(time.perf_counter() - began)
            if result.is_error:
                raise RuntimeError(f"{way.name}: {result}")

    async with AsyncExitStack() as stack:
        sessions = []
        for _ in range(clients):
            opened = sse_client(way.url) if way.pid is not None else streamable_http_client(way.url)
            streams = await stack.enter_async_context(opened)
            session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
            await session.initialize()
            await session.call_tool(way.tool, arguments)
            sessions.append(session)
        with found.counted():
            await asyncio.gather(*(work(session) for session in sessions))
    return found
