"""A tool call through the hub: what the hub adds to the median time, in both eras, beside a bare forwarder.

Every server is a process of its own; calls are sequential, from one official client for each way, and the
rounds of all ways are interleaved. DESIGN 6 wants a third of what fastmcp's proxy over a connected client
adds. That proxy was measured once (FACTS 2, 4b), so both are taken as multiples of the direct call of
their own run, which a slow hour of the machine stretches alike.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from mcp import Client

from benchmarks.dispatch import Server
from benchmarks.figures import Figure, cpu_s_of

CALLS = 150
ROUNDS = 3
PEER_ADDED = {"legacy": 1.49 / 0.53, "2026-07-28": 3.07 / 0.32}
"""fastmcp 4.1.6, proxy over a connected client: added, per direct call of the same era (FACTS 2, 4b)."""


def measure() -> list[Figure]:
    """Medians of the best round: direct, through the relay, and what lies between."""
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        bare = stack.enter_context(Server("mcp-bare"))
        hub = stack.enter_context(Server("mcp-hub", str(Path(home)), bare.url))
        ways = {"direct": f"{bare.url}/mcp", "relay": f"{hub.url}/agents/echo-agent/mcp"}
        figures = []
        for mode, peer in PEER_ADDED.items():
            used_s = cpu_s_of(hub.pid)
            best = asyncio.run(_measure(ways, mode))
            used_s = cpu_s_of(hub.pid) - used_s
            added_s = best["relay"] - best["direct"]
            figures += [
                Figure(f"p50 of a direct call, {mode}", best["direct"] * 1e3, "ms"),
                Figure(f"p50 added by the relay, {mode}", added_s * 1e3, "ms"),
                Figure(f"processor time of the hub, {mode}", used_s / (CALLS * ROUNDS) * 1e3, "ms"),
                Figure(f"added, per direct call, {mode}", added_s / best["direct"], "×", target=peer / 3),
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
