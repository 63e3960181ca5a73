"""KOI events at a node of ours and at a stock koi-net node, in the same run and with the same messages.

Both get signed events of personalities of 1.3 kB, one by one over one connection and 100 in a payload, and
then hold 10,000 of them. What is counted of ours includes the checks of hash and owner, which a stock node
does not make, and writing the files. These are kept in memory where there is a file system for it: the nodes
are measured, not the disk. The logs of the stock node are off.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.figures import Figure, cpu_s_of, rss_bytes_of
from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import Bundle, Event, EventType
from retinue_koi.codec.envelopes import NodeKey, encode_envelope
from retinue_koi.codec.profiles import NodeProfile, NodeType
from retinue_koi.codec.rids import PERSONALITY_TYPE, node_rid
from scripts.peer_environment import PeerNotInstalledError
from scripts.stock_koi import PROGRAM, install_stock_koi

ROOT = Path(__file__).resolve().parent.parent
ONE_BY_ONE = 1000
BATCH = 100
AGENTS = 10_000
SETTLED_S = 1.0
MEGABYTE = 1024 * 1024


@dataclass
class Node:
    """A node that runs, and what the rounds at it came to."""

    pid: int
    rid: str
    url: str
    empty_bytes: int


class Load:
    """A node that sends; it has no base_url, so that nobody calls it back."""

    def __init__(self) -> None:
        self.key = NodeKey.generate()
        self.rid = node_rid("load", self.key.public_key)
        profile = NodeProfile(NodeType.PARTIAL, None, (), (), self.key.public_key)
        self.introduction = Event.from_bundle(EventType.NEW, Bundle.generate(self.rid, profile.render()))

    def event(self, number: int) -> Event:
        traits = [
            {
                "name": f"trait{i}",
                "description": "x" * 90,
                "type": "str",
                "value": "y" * 60,
                "is_callable": False,
            }
            for i in range(5)
        ]
        rid = f"{PERSONALITY_TYPE}:agent-{number}/1.0"
        contents: dict[str, Any] = {
            "rid": rid,
            "node_rid": self.rid,
            "base_url": f"http://127.0.0.1:{10000 + number}/koi-net",
            "mcp_url": f"http://127.0.0.1:{10000 + number}",
            "traits": traits,
        }
        return Event.from_bundle(EventType.NEW, Bundle.generate(rid, contents))

    def bodies(self, node: Node, first: int, count: int, batch: int) -> list[bytes]:
        """The bodies of broadcasts of so many events, signed for a node."""
        return [
            encode_envelope(
                p.EventsPayload(tuple(self.event(number) for number in range(start, start + batch))),
                self.rid,
                node.rid,
                self.key,
            )
            for start in range(first, first + count, batch)
        ]


def measure() -> list[Figure]:
    """Each node alone, one after the other, with the same messages."""
    try:
        stock_python = install_stock_koi()
    except PeerNotInstalledError as error:
        raise SystemExit(f"koi: the stock node cannot be installed: {error}") from error
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        commands = {
            "stock": [str(stock_python), str(PROGRAM), "stock", f"{folder}/stock", _free_port()],
            "ours": [sys.executable, "-m", "benchmarks.koi_node", f"{folder}/ours"],
        }
        found = {}
        for kind, command in commands.items():
            Path(f"{folder}/{kind}").mkdir()
            with _running(command) as node:
                found[kind] = asyncio.run(_load(node))
    ours, stock = found["ours"], found["stock"]
    figures = []
    for name, target in (("one by one", 0.25), (f"{BATCH} a payload", 0.1)):
        for kind in ("ours", "stock"):
            per_s, cpu_s = found[kind][name]
            figures.append(Figure(f"{name}, {kind}", per_s, "events/s"))
            figures.append(Figure(f"{name}, {kind}, processor time", cpu_s * 1e3, "ms/event"))
        figures.append(
            Figure(f"{name}: processor time, part of stock", ours[name][1] / stock[name][1], "", target)
        )
    for kind in ("ours", "stock"):
        empty, full = found[kind]["memory"]
        figures.append(Figure(f"memory, empty, {kind}", empty / MEGABYTE, "MB"))
        figures.append(Figure(f"memory, {AGENTS:,} personalities, {kind}", full / MEGABYTE, "MB"))
    return figures


async def _load(node: Node) -> dict[str, tuple[float, float]]:
    """Events per second and processor seconds per event of each round; and the memory, empty and full."""
    load = Load()
    async with aiohttp.ClientSession() as http:

        async def send(body: bytes) -> None:
            headers = {"content-type": "application/json"}
            async with http.post(node.url + p.BROADCAST, data=body, headers=headers) as reply:
                assert reply.status == 200, await reply.text()
                await reply.read()

        hello = encode_envelope(p.EventsPayload((load.introduction,)), load.rid, node.rid, load.key)
        await send(hello)
        found: dict[str, tuple[float, float]] = {}
        rounds = (("warm", 0, 200, 1), ("one by one", 200, ONE_BY_ONE, 1))
        for name, first, count, batch in rounds:
            found[name] = await _round(node, send, load.bodies(node, first, count, batch), count)
        first = 200 + ONE_BY_ONE
        bodies = load.bodies(node, first, AGENTS - first, BATCH)
        found[f"{BATCH} a payload"] = await _round(node, send, bodies, AGENTS - first)
        found["memory"] = (node.empty_bytes, rss_bytes_of(node.pid))
        request = encode_envelope(p.FetchRids((PERSONALITY_TYPE,)), load.rid, node.rid, load.key)
        headers = {"content-type": "application/json"}
        async with http.post(node.url + p.RIDS, data=request, headers=headers) as reply:
            held = json.loads(await reply.read())["payload"]["rids"]
        assert len(held) == AGENTS, f"{len(held)} of {AGENTS} personalities arrived"
    return found


async def _round(node: Node, send: Any, bodies: list[bytes], events: int) -> tuple[float, float]:
    before, started = cpu_s_of(node.pid), time.perf_counter()
    for body in bodies:
        await send(body)
    ended = await _settled(node.pid)
    return events / (ended - started), (cpu_s_of(node.pid) - before) / events


async def _settled(pid: int) -> float:
    """When a process has last used the processor to speak of: 3 ticks within a second are its idling."""
    ended, cpu_s = time.perf_counter(), cpu_s_of(pid)
    while True:
        await asyncio.sleep(SETTLED_S)
        now_s = cpu_s_of(pid)
        if now_s - cpu_s < 0.05:
            return ended
        ended, cpu_s = time.perf_counter(), now_s


@contextmanager
def _running(command: list[str]) -> Iterator[Node]:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PRIV_KEY_PASSWORD": "benchmark"},
    )
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith('{"'))
        started = json.loads(line)
        yield Node(process.pid, started["rid"], started["url"], rss_bytes_of(process.pid))
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])
