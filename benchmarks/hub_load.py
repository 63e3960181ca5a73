"""The agent, the proxies and the load of the benchmark of hub processes.

python -m benchmarks.hub_load agent                       serves a fixed answer
python -m benchmarks.hub_load load URL CLIENTS FIELDS     loads a server, prints what it measured
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import orjson
import uvloop

from benchmarks.mcp_hub_processes import program

LOAD_S = 1.5

SLOW_S = 1.0
"""A call that takes longer counts as slow."""

LONGEST_S = 10
"""A call that takes longer counts as failed."""

FAILED_SHARE = 0.001
"""A larger share of failed calls ends the run, because the figures would be those of failures."""

_SERVERS = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"

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


@contextmanager
def fixed_agent(folder: Path) -> Iterator[str]:
    """The agent with the fixed answer, which is nginx where it is installed; its URL."""
    answer = _AGENT % _ANSWER.decode()
    with nginx(folder / "agent", "", answer) as served:
        if served is not None:
            yield served[0]
            return
    with program(["-m", "benchmarks.hub_load", "agent"]) as (url, _):
        yield url


@contextmanager
def proxy(folder: Path, upstream: str) -> Iterator[tuple[str, int] | None]:
    """nginx as a plain proxy; its URL and process, None where it is not installed."""
    servers = f"upstream agent {{ server {urlsplit(upstream).netloc}; keepalive 256; }}"
    with nginx(folder / "proxy", servers, _PROXY) as served:
        yield served


@contextmanager
def nginx(folder: Path, upstreams: str, location: str) -> Iterator[tuple[str, int] | None]:
    """nginx in one process with one location; None where it is not installed."""
    executable = shutil.which("nginx", path=_SERVERS)
    if executable is None:
        yield None
        return
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {"folder": folder, "port": port, "upstreams": upstreams, "location": location}
    (folder / "nginx.conf").write_text(_NGINX % places)
    server = subprocess.Popen([executable, "-c", folder / "nginx.conf", "-e", folder / "nginx.log"])
    try:
        wait_until_listening(port)
        yield f"http://127.0.0.1:{port}", server.pid
    finally:
        server.terminate()
        server.wait()


def wait_until_listening(port: int) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


_NGINX = """daemon off; master_process off; pid %(folder)s/nginx.pid; error_log %(folder)s/nginx.log;
events { worker_connections 2048; }
http {
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path %(folder)s/body; proxy_temp_path %(folder)s/proxy; fastcgi_temp_path %(folder)s/f;
  uwsgi_temp_path %(folder)s/u; scgi_temp_path %(folder)s/s;
  %(upstreams)s
  server {
    listen 127.0.0.1:%(port)d;
    location / { %(location)s }
  }
}
"""

_AGENT = "if ($request_method = GET) { return 401; } default_type application/json; return 200 '%s';"
_PROXY = 'proxy_pass http://agent; proxy_http_version 1.1; proxy_set_header Connection "";'


def load(url: str, clients: int, calls: Calls, folder: Path) -> dict[str, float]:
    if shutil.which("wrk") is not None:
        return _load_by_wrk(url, clients, calls, folder)
    fields = orjson.dumps(
        [calls.path, calls.body.decode(), dict(calls.headers), list(calls.sessions)]
    ).decode()
    command = [sys.executable, "-m", "benchmarks.hub_load", "load", url, str(clients), fields]
    result: dict[str, float] = orjson.loads(
        subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    )
    return result


def _load_by_wrk(url: str, clients: int, calls: Calls, folder: Path) -> dict[str, float]:
    script = folder / "load.lua"
    quoted = {name: orjson.dumps(value).decode() for name, value in calls.headers.items()}
    heads = ", ".join(f'["{name}"] = {value}' for name, value in quoted.items())
    sessions = ", ".join(f'"{session}"' for session in calls.sessions)
    places = {"body": calls.body.decode(), "heads": heads, "sessions": sessions, "slow_us": 1e6 * SLOW_S}
    script.write_text(_LUA % places)
    command = [
        "wrk",
        "-t1",
        f"-c{clients}",
        f"-d{max(1, round(LOAD_S))}s",
        f"--timeout={LONGEST_S}s",
        "-s",
        str(script),
        url + calls.path,
    ]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    result: dict[str, float] = orjson.loads(output.partition("RESULT ")[2])
    if result["failed"] > FAILED_SHARE * result["calls"]:
        raise SystemExit(
            f"{result['failed']:.0f} of {result['calls']:.0f} calls of {calls.path} over {clients}"
            f" connections failed; wrk printed: {output}"
        )
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
  local errors, slow = summary.errors, 0
  for place = 1, #latency do
    local spent, count = latency(place)
    if spent > %(slow_us)d then slow = slow + count end
  end
  io.write(string.format('RESULT {"rate": %%f, "p50_ms": %%f, "p99_ms": %%f,' ..
    '"max_ms": %%f, "calls": %%d, "slow": %%d, "failed": %%d}',
    summary.requests / summary.duration * 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    latency.max / 1e3, summary.requests, slow,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
"""


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
        "max_ms": 1e3 * ordered[-1],
        "slow": sum(spent > SLOW_S for spent in ordered),
        "failed": 0,
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
