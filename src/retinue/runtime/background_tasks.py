"""The background tasks of a hub or worker: refreshes of the directory and health checks.

A worker has nothing else besides its runs, so its process is here too (`run_worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import structlog

from retinue.execute.probe import probe
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.entry import Entry
from retinue.mesh.events import log_line
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.runtime.mesh import LazyRuns, Mesh, check_runs, open_mesh
from retinue.runtime.serving import Echo, Stop, end_task
from retinue.runtime.supervisor import report_ready
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.web.http_client import HttpClient

_log = structlog.get_logger("retinue.background")

_RETRY_S = 5.0
"""Interval between two health checks of an unhealthy agent; healthy ones are checked at each refresh."""


async def watch_folder(state: State, on_loss: Callable[[], None], *, every_s: float = 2.0) -> None:
    """Call ``on_loss`` once when the state folder is deleted or replaced.

    The open database would otherwise continue to accept writes to a deleted file.
    """
    folder = state.identity()
    while state.identity() == folder:
        await asyncio.sleep(every_s)
    on_loss()


class BackgroundTasks:
    """Refreshes one directory and health-checks its agents; ``run`` continues until it is cancelled.

    ``on_refresh`` is called after each refresh of the directory.
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
    ) -> None:
        self._directory = directory
        self._agent_stats = agent_stats
        self._http = http
        self._refresh_s = refresh_s
        self._probe_timeout_s = probe_timeout_s
        self._beside = on_refresh

    @classmethod
    def of(
        cls, mesh: Mesh, settings: Settings, *, on_refresh: Callable[[], Awaitable[None]] | None = None
    ) -> BackgroundTasks:
        """The background tasks of a process's mesh, as configured."""
        return cls(
            mesh.directory,
            mesh.dispatcher.agent_stats,
            mesh.http,
            refresh_s=settings.directory.refresh_s,
            probe_timeout_s=settings.timeouts.probe_s,
            on_refresh=on_refresh,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self._refresh, self._refresh_s))
            group.create_task(self._repeat(self._probe_unhealthy, _RETRY_S))

    async def _refresh(self) -> None:
        await self._directory.refresh(thorough=False)
        if self._beside is not None:
            await self._beside()
        await self._probe([one async for page in self._directory.iterate_pages() for one in page])

    async def _probe_unhealthy(self) -> None:
        await self._directory.ensure_fresh()
        unhealthy = [
            one async for page in self._directory.iterate_pages() for one in page if one.health != "healthy"
        ]
        await self._probe(unhealthy)

    async def _probe(self, agents: Sequence[Entry]) -> None:
        timeout_s = self._probe_timeout_s
        await probe(self._directory, self._agent_stats, agents, self._http, timeout_s=timeout_s)

    @staticmethod
    async def _repeat(work: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001 - one failed round must not end the others
                _log.exception("upkeep failed")
            await asyncio.sleep(every_s)


async def run_worker(settings: Settings, state: State, echo: Echo) -> int:
    """Run workflows until asked to stop; returns the exit code."""
    async with AsyncExitStack() as stack:
        stop = Stop()
        stop.on_signals()
        supervisor_line = stop.with_supervisor()
        check_runs(settings, state)
        runs = LazyRuns(settings, state)
        mesh = await stack.enter_async_context(
            open_mesh(settings, state, MemoryListings(), open_runs=runs.open)
        )
        mesh.events.subscribe_later(log_line)
        stack.callback(mesh.events.flush)
        # the registries may be unreachable by the time that a run starts here
        await mesh.directory.ensure_fresh()
        background = asyncio.create_task(BackgroundTasks.of(mesh, settings).run())
        stack.push_async_callback(end_task, background)
        launching = asyncio.create_task(runs.launch(echo))
        stack.push_async_callback(end_task, launching)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({launching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.asked:
            echo(f"worker on {runs.place}")
            report_ready(supervisor_line, {"name": "worker"})
        await stopping
        echo(f"stopping: {stop.reason}")
    return 0
