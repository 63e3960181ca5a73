"""A hub of one process and one of two, before an agent with a fixed answer: calls a second, CPU, latency.

The load is `wrk` and the agent is nginx where they are installed (`scripts/services bench`), else one small
process each. Both hubs run all the time and are loaded in turn, so that a busy machine is as busy for both.
The CPU is that of all processes of a hub; the best of the rounds counts. Calls in sessions of MCP use any
connection for any session, so that half of them come to a process that does not have the session.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import orjson
import urllib3
import uvloop

from benchmarks.figures import Figure, cpu_s_of
from benchmarks.mcp_hub_processes import program, retinue, wait_until_served

CONNECTIONS = (1, 16, 64, 256)
ROUNDS = 3
LOAD_S = 1.5
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
TOOL = "echo-agent__echo"
MODERN, HANDSHAKE = "2026-07-28", "2025-11-25"
SESSIONS = 32

EXECUTE = "/execute"
MODERN_CALL = f"tools/call of {MODERN}"
SESSION_CALL = f"tools/call of {HANDSHAKE}"
WAYS = (EXECUTE, MODERN_CALL, SESSION_CALL)

_JSON = {"content-type": "application/json"}
_ACCEPT = {**_JSON, "accept": "application/json, text/event-stream"}
_PREFIX = "io.modelcontextprotocol/"
_CLIENT = {"name": "bench", "version": "1"}

_ANSWER = orjson.dumps({"jsonrpc": "2.0", "result": "hello", "id": "orch"})
_OK = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_ANSWER)
    + _ANSWER
)
_NO_CARD = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
"""The answer to a probe, which counts as alive."""


@dataclass(frozen=True)
class Calls:
    """The calls of one way: ``sessions`` are sent by turns."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    sessions: Sequence[str] = ()


def measure() -> list[Figure]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="processes-")))
        (folder / "echo_agent.py").write_text(AGENT, encoding="utf-8")
        fixed = stack.enter_context(_agent(folder))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RETINUE_")}
        hubs, calls = {}, {}
        for count in PROCESSES:
            home = {**kept, "RETINUE_HOME": str(folder / f"state-{count}"), "RETINUE_HUB__MODELS": "[]"}
            command = ["hub", "--bare", "--processes", str(count)]
            hubs[count] = stack.enter_context(retinue(command, home, folder, "/health"))
            serve = ["serve", "echo_agent.py", "--advertise", fixed]
            stack.enter_context(retinue(serve, home, folder, "/health"))
            wait_until_served(f"{hubs[count][0]}/agents/echo-agent/agent-card")
            time.sleep(1)  # until the process that does not lead has heard of the agent
            calls[count] = _make_calls(hubs[count][0])
        for count, (url, _) in hubs.items():
            for way in WAYS:
                _load(url, 16, calls[count][way], folder)
        rounds = [
            {
                (count, way, clients): _measure(*hubs[count], clients, calls[count][way], folder)
                for way in WAYS
                for clients in CONNECTIONS
                for count in PROCESSES
            }
            for _ in range(ROUNDS)
        ]
    figures = []
    for way in WAYS:
        for clients in CONNECTIONS:
            best = {count: _best([round_[count, way, clients] for round_ in rounds]) for count in PROCESSES}
            figures += _list_figures(way, clients, best)
    figures.append(Figure("load of the machine at the end", os.getloadavg()[0], ""))
    return figures


def _list_figures(way: str, clients: int, best: Mapping[int, Mapping[str, float]]) -> list[Figure]:
    figures = []
    for count, values in best.items():
        where = f"{way}, {count} process{'es' * (count > 1)}, {clients} connections"
        figures += [
            Figure(f"calls a second, {where}", values["rate"], "/s"),
            Figure(f"CPU per call, {where}", values["cpu_us"], "µs"),
            Figure(f"p50, {where}", values["p50_ms"], "ms"),
            Figure(f"p99, {where}", values["p99_ms"], "ms"),
        ]
    one, two = best[1], best[2]
    share, rates = two["cpu_us"] / one["cpu_us"], one["rate"] / two["rate"]
    where = f"{way}, {clients} connections"
    return [
        *figures,
        Figure(f"CPU per call, 2 processes / 1, {where}", share, "×", target=CPU_SHARE),
        Figure(
            f"calls a second, 1 process / 2, {where}",
            rates,
            "×",
            target=RATE_SHARE if clients > 1 else None,
        ),
    ]


@contextmanager
def _agent(folder: Path) -> Iterator[str]:
    """The agent with the fixed answer; its URL."""
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        with program(["-m", "benchmarks.processes", "agent"]) as (url, _):
            yield url
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "nginx.conf").write_text(_NGINX % {"folder": folder, "port": port, "answer": _ANSWER.decode()})
    server = subprocess.Popen([nginx, "-c", folder / "nginx.conf", "-e", folder / "nginx.log"])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


_NGINX = """daemon off; worker_processes 1; pid %(folder)s/nginx.pid; error_log %(folder)s/nginx.log;
events { worker_connections 2048; }
http {
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path %(folder)s/body; proxy_temp_path %(folder)s/proxy; fastcgi_temp_path %(folder)s/f;
  uwsgi_temp_path %(folder)s/u; scgi_temp_path %(folder)s/s;
  server {
    listen 127.0.0.1:%(port)d;
    location / {
      if ($request_method = GET) { return 401; }
      default_type application/json;
      return 200 '%(answer)s';
    }
  }
}
"""


def _make_calls(url: str) -> dict[str, Calls]:
    """The calls of each way; sessions are opened over connections of their own."""
    meta = {
        f"{_PREFIX}protocolVersion": MODERN,
        f"{_PREFIX}clientInfo": _CLIENT,
        f"{_PREFIX}clientCapabilities": {},
    }
    params = {"name": TOOL, "arguments": {"text": "hello"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    modern = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": TOOL}
    execute = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "echo", "params": {"text": "hello"}})
    body = orjson.dumps({**request, "params": {**params, "_meta": meta}})
    sessions = [_open_session(url) for _ in range(SESSIONS)]
    return {
        EXECUTE: Calls("/agents/echo-agent/execute", execute, _JSON),
        MODERN_CALL: Calls("/mcp", body, {**_ACCEPT, **modern}),
        SESSION_CALL: Calls(
            "/mcp", orjson.dumps(request), {**_ACCEPT, "mcp-protocol-version": HANDSHAKE}, sessions
        ),
    }


def _open_session(url: str) -> str:
    params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _CLIENT}
    opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    headers = {**_ACCEPT, "mcp-protocol-version": HANDSHAKE}
    session: str = urllib3.request("POST", f"{url}/mcp", json=opening, headers=headers).headers[
        "mcp-session-id"
    ]
    begun = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    urllib3.request("POST", f"{url}/mcp", json=begun, headers={**headers, "mcp-session-id": session})
    return session


def _measure(url: str, pid: int, clients: int, calls: Calls, folder: Path) -> dict[str, float]:
    pids = [pid, *_list_descendants(pid)]
    before = sum(map(cpu_s_of, pids))
    result = _load(url, clients, calls, folder)
    spent_s = sum(map(cpu_s_of, pids)) - before
    return {**result, "cpu_us": 1e6 * spent_s / result["calls"]}


def _list_descendants(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(each for child in children for each in _list_descendants(child))]


def _load(url: str, clients: int, calls: Calls, folder: Path) -> dict[str, float]:
    if shutil.which("wrk") is not None:
        return _load_by_wrk(url, clients, calls, folder)
    fields = orjson.dumps(
        [calls.path, calls.body.decode(), dict(calls.headers), list(calls.sessions)]
    ).decode()
    command = [sys.executable, "-m", "benchmarks.processes", "load", url, str(clients), fields]
    result: dict[str, float] = orjson.loads(
        subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    )
    return result


def _load_by_wrk(url: str, clients: int, calls: Calls, folder: Path) -> dict[str, float]:
    script = folder / "load.lua"
    quoted = {name: orjson.dumps(value).decode() for name, value in calls.headers.items()}
    heads = ", ".join(f'["{name}"] = {value}' for name, value in quoted.items())
    sessions = ", ".join(f'"{session}"' for session in calls.sessions)
    script.write_text(_LUA % {"body": calls.body.decode(), "heads": heads, "sessions": sessions})
    command = [
        "wrk",
        "-t1",
        f"-c{clients}",
        f"-d{max(1, round(LOAD_S))}s",
        "-s",
        str(script),
        url + calls.path,
    ]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    result: dict[str, float] = orjson.loads(output.partition("RESULT ")[2])
    if result.pop("failed"):
        raise SystemExit(f"calls failed: {output}")
    return result


_LUA = """
local sessions, number = {%(sessions)s}, 0
wrk.method = "POST"
wrk.headers = {%(heads)s}
wrk.body = [[%(body)s]]
if #sessions > 0 then
  request = function()
    number = number + 1
    wrk.headers["mcp-session-id"] = sessions[number %% #sessions + 1]
    return wrk.format(nil, nil, nil, (wrk.body:gsub('"id":1', '"id":' .. number)))
  end
end
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format('RESULT {"rate": %%f, "p50_ms": %%f, "p99_ms": %%f, "calls": %%d, "failed": %%d}',
    summary.requests / summary.duration * 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    summary.requests, errors.status + errors.connect + errors.read + errors.timeout))
end
"""


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

    def __init__(self, requests: Iterator[bytes], spent_s: list[float]) -> None:
        self._requests = requests
        self._spent_s = spent_s
        self._began = 0.0
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith((b"}", b"0\r\n\r\n")):
            if not self._received.startswith(b"HTTP/1.1 200") or b'"result"' not in self._received:
                raise SystemExit(self._received.decode())
            self._spent_s.append(time.perf_counter() - self._began)
            self._send()

    def _send(self) -> None:
        self._received = b""
        self._began = time.perf_counter()
        self.transport.write(next(self._requests))


async def _run_agent() -> None:
    server = await asyncio.get_running_loop().create_server(FixedAnswer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await server.serve_forever()


async def _run_load(url: str, clients: int, fields: str) -> Mapping[str, float]:
    place = urlsplit(url)
    requests = _render_requests(place.netloc, *orjson.loads(fields))
    spent_s: list[float] = []
    loop = asyncio.get_running_loop()
    for _ in range(clients):
        await loop.create_connection(
            lambda: Client(requests, spent_s), place.hostname or "", place.port or 80
        )
    await asyncio.sleep(0.2)
    spent_s.clear()
    await asyncio.sleep(LOAD_S)
    ordered = sorted(spent_s)
    return {
        "rate": len(ordered) / LOAD_S,
        "calls": len(ordered),
        "p50_ms": 1e3 * ordered[len(ordered) // 2],
        "p99_ms": 1e3 * ordered[len(ordered) * 99 // 100],
    }


def _render_requests(
    host: str, path: str, body: str, headers: Mapping[str, str], sessions: Sequence[str]
) -> Iterator[bytes]:
    """The requests one after another, each with an id of its own in a session."""
    heads = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    number = 0
    while True:
        number += 1
        session = f"mcp-session-id: {sessions[number % len(sessions)]}\r\n" if sessions else ""
        text = body.replace('"id":1', f'"id":{number}', 1) if sessions else body
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\n{heads}{session}content-length: {len(text)}"
        yield f"{head}\r\n\r\n{text}".encode()


if __name__ == "__main__":
    if sys.argv[1] == "agent":
        uvloop.run(_run_agent())
    else:
        sys.stdout.buffer.write(
            orjson.dumps(uvloop.run(_run_load(sys.argv[2], int(sys.argv[3]), sys.argv[4])))
        )
