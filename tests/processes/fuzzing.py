"""Requests made by chance from valid ones: heads, bodies and paths of every endpoint, over raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ANSWER_WITHIN_S = 8.0
HALF_OPEN = 100
_QUIET_S = 1.0

MCP = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {}}
MCP_METHODS = ("tools/list", "tools/call", "resources/read", "prompts/get", "server/discover", "ping", "x")
HUB_SKILLS = ("list_agents", "show_agent", "find_skills", "call_skill", "list_workflows", "show_run", "echo")
PARAMETERS = ("name", "agent", "skill", "arguments", "text", "query", "run", "limit", "workflow", "params")
UPLOAD = "/v2/agents/fuzz/blobs/uploads/"
KEPT = "/v2/agents/echo/"
PATHS = (
    "/health",
    "/agent-card",
    "/execute",
    "/mcp",
    "/agents/echo-agent/agent-card",
    "/agents/echo-agent/execute",
    "/agents/echo-agent/mcp",
    "/agents/..%2f..%2fetc/agent-card",
    "/hooks/registry",
    "/v2/",
    "/v2/_catalog?n=-1&last=%00",
    "/v2/agents/echo/tags/list",
    "/v2/agents/echo/manifests/v1",
    "/v2/agents/fuzz/manifests/v1",
    "/v2/agents/fuzz/manifests/sha256:00",
    "/v2/../../etc/passwd",
    f"/v2/agents/echo/blobs/sha256:{'0' * 64}",
    UPLOAD,
    f"{UPLOAD}{'0' * 32}?digest=sha256:{'1' * 64}",
    "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-protected-resource/x",
    "/nowhere",
    "/%ff%fe",
    "*",
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "PRI")
HOSTS = (
    "127.0.0.1",
    "localhost",
    "[::1]",
    "[::1].evil.example",
    "evil.example",
    "",
    "127.0.0.1:99999",
    "\xff",
)
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**53, 2**64, 1e308, "", "x", "\x00", "\u202e", "a" * 5000, "../..", "http://[", [],
    {}, [[]] * 50, {"": ""}, {"$ref": "#"}, "${{ 1 }}", {"a": {"b": [1, None, "c"]}},
)  # fmt: skip
RAW_BODIES = (
    b"", b"{", b"[" * 1000, b'{"a":' * 300, b"\xff\xfe", b"null", b"[]", b"[1,2]", b"NaN", b"1e999",
    b'"\\ud800"',
    b'{"jsonrpc":"2.0","method":"echo","params":{"text":"\\ud800"},"id":1}', b"\x00" * 100, b"-" * 10_000,
    b'{"jsonrpc":"2.0","method":"echo","id":' + b"9" * 400 + b"}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attack:
    """The bytes of one request, in pieces; a half-open one never ends."""

    pieces: tuple[bytes, ...]
    is_half_open: bool = False


def make_attack(chance: random.Random, token: str) -> Attack:
    """One request: a valid one with some of its parts replaced."""
    path, method, body = _target(chance)
    headers = {"Host": "127.0.0.1", "Content-Type": "application/json"}
    headers["Accept"] = "application/json, text/event-stream"
    if chance.random() < 0.6:
        headers["Authorization"] = f"Bearer {token}"
    if path.endswith("/mcp"):
        headers["MCP-Protocol-Version"] = chance.choice(("2026-07-28", "2025-11-25", "1", "\xe9"))
    lines = [f"{name}: {value}" for name, value in headers.items()]
    head = f"{method} {path} HTTP/1.1"
    framing = [f"Content-Length: {len(body)}"]
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        head, lines, framing, body = chance.choice(_HEAD_CHANGES)(chance, head, lines, framing, body)
    data = "\r\n".join([head, *lines, *framing, "", ""]).encode("latin-1", "replace") + body
    if chance.random() < 0.05:
        return Attack((data[: chance.randrange(len(data))],), is_half_open=True)
    if chance.random() < 0.2:
        at = chance.randrange(len(data))
        return Attack((data[:at], data[at:]))
    return Attack((data,))


def _target(chance: random.Random) -> tuple[str, str, bytes]:
    if chance.random() < 0.4:
        path, method = chance.choice(PATHS), chance.choice(METHODS)
        if path.startswith(KEPT) and method in ("PUT", "DELETE"):
            method = "GET"  # with the token of the state it would replace or remove the card
        return path, method, chance.choice(RAW_BODIES)
    if chance.random() < 0.5:
        path = chance.choice(("/execute", "/agents/echo-agent/execute"))
        message = {"jsonrpc": "2.0", "method": chance.choice(HUB_SKILLS), "params": _object(chance), "id": 1}
    else:
        path = chance.choice(("/mcp", "/agents/echo-agent/mcp"))
        meta = {**MCP, "io.modelcontextprotocol/clientCapabilities": chance.choice(({}, {"elicitation": {}}))}
        params = {**_object(chance), "_meta": meta}
        message = {"jsonrpc": "2.0", "method": chance.choice(MCP_METHODS), "params": params, "id": 1}
    for key in list(message):
        if chance.random() < 0.1:
            message[key] = chance.choice(VALUES)
    body = json.dumps(message).encode()
    if chance.random() < 0.2:
        at = chance.randrange(len(body))
        body = body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
    return path, "POST", body


def _object(chance: random.Random) -> dict[str, object]:
    values = (*VALUES, "echo-agent", "echo", {"text": "hello"})
    return {name: chance.choice(values) for name in chance.sample(PARAMETERS, chance.randrange(4))}


Parts = tuple[str, list[str], list[str], bytes]
Change = Callable[[random.Random, str, list[str], list[str], bytes], Parts]


def _line(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    head = chance.choice(
        (
            head.replace("HTTP/1.1", "HTTP/9.9"),
            head.replace(" ", "  "),
            head[:-9],
            "\x00" + head,
            head.lower(),
        )
    )
    return head, lines, framing, body


def _long(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    size = chance.choice((1000, 60_000, 70_000, 300_000))
    if chance.random() < 0.3:
        return head.replace(" HTTP", "?" + "q" * size + " HTTP"), lines, framing, body
    return head, [*lines, "X-Long: " + "v" * size], framing, body


def _many(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    return head, [*lines, *(f"X-{n}: {n}" for n in range(chance.choice((50, 99, 101, 3000))))], framing, body


def _twice(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    return head, [*lines, chance.choice(lines)], framing, body


def _host(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    return head, [f"Host: {chance.choice(HOSTS)}", *lines[1:]], framing, body


def _odd(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    odd = (
        "Origin: http://evil.example",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Content-Type: text/plain",
        "Expect: 100-continue",
        "Connection: Upgrade\r\nUpgrade: websocket",
        "Connection: close",
        "X-OpenStarry-Trace-Id: \x01",
        "X-OpenStarry-Trace-Depth: -99999999999999999999",
        "X-Retinue-For: " + "a" * 5000,
        "Idempotency-Key: \xff",
        "Mcp-Session-Id: nothing",
        "Last-Event-Id: 9",
        "Authorization: Basic !!!",
        "Authorization: Bearer " + "a.b.c" * 100,
        "Content-Range: 99-1",
        "Range: bytes=9-1",
        "X-Bad\x00: 1",
        " folded",
        "no colon",
        ": empty",
    )
    return head, [*lines, chance.choice(odd)], framing, body


def _framing(chance: random.Random, head: str, lines: list[str], framing: list[str], body: bytes) -> Parts:
    chunked = b"%x\r\n" % len(body) + body + b"\r\n0\r\n"
    return chance.choice(
        (
            (head, lines, ["Transfer-Encoding: chunked"], chunked + b"\r\n"),
            (head, lines, ["Transfer-Encoding: chunked"], chunked + b"T: " + b"t" * 100_000 + b"\r\n\r\n"),
            (head, lines, ["Transfer-Encoding: chunked"], chunked + b"Authorization: Bearer x\r\n\r\n"),
            (head, lines, ["Transfer-Encoding: chunked", *framing], chunked),
            (head, lines, ["Transfer-Encoding: gzip, x"], body),
            (head, lines, ["Transfer-Encoding: chunked"], b"zz\r\n" + body),
            (head, lines, [*framing, "Content-Length: 7"], body),
            (head, lines, ["Content-Length: -1"], body),
            (head, lines, [f"Content-Length: {2**64}"], body),
            (head, lines, ["Content-Length: 99999999"], body),
            (head, lines, [], body),
        )
    )


_HEAD_CHANGES: tuple[Change, ...] = (_line, _long, _many, _twice, _host, _odd, _odd, _framing, _framing)


@dataclass
class Fuzz:
    """Sends attacks to one server and counts the statuses; 0 = closed without an answer."""

    url: str
    token: str
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def run(self, seed: int, count: int, at_once: int = 16) -> None:
        """Send ``count`` requests; a seed makes the same ones again."""
        chance = random.Random(seed)
        attacks = (make_attack(chance, self.token) for _ in range(count))
        open_ones: list[asyncio.StreamWriter] = []

        async def work() -> None:
            for attack in attacks:
                await self._send(attack, open_ones)

        try:
            await asyncio.gather(*(work() for _ in range(at_once)))
        finally:
            for writer in open_ones:
                writer.close()

    async def _send(self, attack: Attack, open_ones: list[asyncio.StreamWriter]) -> None:
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        answer = b""
        try:
            for piece in attack.pieces:
                writer.write(piece)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
            if attack.is_half_open:
                open_ones.append(writer)
                if len(open_ones) > HALF_OPEN:
                    open_ones.pop(0).close()
                self.statuses[-1] += 1
                return
            writer.write_eof()
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    answer = await reader.readuntil(b"\r\n")
                    while answer.startswith(b"HTTP/1.1 100"):
                        await reader.readuntil(b"\r\n")
                        answer = await reader.readuntil(b"\r\n")
        except TimeoutError:
            self.failures.append((b"".join(attack.pieces), b"no answer"))
        finally:
            if not attack.is_half_open:
                writer.close()
        status = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
        self.statuses[status] += 1
        if status >= 500:
            self.failures.append((b"".join(attack.pieces), answer))


GOOD_CLIENT = """
import http.client, json, sys, threading, time
host, port, pause_s = sys.argv[1], int(sys.argv[2]), 0.01
body = json.dumps({"jsonrpc": "2.0", "method": "echo", "params": {"text": "hello"}, "id": 1})
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
worst, noise, calls = 0.0, 0.0, 0
while not done.is_set():
    connection = http.client.HTTPConnection(host, port, timeout=30)
    for _ in range(20):
        began = time.monotonic()
        connection.request("POST", "/execute", body, {"content-type": "application/json"})
        answer = connection.getresponse().read()
        worst, calls = max(worst, time.monotonic() - began), calls + 1
        assert json.loads(answer).get("result") == "hello", answer
        began = time.monotonic()
        time.sleep(pause_s)
        noise = max(noise, time.monotonic() - began - pause_s)
    connection.close()
print(json.dumps({"worst_s": worst, "noise_s": noise, "calls": calls}))
"""


@dataclass
class GoodClient:
    """What a client in a process of its own met; filled at the end.

    ``noise_s`` is the longest time for which the machine did not let it run when it only slept.
    """

    worst_s: float = 0.0
    noise_s: float = 0.0
    calls: int = 0


@contextmanager
def good_client(url: str) -> Iterator[GoodClient]:
    """A client that calls ``echo`` all the time, in a process of its own."""
    parts = urlsplit(url)
    found = GoodClient()
    command = [sys.executable, "-I", "-c", GOOD_CLIENT, str(parts.hostname), str(parts.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        try:
            yield found
        finally:
            said, _ = client.communicate("", timeout=60)
        seen = json.loads(said)
        found.worst_s, found.noise_s, found.calls = seen["worst_s"], seen["noise_s"], seen["calls"]


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def count_descriptors(pid: int) -> int:
    """Open files and sockets of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def wait_for_rest(pid: int) -> int:
    """Wait until a process has closed the connections of clients that are gone; its open descriptors."""
    lowest, since = count_descriptors(pid), time.monotonic()
    pause = threading.Event()
    while time.monotonic() - since < _QUIET_S:
        pause.wait(0.05)
        if (found := count_descriptors(pid)) < lowest:
            lowest, since = found, time.monotonic()
    return lowest
