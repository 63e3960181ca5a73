"""A tool call through the hub: what the hub adds to the median time, beside fastmcp's proxy (DESIGN 6).

Every server is a process of its own before the same upstream, the SDK's low-level server; calls are
sequential, from one official client for each way, and the rounds of all ways are interleaved. fastmcp's
proxy has its client connected, which is the faster of its two forms (FACTS 2, 4b).
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack

from mcp import Client

from benchmarks.dispatch import Server
from benchmarks.figures import Figure, cpu_s_of

CALLS = 150
ROUNDS = 3
MODES = ("legacy", "2026-07-28")
SHARE = 1 / 3


def measure() -> list[Figure]:
    """Medians of the best round, and what each way adds to a direct call of the same era."""
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        bare = stack.enter_context(Server("mcp-bare"))
        hub = stack.enter_context(Server("mcp-hub", home, bare.url))
        proxy = stack.enter_context(Server("mcp-proxy", home, bare.url))
        ways = {
            "direct": f"{bare.url}/mcp",
            "relay": f"{hub.url}/agents/echo-agent/mcp",
            "proxy": f"{proxy.url}/mcp",
        }
        figures = []
        for mode in MODES:
            used_s = cpu_s_of(hub.pid)
            best = asyncio.run(_measure(ways, mode))
            used_s = (cpu_s_of(hub.pid) - used_s) / (CALLS * ROUNDS)
            relay_s, proxy_s = best["relay"] - best["direct"], best["proxy"] - best["direct"]
            figures += [
                Figure(f"p50 of a direct call, {mode}", best["direct"] * 1e3, "ms"),
                Figure(f"p50 added by the relay, {mode}", relay_s * 1e3, "ms"),
                Figure(f"p50 added by fastmcp's proxy, {mode}", proxy_s * 1e3, "ms"),
                Figure(f"processor time of the hub per call, {mode}", used_s * 1e3, "ms"),
                Figure(f"added by the relay / by fastmcp, {mode}", relay_s / proxy_s, "×", target=SHARE),
            ]
        return figures


async def _measure(ways: dict[str, str], mode: str) -> dict[str, float]:
    best: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        clients = {way: await stack.enter_async_context(Client(url, mode=mode)) for way, url in ways.items()}
        for _ in range(ROUNDS):
            for way, client in clients.items():
                spent = []
                for _ in range(CALLS):
                    started = time.perf_counter()
                    result = await client.call_tool("echo", {"text": "hello"})
                    spent.append(time.perf_counter() - started)
                    assert not result.is_error
                found = statistics.median(spent)
                best[way] = min(found, best.get(way, found))
    return best
