"""The directory of a hub or worker as a part: refreshes, health checks, figures and missing sources."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import structlog

from retinue.core.errors import RetinueError
from retinue.core.record import Health
from retinue.hub.mesh_map import MeshParts, add_mesh_skill
from retinue.hub.resources import WorkflowPrompts
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.entry import Entry
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.health.probe_schedule import FIRST_WAIT_S, ProbeSchedule
from retinue.mesh.health.probe_sharing import ProbeSharing
from retinue.mesh.observing.metrics import BoundedNames, Figures
from retinue.oci.client.http_registry import HttpRegistry
from retinue.parts.part import FirstReading, LivePart, Opened, Part, ReadinessProblem
from retinue.parts.process import Process, Tables
from retinue.rpc.probe import probe
from retinue.runtime.mesh import Registries
from retinue.runtime.serving import in_background
from retinue.settings_tables import DirectoryTable, TimeoutTable
from retinue.web.http_client import HttpClient

_log = structlog.get_logger("retinue.background")

WATCH_AGAIN_S = 5.0
"""Seconds until a hub that did not answer is asked again to tell of changes."""

_LOOK_S = FIRST_WAIT_S
"""Interval between two looks at the unhealthy agents; healthy ones are checked at each refresh."""


class UpkeepPart(Part):
    """Refreshes the directory and checks the health of its agents for as long as the process serves."""

    name = "upkeep"
    kinds = frozenset({"hub", "worker"})
    runs_after = (FirstReading,)
    gives = ProbeSharing
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        sharing = ProbeSharing(name_place())
        directory, agent_stats = process.get(Directory), process.dispatcher.agent_stats
        upkeep = BackgroundTasks(
            directory,
            agent_stats,
            process.http,
            refresh_s=process.tables.get(DirectoryTable).refresh_s,
            probe_timeout_s=process.tables.get(TimeoutTable).probe_s,
            on_refresh=process.get(WorkflowPrompts).refresh if process.kind == "hub" else None,
            sharing=sharing,
        )
        watches = [
            RegistryWatch(directory, name, registry.wait_for_change)
            for name, registry in process.get(Registries).by_name.items()
            if isinstance(registry, HttpRegistry)
        ]
        names = BoundedNames()

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            async with in_background(upkeep.run(), *(watch.run() for watch in watches)):
                yield

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
            healths = directory.count_healths()
            for state in get_args(Health):
                figures.put("retinue_agents", healths.get(state, 0), state)
            for name, failure in directory.source_failures().items():
                figures.put("retinue_source_up", float(failure is None), names(name))
            _put_breakers(figures, agent_stats)

        yield Opened(
            product=sharing,
            live=(upkeep.live_part(),),
            running=running,
            problems=problems,
            figures=figures,
        )


def _put_breakers(figures: Figures, agent_stats: AgentStatsTable) -> None:
    agents, open_ones = agent_stats.count_breakers()
    figures.put("retinue_circuit_breakers", len(open_ones), "open")
    figures.put("retinue_circuit_breakers", agents - len(open_ones), "closed")
    names = BoundedNames()
    figures.put_all("retinue_circuit_breaker_open", {(names(name),): 1.0 for name in open_ones})


def name_place() -> str:
    """A name of the network in which the loopback addresses of this process are."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return platform.node()


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


class RegistryWatch:
    """Reads a registry that another hub serves as soon as that hub tells of a change.

    ``wait_for_change`` is `HttpRegistry.wait_for_change`. Other registries tell nothing, and are left.
    """

    def __init__(
        self, directory: Directory, source: str, wait_for_change: Callable[[str], Awaitable[str | None]]
    ) -> None:
        self._directory = directory
        self._source = source
        self._wait_for_change = wait_for_change

    async def run(self) -> None:
        """Watch until the registry turns out to tell nothing."""
        known = ""
        while True:
            try:
                stamp = await self._wait_for_change(known)
                if stamp is None:
                    return
                if stamp != known:
                    await self._directory.sources.read(self._source)
                    known = stamp
            except RetinueError as error:
                _log.debug("no news of a registry", registry=self._source, error=error.message)
                known = ""  # what happened meanwhile is read again
                await asyncio.sleep(WATCH_AGAIN_S)


class BackgroundTasks:
    """Refreshes one directory and health-checks its agents; ``run`` continues until it is cancelled.

    ``on_refresh`` is called after each refresh of the directory. ``sharing`` has the probes of this process.
    """

    def __init__(
        self,
        directory: Directory,
        agent_stats: AgentStatsTable,
        http: HttpClient,
        *,
        refresh_s: float,
        probe_timeout_s: float,
        on_refresh: Callable[[], Awaitable[None]] | None = None,
        sharing: ProbeSharing | None = None,
    ) -> None:
        self._directory = directory
        self._agent_stats = agent_stats
        self._http = http
        self.refresh_s = refresh_s
        """Seconds between two refreshes; a change applies after the current one."""
        self._probe_timeout_s = probe_timeout_s
        self._beside = on_refresh
        self._schedule = ProbeSchedule()
        self._sharing = sharing or ProbeSharing()
        directory.subscribe(self._note_change)

    def live_part(self) -> LivePart:
        """The settings of these tasks and of their directory that apply while they run."""

        def prepare(tables: Tables) -> Callable[[], None]:
            def apply() -> None:
                table = tables.get(DirectoryTable)
                self._directory.sources.ttl_s, self.refresh_s = table.ttl_s, table.refresh_s

            return apply

        return LivePart(("directory.ttl_s", "directory.refresh_s"), prepare)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self._refresh, lambda: self.refresh_s))
            group.create_task(self._repeat(self._probe_unhealthy, lambda: _LOOK_S))

    async def _refresh(self) -> None:
        await self._directory.refresh(thorough=False)
        if self._beside is not None:
            await self._beside()
        # a call that was answered a short time ago is a probe
        lately_s = self.refresh_s / 2
        quiet = [
            entry
            async for page in self._directory.iterate_pages()
            for entry in page
            if entry.health == "healthy"
            and not self._agent_stats.has_seen(entry, lately_s)
            and not self._sharing.leaves(entry, lately_s, self._patience_s)
        ]
        await self._probe([*quiet, *await self._list_due()])

    async def _probe_unhealthy(self) -> None:
        await self._directory.ensure_fresh()
        await self._probe(await self._list_due())

    async def _list_due(self) -> list[Entry]:
        """The agents that are not healthy and are asked now."""
        is_due, patience_s = self._schedule.test_due(), self._patience_s

        def concerns(agent: Entry) -> bool:
            is_asked = agent.url is not None and is_due(agent)
            return is_asked and not self._sharing.leaves(agent, 0.0, patience_s)

        return await self._directory.list_unhealthy(concerns)

    @property
    def _patience_s(self) -> float:
        """Twice the longest time between two probes of one agent."""
        return 2 * self.refresh_s + _LOOK_S

    async def _probe(self, agents: Sequence[Entry]) -> None:
        await probe(
            self._directory,
            self._agent_stats,
            agents,
            self._http,
            timeout_s=self._probe_timeout_s,
            schedule=self._schedule,
            sharing=self._sharing,
            longest_s=self.refresh_s,
        )

    def _note_change(self, change: ListingChange) -> None:
        if change.kind == "removed" or not change.measured:
            self._schedule.forget(change.entry.id)  # a card that was published anew is a sign of life
            self._sharing.forget(change.entry)
            for left in change.list_left():
                self._sharing.forget(left)

    @staticmethod
    async def _repeat(work: Callable[[], Awaitable[None]], every_s: Callable[[], float]) -> None:
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001 - one failed round must not end the others
                _log.exception("upkeep failed")
            await asyncio.sleep(every_s())
