"""Runs the background tasks of a hub or worker: refreshes of the directory and health checks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.parts.part import LivePart
from retinue.parts.process import Tables
from retinue.rpc.probe import probe
from retinue.settings_tables import DirectoryTable
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
        self.refresh_s = refresh_s
        """Seconds between two refreshes; a change applies after the current one."""
        self._probe_timeout_s = probe_timeout_s
        self._beside = on_refresh

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
            group.create_task(self._repeat(self._probe_unhealthy, lambda: _RETRY_S))

    async def _refresh(self) -> None:
        await self._directory.refresh(thorough=False)
        if self._beside is not None:
            await self._beside()
        await self._probe([entry async for page in self._directory.iterate_pages() for entry in page])

    async def _probe_unhealthy(self) -> None:
        await self._directory.ensure_fresh()
        unhealthy = [
            entry
            async for page in self._directory.iterate_pages()
            for entry in page
            if entry.health != "healthy"
        ]
        await self._probe(unhealthy)

    async def _probe(self, agents: Sequence[Entry]) -> None:
        timeout_s = self._probe_timeout_s
        await probe(self._directory, self._agent_stats, agents, self._http, timeout_s=timeout_s)

    @staticmethod
    async def _repeat(work: Callable[[], Awaitable[None]], every_s: Callable[[], float]) -> None:
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001 - one failed round must not end the others
                _log.exception("upkeep failed")
            await asyncio.sleep(every_s())
