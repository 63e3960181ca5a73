"""What a hub spends on 10,000 agents that do not answer, once it asks them as rarely as it ever does.

The agents are at ports of this machine where nobody listens. The time is processor time of the process, so
other programs disturb it little.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import orjson
import uvloop

from benchmarks.figures import Figure
from retinue.core.record import Candidate, Health, Listing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.kept_stats import keep_stats
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.health.probe_sharing import ProbeSharing
from retinue.runtime.parts.upkeep import BackgroundTasks
from retinue.settings_tables import DirectoryTable
from retinue.web.http_client import HttpClient
from tests.mesh.scripted import make_listing
from tests.ports import reserve_port
from tests.support.memory_source import MemorySource

AGENTS = 10_000
BACK_OFF_S = 100.0
"""After this time each agent has failed often enough."""

MEASURED_S = 60.0
TARGET_PERCENT = 1.0


def measure() -> list[Figure]:
    command = [sys.executable, "-m", "benchmarks.dead_agents"]
    percent, probes = orjson.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return [
        Figure(f"{AGENTS:,} dead agents, share of a core", percent, "%", target=TARGET_PERCENT),
        Figure("the same, agents asked a second", probes, "/s"),
    ]


class CountedProbes(ProbeSharing):
    """Counts the probes of a process that shares none."""

    count = 0

    def note(self, agent: Candidate, health: Health) -> None:
        self.count += 1
        super().note(agent, health)


async def run() -> tuple[float, float]:
    """Percent of a core, and agents that are asked a second."""
    directory = Directory(MemoryListings(), [MemorySource("x://bench", list_dead())])
    await directory.refresh()
    directory.sources.ttl_s = 3600.0
    async with HttpClient() as http:
        probes = CountedProbes("here")
        upkeep = BackgroundTasks(
            directory,
            keep_stats(directory, AgentStatsTable()),
            http,
            refresh_s=DirectoryTable().refresh_s,
            probe_timeout_s=2.0,
            sharing=probes,
        )
        task = asyncio.create_task(upkeep.run())
        await asyncio.sleep(BACK_OFF_S)
        assert len(await directory.list_unhealthy()) == AGENTS
        asked = probes.count
        worked_s, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(MEASURED_S)
        spent_s = time.perf_counter() - began
        share = (time.process_time() - worked_s) / spent_s
        task.cancel()
        await asyncio.wait([task])
    await directory.aclose()
    return share * 100, (probes.count - asked) / spent_s


def list_dead() -> Sequence[Listing]:
    url = f"http://127.0.0.1:{reserve_port()}"
    return [
        replace(make_listing(f"a{number}", url=f"{url}/a{number}", digest="sha256:1"), source="x://bench")
        for number in range(AGENTS)
    ]


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(uvloop.run(run())))
