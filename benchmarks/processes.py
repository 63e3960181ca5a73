"""A hub of one process and one of two, before an agent with a fixed answer: calls a second, CPU, latency.

The agent and the load are one small process each, because tools that are quicker need packages that a machine
may lack. Both hubs run all the time and are loaded in turn, so that a busy machine is as busy for both. The
CPU is that of all processes of a hub; the best of the rounds counts.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import orjson
import uvloop

from benchmarks.figures import Figure, cpu_s_of
from benchmarks.mcp_hub_processes import program, retinue, wait_until_served

CONNECTIONS = (1, 16, 64)
ROUNDS = 3
LOAD_S = 2.0
PROCESSES = (1, 2)

CPU_SHARE = 1.1
"""The CPU of a call at two processes, as a share of that at one."""

RATE_SHARE = 1 / 1.45
"""The calls a second at one process, as a share of those at two, where two cores have load and agent, too."""

AGENT = '''
from retinue import Agent

agent = Agent("echo-agent", version="1.0.0")


@agent.skill(expose=True)
async def echo(text: str) -> str:
    """Gives back what it was given."""
    return text
'''
_REQUEST = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": "hello"}})
_ANSWER = orjson.dumps({"jsonrpc": "2.0", "result": "hello", "id": "orch"})
_OK = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_ANSWER)
    + _ANSWER
)
_NO_CARD = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
"""The answer to a probe, which counts as alive."""


def measure() -> list[Figure]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="processes-")))
        (folder / "echo_agent.py").write_text(AGENT, encoding="utf-8")
        fixed, _ = stack.enter_context(program(["-m", "benchmarks.processes", "agent"]))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
        hubs = {}
        for count in PROCESSES:
            home = {**kept, "RETINUE_HOME": str(folder / f"state-{count}"), "RETINUE_HUB__MODELS": "[]"}
            command = ["hub", "--bare", "--processes", str(count)]
            hubs[count] = stack.enter_context(retinue(command, home, folder, "/health"))
            serve = ["serve", "echo_agent.py", "--advertise", fixed]
            stack.enter_context(retinue(serve, home, folder, "/health"))
            wait_until_served(f"{hubs[count][0]}/agents/echo-agent/agent-card")
        for url, _ in hubs.values():
            _load(url, 16)
        rounds = [
            {
                (count, clients): _measure(*hubs[count], clients)
                for clients in CONNECTIONS
                for count in PROCESSES
            }
            for _ in range(ROUNDS)
        ]
    figures = []
    for clients in CONNECTIONS:
        best = {count: _best([round_[count, clients] for round_ in rounds]) for count in PROCESSES}
        for count, values in best.items():
            where = f"{count} process{'es' * (count > 1)}, {clients} connections"
            figures += [
                Figure(f"calls a second, {where}", values["rate"], "/s"),
                Figure(f"CPU per call, {where}", values["cpu_us"], "µs"),
                Figure(f"p50, {where}", values["p50_ms"], "ms"),
                Figure(f"p99, {where}", values["p99_ms"], "ms"),
            ]
        one, two = best[1], best[2]
        is_loaded = clients > 1
        figures += [
            Figure(
                f"CPU per call, 2 processes / 1, {clients} connections",
                two["cpu_us"] / one["cpu_us"],
                "×",
                target=CPU_SHARE,
            ),
            Figure(
                f"calls a second, 1 process / 2, {clients} connections",
                one["rate"] / two["rate"],
                "×",
                target=RATE_SHARE if is_loaded else None,
            ),
        ]
    figures.append(Figure("load of the machine at the end", os.getloadavg()[0], ""))
    return figures


def _measure(url: str, pid: int, clients: int) -> dict[str, float]:
    pids = [pid, *_children(pid)]
    before = sum(map(cpu_s_of, pids))
    result = _load(url, clients)
    spent_s = sum(map(cpu_s_of, pids)) - before
    return {**result, "cpu_us": 1e6 * spent_s / (result["rate"] * LOAD_S)}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _load(url: str, clients: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.processes", "load", url, str(clients)]
    result: dict[str, float] = orjson.loads(
        subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    )
    return result


def _best(results: list[dict[str, float]]) -> dict[str, float]:
    """The best value of each figure: the highest rate, the lowest of the others."""
    return {name: (max if name == "rate" else min)(result[name] for result in results) for name in results[0]}


class FixedAnswer(asyncio.Protocol):
    """One connection to the agent; a request comes in one piece."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(_OK if data.startswith(b"POST") else _NO_CARD)


class Client(asyncio.Protocol):
    """One connection of the load, which sends its next call when it has the answer."""

    transport: asyncio.Transport

    def __init__(self, request: bytes, spent_s: list[float]) -> None:
        self._request = request
        self._spent_s = spent_s
        self._began = 0.0
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(b"}"):
            if not self._received.startswith(b"HTTP/1.1 200") or b'"result"' not in self._received:
                raise SystemExit(self._received.decode())
            self._spent_s.append(time.perf_counter() - self._began)
            self._send()

    def _send(self) -> None:
        self._received = b""
        self._began = time.perf_counter()
        self.transport.write(self._request)


async def _run_agent() -> None:
    server = await asyncio.get_running_loop().create_server(FixedAnswer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await server.serve_forever()


async def _run_load(url: str, clients: int) -> Mapping[str, float]:
    place = urlsplit(url)
    head = (
        f"POST /agents/echo-agent/execute HTTP/1.1\r\nhost: {place.netloc}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(_REQUEST)}\r\n\r\n"
    )
    spent_s: list[float] = []
    loop = asyncio.get_running_loop()
    for _ in range(clients):
        await loop.create_connection(
            lambda: Client(head.encode() + _REQUEST, spent_s), place.hostname or "", place.port or 80
        )
    await asyncio.sleep(0.2)
    spent_s.clear()
    await asyncio.sleep(LOAD_S)
    ordered = sorted(spent_s)
    return {
        "rate": len(ordered) / LOAD_S,
        "p50_ms": 1e3 * ordered[len(ordered) // 2],
        "p99_ms": 1e3 * ordered[len(ordered) * 99 // 100],
    }


if __name__ == "__main__":
    if sys.argv[1] == "agent":
        uvloop.run(_run_agent())
    else:
        sys.stdout.buffer.write(orjson.dumps(uvloop.run(_run_load(sys.argv[2], int(sys.argv[3])))))
