"""A2A: a message at an agent against the echo server of the A2A SDK, and ``POST /messages`` beside them.

Memory is that of the process before the first request and after the last.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

import aiohttp
import orjson

from benchmarks.figures import Figure, cpu_s_of, rss_bytes_of

KINDS = ("agent", "sdk", "sdk-tasks")
CLIENTS = (1, 16)
CALLS = 1000
ROUNDS = 3

_TEXT = {"text": "hello"}
_DATA = {"data": {"skill": "echo", "arguments": {"text": "hello"}}}


def _send(part: object, **metadata: str) -> bytes:
    message = {
        "messageId": "m",
        "role": "ROLE_USER",
        "parts": [part],
        **({"metadata": metadata} if metadata else {}),
    }
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}})


ENVELOPE = {
    "performative": "TASK_REQUEST",
    "payload": {"task_type": "echo", "task_parameters": {"text": "hello"}},
}

CASES: dict[str, tuple[str, str, bytes, bytes]] = {
    "agent, a task": ("agent", "/", _send(_TEXT), b"artifacts"),
    "agent, a task, skill named": ("agent", "/", _send(_DATA), b"artifacts"),
    "agent, a message": ("agent", "/", _send(_TEXT, reply="message"), b'"message"'),
    "agent, POST /messages": ("agent", "/messages", orjson.dumps(ENVELOPE), b"INFORM_RESULT"),
    "SDK, a task": ("sdk-tasks", "/", _send(_TEXT), b"artifacts"),
    "SDK, a message": ("sdk", "/", _send(_TEXT), b'"message"'),
}
"""Name → the server, the path, the body, and what an answer holds."""


@dataclass(frozen=True, slots=True)
class Run:
    """One round: calls per second, and processor seconds of the server per call."""

    per_s: float
    cpu_s: float


def measure() -> list[Figure]:
    """Interleaved rounds; the best of each counts."""
    best: dict[tuple[str, int], Run] = {}
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(Server(kind)) for kind in KINDS}
        before = {kind: rss_bytes_of(server.pid) for kind, server in servers.items()}
        for _ in range(ROUNDS):
            for name, (kind, path, body, holds) in CASES.items():
                for clients in CLIENTS:
                    found = asyncio.run(_load(servers[kind], path, body, holds, clients))
                    known = best.get((name, clients), found)
                    best[name, clients] = Run(max(known.per_s, found.per_s), min(known.cpu_s, found.cpu_s))
        after = {kind: rss_bytes_of(server.pid) for kind, server in servers.items()}
    figures = []
    for (name, clients), run in best.items():
        at = f"{name}, {clients} at once"
        figures += [
            Figure(f"calls per second, {at}", run.per_s, "/s"),
            Figure(f"CPU per call, {at}", run.cpu_s * 1e3, "ms"),
        ]
    for clients in CLIENTS:
        for what in ("a task", "a message"):
            ratio = best[f"agent, {what}", clients].cpu_s / best[f"SDK, {what}", clients].cpu_s
            figures.append(Figure(f"CPU of the agent / the SDK, {what}, {clients} at once", ratio, "×"))
    for kind in KINDS:
        figures += [
            Figure(f"memory before, {kind}", before[kind] / 1e6, "MB"),
            Figure(f"memory after, {kind}", after[kind] / 1e6, "MB"),
        ]
    return figures


class Server:
    """One of ``benchmarks.a2a_servers`` in a process of its own."""

    def __init__(self, kind: str) -> None:
        command = [sys.executable, "-m", "benchmarks.a2a_servers", kind]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self.pid = self._process.pid

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()


async def _load(server: Server, path: str, body: bytes, holds: bytes, clients: int) -> Run:
    left = CALLS

    async def work(session: aiohttp.ClientSession) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            # a message that is sent again has the task of the first one
            sent = body.replace(_MESSAGE_ID, b'"messageId":"m-%d"' % next(_numbers))
            async with session.post(server.url + path, data=sent, headers=_HEADERS) as reply:
                answer = await reply.read()
                assert holds in answer, answer

    async with aiohttp.ClientSession() as session:
        started, used = time.perf_counter(), cpu_s_of(server.pid)
        await asyncio.gather(*(work(session) for _ in range(clients)))
        wall_s = time.perf_counter() - started
        return Run(CALLS / wall_s, (cpu_s_of(server.pid) - used) / CALLS)


_MESSAGE_ID = b'"messageId":"m"'
_numbers = itertools.count()
_HEADERS = {"content-type": "application/json", "a2a-version": "1.0"}
