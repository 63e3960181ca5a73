"""A hub and an agent that require a token, under attack by clients that have none."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.processes.running import Program, get, program, wait_until, write_agent
from tests.time_bounds import Stopwatch

CLOSED = {"RETINUE_AUTH__ANONYMOUS": "false"}
MIB = 1024 * 1024
SENT_BYTES = 60 * MIB
MAX_GROWTH_BYTES = 8 * MIB
FEW_FILES = 256


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def await_settled_bytes(pid: int) -> int:
    """Memory once the process has loaded what it loads after it says that it is up."""
    latest: deque[int] = deque(maxlen=40)

    def is_settled() -> bool:
        latest.append(resident_bytes(pid))
        return len(latest) == latest.maxlen and max(latest) - min(latest) < MIB // 4

    wait_until(is_settled, "the memory stays as it is")
    return latest[-1]


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), 10) as peer:
        yield peer


def flood(url: str, start: bytes, piece: bytes) -> tuple[int, bytes]:
    """Send until the server refuses; how much was sent, and what it answered."""
    with connected(url) as peer:
        peer.sendall(start)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < SENT_BYTES:
                peer.sendall(piece)
                sent += len(piece)
        return sent, peer.recv(4096)


def check_heads_are_bounded(running: Program, url: str) -> None:
    start = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    attacks = {
        "one header": (start + b"X-A: ", b"a" * 65536),
        "many headers": (start, b"".join(b"X-%d: b\r\n" % n for n in range(5000))),
        "url": (b"GET /health?", b"a" * 65536),
    }
    assert get(f"{url}/health")[0] == 200
    before = await_settled_bytes(running.process.pid)
    for name, (begin, piece) in attacks.items():
        sent, answer = flood(url, begin, piece)
        assert sent < SENT_BYTES, name
        assert answer[:12] in (b"HTTP/1.1 431", b""), name
    assert resident_bytes(running.process.pid) - before < MAX_GROWTH_BYTES


def check_half_open_connections_do_not_keep_others_out(url: str) -> None:
    with ExitStack() as stack:
        for _ in range(FEW_FILES + 144):
            peer = stack.enter_context(connected(url))
            with contextlib.suppress(ConnectionError):
                peer.sendall(b"GET /health HTTP/1.1\r\nHost: ")
        for _ in range(40):
            stopwatch = Stopwatch()
            assert get(f"{url}/health")[0] == 200
            stopwatch.check(0.5)


@contextmanager
def few_open_files(hard: int | None = None) -> Iterator[None]:
    """Programs that start inside inherit a low soft limit."""
    soft, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, highest))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, highest))


def test_a_hub_and_an_agent_withstand_endless_heads_and_half_open_connections(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "one-agent", "1.0.0", "who", "one")
    with ExitStack() as stack:
        with few_open_files():
            hub = stack.enter_context(
                program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=CLOSED)
            )
            served = stack.enter_context(program("serve", str(agent), cwd=tmp_path, environment=CLOSED))
        served.wait_for("published")
        for running, url in ((hub, hub.url_in("hub at")), (served, served.url_in("one-agent"))):
            check_heads_are_bounded(running, url)
            check_half_open_connections_do_not_keep_others_out(url)
            refusals = [line for line in running.lines if "connections refused" in line]
            assert len(refusals) == 1, running.output


def test_with_few_files_allowed_half_are_for_clients_and_the_longest_waiting_makes_room(
    tmp_path: Path,
) -> None:
    # the hard limit cannot be raised again, so another shell lowers it
    script = f'ulimit -n {FEW_FILES}; exec "$0" -m retinue hub --bare --port 0'
    with subprocess.Popen(
        ["sh", "-c", script, sys.executable],
        cwd=tmp_path,
        env={**os.environ, **CLOSED},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as hub:
        try:
            assert hub.stdout is not None
            line = next(line for line in hub.stdout if "hub at" in line)
            check_half_open_connections_do_not_keep_others_out(line.split()[2])
        finally:
            hub.terminate()
            hub.wait(60)
