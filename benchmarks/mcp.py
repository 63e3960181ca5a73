"""MCP: a tool call and a long list of tools, at an agent, the SDK's low-level server, fastmcp and a bare
endpoint; in both eras, with one client and with sixteen."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
import orjson

from benchmarks.figures import Figure, cpu_s_of

KINDS = ("bare", "sdk", "fastmcp", "agent")
ERAS = ("2025-11-25", "2026-07-28")
CALLS = {1: 2000, 16: 2000}
"""With fewer calls the figures of two runs differ by a tenth."""
LISTS = 30
MANY_TOOLS = 1000
ROUNDS = 3

K = TypeVar("K")

_ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Run:
    """One round at one server: calls per second, processor seconds per call, and the slow hundredth."""

    per_s: float
    cpu_s: float
    p99_s: float
    p50_s: float


def measure() -> list[Figure]:
    """Interleaved rounds; the best of each counts."""
    best: dict[tuple[str, str, int], Run] = {}
    lists: dict[tuple[str, str], Run] = {}
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(Server(kind, 1)) for kind in KINDS}
        many = {kind: stack.enter_context(Server(kind, MANY_TOOLS)) for kind in KINDS}
        for _ in range(ROUNDS):
            for era in ERAS:
                for kind in KINDS:
                    for clients, calls in CALLS.items():
                        found = asyncio.run(_load(servers[kind], era, "tools/call", clients, calls))
                        _keep(best, (kind, era, clients), found)
                    found = asyncio.run(_load(many[kind], era, "tools/list", 1, LISTS))
                    _keep(lists, (kind, era), found)
    return [*_call_figures(best), *_list_figures(lists)]


def _keep(best: dict[K, Run], key: K, found: Run) -> None:
    known = best.get(key, found)
    best[key] = Run(
        max(known.per_s, found.per_s),
        min(known.cpu_s, found.cpu_s),
        min(known.p99_s, found.p99_s),
        min(known.p50_s, found.p50_s),
    )


def _call_figures(best: dict[tuple[str, str, int], Run]) -> list[Figure]:
    figures = []
    for era in ERAS:
        for clients in CALLS:
            at = f"{era}, {clients} client{'s' * (clients > 1)}"
            for kind in KINDS:
                run = best[kind, era, clients]
                figures += [
                    Figure(f"calls per second, {kind}, {at}", run.per_s, "/s"),
                    Figure(f"CPU per call, {kind}, {at}", run.cpu_s * 1e6, "µs"),
                    Figure(f"p99, {kind}, {at}", run.p99_s * 1e3, "ms"),
                ]
            ours, sdk = best["agent", era, clients], best["sdk", era, clients]
            fast = best["fastmcp", era, clients]
            figures += [
                Figure(f"CPU of the agent / the bare SDK, {at}", ours.cpu_s / sdk.cpu_s, "×", target=0.4),
                Figure(f"CPU of the agent / fastmcp, {at}", ours.cpu_s / fast.cpu_s, "×", target=0.2),
            ]
    return figures


def _list_figures(lists: dict[tuple[str, str], Run]) -> list[Figure]:
    figures = []
    for era in ERAS:
        for kind in KINDS:
            run = lists[kind, era]
            figures.append(Figure(f"{MANY_TOOLS} tools listed, {kind}, {era}, p50", run.p50_s * 1e3, "ms"))
        ratio = lists["agent", era].cpu_s / lists["sdk", era].cpu_s
        figures.append(Figure(f"CPU of that list / the bare SDK, {era}", ratio, "×", target=0.2))
    return figures


class Server:
    """One of ``benchmarks.mcp_servers`` in a process of its own."""

    def __init__(self, kind: str, tools: int) -> None:
        self.kind = kind
        command = [sys.executable, "-m", "benchmarks.mcp_servers", kind, str(tools)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip() + "/mcp"
        self.pid = self._process.pid

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()


async def _load(server: Server, era: str, method: str, clients: int, calls: int) -> Run:
    """``calls`` requests over ``clients`` connections, each with a session of its own where the era has
    sessions."""
    spent: list[float] = []
    left = calls

    async def work(session: aiohttp.ClientSession, headers: dict[str, str]) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            async with session.post(server.url, data=body, headers=headers) as reply:
                assert b'"result"' in await reply.read()
            spent.append(time.perf_counter() - began)

    body = orjson.dumps(_request(era, method))
    async with aiohttp.ClientSession() as session:
        headers = [await _open(session, server, era, method) for _ in range(clients)]
        started, used = time.perf_counter(), cpu_s_of(server.pid)
        await asyncio.gather(*(work(session, one) for one in headers))
        wall_s = time.perf_counter() - started
        cpu_s = (cpu_s_of(server.pid) - used) / calls
    spent.sort()
    return Run(calls / wall_s, cpu_s, spent[int(len(spent) * 0.99)], spent[len(spent) // 2])


def _request(era: str, method: str) -> dict[str, object]:
    params: dict[str, object] = {}
    if method == "tools/call":
        params = {"name": "echo", "arguments": {"text": "hello", "count": 3}}
    if era == "2026-07-28":
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": era,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def _open(session: aiohttp.ClientSession, server: Server, era: str, method: str) -> dict[str, str]:
    """The headers of one client; a session is opened where this era and server have them."""
    if era == "2026-07-28":
        named = {"mcp-name": "echo"} if method == "tools/call" else {}
        return {**_ACCEPT, "mcp-protocol-version": era, "mcp-method": method, **named}
    if server.kind == "bare":
        return _ACCEPT
    params = {"protocolVersion": era, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    asked = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    async with session.post(server.url, data=orjson.dumps(asked), headers=_ACCEPT) as reply:
        await reply.read()
        headers = {**_ACCEPT, "mcp-session-id": reply.headers["mcp-session-id"], "mcp-protocol-version": era}
    ready = orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
    async with session.post(server.url, data=ready, headers=headers) as reply:
        await reply.read()
    return headers
