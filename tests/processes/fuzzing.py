"""Sends requests made by chance to a process, and measures what they do to it and to another client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from retinue.storage.state import State
from tests.processes.fuzz_attacks import Attack, make_attack
from tests.processes.fuzz_ids import Learner
from tests.processes.fuzz_targets import AGENT_TARGETS, HUB_TARGETS, Target
from tests.processes.running import Program, program

ANSWER_WITHIN_S = 60.0
HALF_OPEN = 100
LEARN_EVERY = 1000
"""Requests after which new sessions and uploads are opened, because the attack ends those that it knows."""

MAX_EXCUSED_S = 0.25
"""Of one call: the longest time without a processor that is taken for the machine's fault."""

_QUIET_S = 1.0

ECHO = """
from retinue import Agent

agent = Agent("echo-agent", version="1.0.0")


@agent.skill(expose=True)
async def echo(text: str) -> str:
    \"\"\"Gives the text back.\"\"\"
    return text
"""
SETTINGS = {"RETINUE_AUTH__AUTHORIZATION_SERVERS": '["http://127.0.0.1:9/"]'}
"""With these every route of a process is there."""


@dataclass(frozen=True, slots=True)
class Attacked:
    """A running hub or agent, and the fuzz of its endpoints."""

    running: Program
    url: str
    fuzz: Fuzz

    @property
    def pid(self) -> int:
        return self.running.process.pid


@contextmanager
def attacked_processes(folder: Path, home: Path) -> Iterator[dict[str, Attacked]]:
    """A hub that is a coordinator of a KOI network, and an agent on it, by ``hub`` and ``agent``."""
    (folder / "echo_agent.py").write_text(ECHO)
    hub_options = ("hub", "--bare", "--koi", "--port", "0")
    with program(*hub_options, cwd=folder, environment=SETTINGS) as hub:
        hub_url = hub.url_in("hub at")
        serve_options = ("serve", "echo_agent.py", "--koi-join", hub_url)
        with program(*serve_options, cwd=folder, environment=SETTINGS) as served:
            served.wait_for("published")
            url, token = served.url_in("echo-agent"), State(home).local_token()
            of_hub = Fuzz(hub_url, token, HUB_TARGETS, Learner(hub_url, token, is_hub=True))
            of_agent = Fuzz(url, token, AGENT_TARGETS, Learner(url, token, is_hub=False))
            yield {"hub": Attacked(hub, hub_url, of_hub), "agent": Attacked(served, url, of_agent)}


@dataclass
class Fuzz:
    """Sends attacks to one server and counts the statuses; 0 = closed without an answer, -1 = left half open.

    ``failures`` are requests with the answer that they must not have.
    """

    url: str
    token: str
    targets: Sequence[Target]
    learner: Learner
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[tuple[bytes, bytes]] = field(default_factory=list)
    sessions: list[tuple[str, str]] = field(default_factory=list)
    """Paths and ids of the sessions that attacks have opened."""

    async def run(self, seed: int, count: int, at_once: int = 16) -> None:
        """Send ``count`` requests; a seed makes the same ones again, but for ids of the process."""
        chance = random.Random(seed)
        open_ones: list[asyncio.StreamWriter] = []
        try:
            for begin in range(0, count, LEARN_EVERY):
                known = await asyncio.to_thread(self.learner.learn)
                attacks = (
                    make_attack(chance, self.token, self.targets, known)
                    for _ in range(min(LEARN_EVERY, count - begin))
                )
                await asyncio.gather(*(self._work(attacks, open_ones) for _ in range(at_once)))
                # a server keeps a session of MCP for its client until it is ended, or long unused
                await asyncio.to_thread(self.learner.end_sessions, self.sessions)
                self.sessions.clear()
        finally:
            for writer in open_ones:
                writer.close()

    async def _work(self, attacks: Iterator[Attack], open_ones: list[asyncio.StreamWriter]) -> None:
        for attack in attacks:
            await self._send(attack, open_ones)

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
            if not attack.is_whole:
                # the server waits for the rest; a client that is gone gets no answer from a slow endpoint
                with contextlib.suppress(OSError):
                    writer.write_eof()
            answer = await _read_head(reader)
        except TimeoutError:
            self.failures.append((attack.data, b"no answer"))
        finally:
            if not attack.is_half_open:
                writer.close()
        status = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
        self.statuses[status] += 1
        if (opened := _SESSION.search(answer)) is not None and attack.pieces[0].startswith(b"POST /"):
            self.sessions.append((attack.data.split(None, 2)[1].decode("latin-1"), opened[1].decode()))
        if status >= 500 and status not in attack.statuses:
            self.failures.append((attack.data, answer))


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """The head of the answer, "" if the connection was closed; raises TimeoutError."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        async with asyncio.timeout(ANSWER_WITHIN_S):
            answer = await reader.readuntil(b"\r\n\r\n")
            while answer.startswith(b"HTTP/1.1 100"):
                answer = await reader.readuntil(b"\r\n\r\n")
            if answer.startswith(b"HTTP/1.1 5"):
                answer += await reader.read(1000)  # it says what went wrong
            return answer
    return b""


_SESSION = re.compile(rb"\r\nmcp-session-id: ([!-~]+)\r\n", re.IGNORECASE)


GOOD_CLIENT = """
import http.client, json, sys, threading, time
host, port, server, excused_s = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
body = json.dumps({"jsonrpc": "2.0", "method": "echo", "params": {"text": "hello"}, "id": 1})
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
places = [f"/proc/{server}/task/{server}/schedstat", f"/proc/self/task/{threading.get_native_id()}/schedstat"]
files = [open(place) for place in places]

def waited_s():
    # how long the event loop of the server and this client were ready to run and had no processor
    return sum(int((file.seek(0), file.read())[1].split()[1]) for file in files) / 1e9

found = {"worst_s": 0.0, "gross_s": 0.0, "own_s": 0.0, "calls": 0}
while not done.is_set():
    connection = http.client.HTTPConnection(host, port, timeout=120)
    for _ in range(20):
        waited, began = waited_s(), time.monotonic()
        connection.request("POST", "/execute", body, {"content-type": "application/json"})
        answer = connection.getresponse().read()
        took = time.monotonic() - began
        own = took - (waited_s() - waited)
        net = max(own, took - excused_s)
        assert json.loads(answer).get("result") == "hello", answer
        found = {"worst_s": max(found["worst_s"], net), "gross_s": max(found["gross_s"], took),
                 "own_s": max(found["own_s"], own), "calls": found["calls"] + 1}
        time.sleep(0.01)
    connection.close()
print(json.dumps(found))
"""


@dataclass
class GoodClient:
    """What a client in a process of its own met; filled at the end.

    ``gross_s`` is the time of its slowest call. ``own_s`` is the longest time of a call without that in which
    the server's event loop or the client was ready to run and had no processor. ``worst_s`` leaves out at
    most `MAX_EXCUSED_S` of that, so that a busy machine fails the test rather than passes it.
    """

    worst_s: float = 0.0
    gross_s: float = 0.0
    own_s: float = 0.0
    calls: int = 0


@contextmanager
def good_client(url: str, pid: int) -> Iterator[GoodClient]:
    """A client that calls ``echo`` of the process ``pid`` all the time, in a process of its own."""
    parts = urlsplit(url)
    found = GoodClient()
    options = [str(parts.hostname), str(parts.port), str(pid), str(MAX_EXCUSED_S)]
    command = [sys.executable, "-I", "-c", GOOD_CLIENT, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        try:
            yield found
        finally:
            said, _ = client.communicate("", timeout=120)
        seen = json.loads(said)
        found.worst_s, found.gross_s = seen["worst_s"], seen["gross_s"]
        found.own_s, found.calls = seen["own_s"], seen["calls"]


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
