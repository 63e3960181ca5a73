"""The dispatch path: processor time per call of an agent's process, against a bare Starlette echo."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack

import aiohttp
import orjson

from benchmarks.figures import Figure, cpu_s_of
from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.core.call import ANONYMOUS, Call
from retinue.mesh.guard.trace_guard import new_trace

CALLS = 8_000
ROUNDS = 3
BODY = orjson.dumps(
    {"jsonrpc": "2.0", "method": "echo", "params": {"text": "hello", "count": 3}, "id": "orch"}
)


def measure() -> list[Figure]:
    """Interleaved rounds, one connection and sixteen; the best round of each counts."""
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(Server(kind)) for kind in ("bare", "retinue")}
        best: dict[tuple[str, int], tuple[float, float]] = {}
        for _ in range(ROUNDS):
            for connections in (1, 16):
                for kind, server in servers.items():
                    found = asyncio.run(load(server, connections))
                    known = best.get((kind, connections), found)
                    best[kind, connections] = (min(found[0], known[0]), max(found[1], known[1]))
    figures = []
    for connections in (1, 16):
        bare, ours = best["bare", connections], best["retinue", connections]
        at = f"{connections} connection{'s' * (connections > 1)}"
        figures += [
            Figure(f"CPU per call, bare echo, {at}", bare[0] * 1e6, "µs"),
            Figure(f"CPU per call, agent, {at}", ours[0] * 1e6, "µs"),
            Figure(f"CPU per call beyond the framework, {at}", (ours[0] - bare[0]) * 1e6, "µs", target=60),
            Figure(f"calls per second, bare echo / agent, {at}", bare[1] / ours[1], "×"),
        ]
    figures.append(Figure("dispatch alone, in process", asyncio.run(_in_process()) * 1e6, "µs"))
    return figures


class Server:
    """One of ``benchmarks.servers`` in a process of its own."""

    def __init__(self, kind: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.servers", kind, *arguments], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self.pid = self._process.pid

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()


async def load(
    server: Server, connections: int, path: str = "/execute", body: bytes = BODY, wanted: bytes = b'"result"'
) -> tuple[float, float]:
    """Processor seconds per call in the server, and calls per second."""
    left = CALLS

    async def work(session: aiohttp.ClientSession) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            async with session.post(f"{server.url}{path}", data=body, headers=headers) as reply:
                assert wanted in await reply.read()

    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession() as session:
        started, used = time.perf_counter(), cpu_s_of(server.pid)
        await asyncio.gather(*(work(session) for _ in range(connections)))
        return (cpu_s_of(server.pid) - used) / CALLS, CALLS / (time.perf_counter() - started)


async def _in_process() -> float:
    """Processor seconds of one dispatch without any endpoint."""
    agent = Agent("echo-agent")

    @agent.skill
    async def echo(text: str, count: int) -> dict[str, str | int]:
        """Gives back what it was given."""
        return {"text": text, "count": count}

    dispatcher = local_dispatcher(agent)
    call = Call("1", "echo", {"text": "hello", "count": 3}, ANONYMOUS, "bench", new_trace(), "echo-agent")
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(CALLS):
            await dispatcher.dispatch(call)
        best = min(best, (time.process_time() - started) / CALLS)
    return best
