"""The directory of a hub or worker as a part: refreshes, health checks, figures and missing sources."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import get_args

from retinue.core.record import Health
from retinue.hub.mesh_map import MeshParts, add_mesh_skill
from retinue.hub.resources import WorkflowPrompts
from retinue.mesh.directory.directory import Directory
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.observing.metrics import BoundedNames, Figures
from retinue.parts.part import FirstReading, Opened, Part, ReadinessProblem
from retinue.parts.process import Process
from retinue.runtime.background_tasks import BackgroundTasks
from retinue.runtime.serving import end_task
from retinue.settings_tables import DirectoryTable, TimeoutTable


class UpkeepPart(Part):
    """Refreshes the directory and checks the health of its agents for as long as the process serves."""

    name = "upkeep"
    kinds = frozenset({"hub", "worker"})
    runs_after = (FirstReading,)
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        directory, agent_stats = process.get(Directory), process.dispatcher.agent_stats
        upkeep = BackgroundTasks(
            directory,
            agent_stats,
            process.http,
            refresh_s=process.tables.get(DirectoryTable).refresh_s,
            probe_timeout_s=process.tables.get(TimeoutTable).probe_s,
            on_refresh=process.get(WorkflowPrompts).refresh if process.kind == "hub" else None,
        )
        names = BoundedNames()

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            background = asyncio.create_task(upkeep.run())
            try:
                yield
            finally:
                await end_task(background)

        async def problems() -> Sequence[ReadinessProblem]:
            return [
                ReadinessProblem(
                    "source",
                    name,
                    f"{error.message} — {error.remedy}" if error.remedy else error.message,
                    is_fatal=False,
                )
                for name, error in directory.source_failures().items()
                if error is not None
            ]

        async def figures(figures: Figures) -> None:
            health = Counter(entry.health for entry in directory.list_entries())
            for state in get_args(Health):
                figures.put("retinue_agents", health[state], state)
            for name, failure in directory.source_failures().items():
                figures.put("retinue_source_up", float(failure is None), names(name))
            _put_breakers(figures, agent_stats)

        yield Opened(live=(upkeep.live_part(),), running=running, problems=problems, figures=figures)


def _put_breakers(figures: Figures, agent_stats: AgentStatsTable) -> None:
    breakers = agent_stats.list_breakers()
    open_ones = [name for name, is_open in breakers if is_open]
    figures.put("retinue_circuit_breakers", len(open_ones), "open")
    figures.put("retinue_circuit_breakers", len(breakers) - len(open_ones), "closed")
    names = BoundedNames()
    figures.put_all("retinue_circuit_breaker_open", {(names(name),): 1.0 for name in open_ones})


class MeshMapPart(Part):
    """Offers ``show_mesh``; other parts tell their links by `NetworkLinks`."""

    name = "mesh-map"
    kinds = frozenset({"hub"})
    needs = (MeshParts,)
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        directory, access, parts = process.get(Directory), process.dispatcher.access, process.get(MeshParts)
        yield Opened(skills=lambda agent: add_mesh_skill(agent, directory, access, parts))
