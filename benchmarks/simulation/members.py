"""Members of a real mesh, each a process: a directory, its upkeep, and the exchange over Postgres."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import orjson
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retinue.core.record import Listing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.health.probe_sharing import ProbeSharing
from retinue.rpc.probe import probe
from retinue.runtime.many_hubs.exchange import MeshExchange
from retinue.runtime.many_hubs.registries import RegistryChanges
from retinue.runtime.many_hubs.verdicts import Findings, HealthChanges
from retinue.runtime.parts.upkeep import BackgroundTasks
from retinue.storage.mesh_news import MeshNews
from retinue.web.http_client import HttpClient
from tests.mesh.scripted import make_listing
from tests.ports import reserve_port
from tests.support.memory_source import MemorySource

SOURCE = "x://registry"
START_S = 30.0


@dataclass(slots=True)
class Member:
    """One member; `probe_all` and `look_at_all` are the parts of its upkeep that are measured alone."""

    directory: Directory
    agent_stats: AgentStatsTable
    sharing: ProbeSharing
    upkeep: BackgroundTasks
    exchange: MeshExchange
    http: HttpClient
    source: MemorySource
    cards: RegistryChanges

    async def probe_all(self) -> None:
        entries = self.directory.list_entries()
        await probe(self.directory, self.agent_stats, entries, self.http, timeout_s=5.0)

    async def look_at_all(self) -> None:
        self.sharing.set_members("alone", ("alone", "other"))
        for entry in self.directory.list_entries():
            self.agent_stats.has_seen(entry, 0.0)
            self.sharing.leaves(entry, 5.0, 100.0)


@asynccontextmanager
async def open_member(
    database: str, name: str, url: str, agents: int, *, refresh_s: float
) -> AsyncIterator[Member]:
    """A member with agents that the server at ``url`` answers for; nothing of it runs yet."""
    source = MemorySource(SOURCE, list_agents(url, agents))
    directory = Directory(MemoryListings(), [source])
    await directory.refresh()
    agent_stats, sharing = AgentStatsTable(), ProbeSharing("here")
    news = MeshNews(database, name, "hub", None)
    async with HttpClient() as http:
        upkeep = BackgroundTasks(
            directory, agent_stats, http, refresh_s=refresh_s, probe_timeout_s=5.0, sharing=sharing
        )
        cards = RegistryChanges(directory, [SOURCE])
        topics = [
            Findings(sharing, agent_stats),
            HealthChanges(directory, agent_stats, sharing, "here"),
            cards,
        ]
        exchange = MeshExchange(name, news, sharing, topics)
        yield Member(directory, agent_stats, sharing, upkeep, exchange, http, source, cards)
    await directory.aclose()


def list_agents(url: str, agents: int) -> Sequence[Listing]:
    """Listings of agents that are known to be healthy."""
    return [
        replace(
            make_listing(f"a{number}", url=f"{url}/a{number}", digest="sha256:1", reachable=True),
            source=SOURCE,
        )
        for number in range(agents)
    ]


async def run_member(database: str, name: str, url: str, agents: int, refresh_s: float) -> None:
    """Run a member; a line of input makes it print its processor time, or publish a card."""
    async with open_member(database, name, url, agents, refresh_s=refresh_s) as member:
        works = (member.upkeep.run(), member.exchange.run(), member.cards.read_pending())
        tasks = [asyncio.create_task(work) for work in works]
        member.directory.subscribe(lambda change: _tell_late(change.entry.name))
        _print({"started": name})
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := (await reader.readline()).decode().strip():
            if line == "cpu":
                _print({"cpu_s": time.process_time(), "shared": member.sharing.is_shared})
            elif line.startswith("late"):
                late = replace(make_listing(line, url=f"{url}/{line}", digest="sha256:2"), source=SOURCE)
                member.source.put(late)
            elif line.startswith("read"):
                await member.directory.reread_key(SOURCE, f"agents/{line.split()[1]}")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell_late(name: str) -> None:
    if name.startswith("late"):
        _print({"late": name, "at": time.time()})


def _print(value: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.buffer.flush()


class SmallServer:
    """One small server that answers for all agents, in a process of its own; it counts the probes."""

    def __init__(self) -> None:
        self.port = reserve_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> SmallServer:
        command = [sys.executable, "-m", "benchmarks.simulation.members", "server", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def count(self) -> int:
        """How many cards were asked for."""
        import urllib3

        return int(urllib3.request("GET", f"{self.url}/count").data)


def _serve(port: int) -> None:
    asked = 0

    async def show(request: Request) -> Response:
        nonlocal asked
        asked += 1
        name = request.path_params["name"]
        card = {"name": name, "url": "http://127.0.0.1:1", "version": "1", "skills": []}
        return Response(orjson.dumps(card), media_type="application/json")

    async def count(request: Request) -> Response:
        return Response(str(asked))

    app = Starlette(routes=[Route("/count", count), Route("/{name}/agent-card", show)])

    async def main() -> None:
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, lifespan="off"))
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        _print("ready")
        await task

    uvloop.run(main())


class Process:
    """A member in a process of its own."""

    def __init__(self, database: str, name: str, url: str, agents: int, refresh_s: float) -> None:
        arguments = ["member", database, name, url, str(agents), str(refresh_s)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.simulation.members", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        )
        self.read()

    def read(self) -> dict[str, object]:
        """The next line that is no log line."""
        assert self._process.stdout is not None
        while True:
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError("a member has ended")
            if line.startswith(b"{"):
                value: dict[str, object] = orjson.loads(line)
                return value

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def ask_cpu(self) -> dict[str, object]:
        self.send("cpu")
        return self.read()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def processes(database: str, count: int, url: str, agents: int, refresh_s: float) -> Iterator[list[Process]]:
    """Members, each in a process of its own."""
    members: list[Process] = []
    try:
        members.extend(Process(database, f"m{number}", url, agents, refresh_s) for number in range(count))
        yield members
    finally:
        for member in members:
            member.close()


if __name__ == "__main__":
    if sys.argv[1] == "server":
        _serve(int(sys.argv[2]))
    else:
        _, _, database, name, url, agents, refresh_s = sys.argv
        uvloop.run(run_member(database, name, url, int(agents), float(refresh_s)))
