"""What a hub or worker does by itself: reads the registries again and asks agents whether they are there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from retinue.apps.mesh import Mesh
from retinue.drivers.http import HttpClient
from retinue.drivers.probes import probe
from retinue.drivers.state import State
from retinue.mesh.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.pulse import Pulses
from retinue.settings import Settings

_log = structlog.get_logger("retinue.upkeep")

_RETRY_S = 5.0
"""How often an agent that does not answer well is asked again; the others are asked at each refresh."""


async def watch_folder(state: State, on_loss: Callable[[], None], *, every_s: float = 2.0) -> None:
    """Call ``on_loss`` once when the state folder is no longer the one that stands there now.

    Its database stays open and would go on taking what nobody can ever read again.
    """
    folder = state.identity()
    while state.identity() == folder:
        await asyncio.sleep(every_s)
    on_loss()


class Upkeep:
    """Background work over one directory; ``run`` goes on until it is cancelled.

    ``beside`` is what else is to be read again with the registries.
    """

    def __init__(
        self,
        directory: Directory,
        pulses: Pulses,
        http: HttpClient,
        *,
        refresh_s: float,
        probe_timeout_s: float,
        beside: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._directory = directory
        self._pulses = pulses
        self._http = http
        self._refresh_s = refresh_s
        self._probe_timeout_s = probe_timeout_s
        self._beside = beside

    @classmethod
    def of(
        cls, mesh: Mesh, settings: Settings, *, beside: Callable[[], Awaitable[None]] | None = None
    ) -> Upkeep:
        """The upkeep of a process's mesh, as configured."""
        return cls(
            mesh.directory,
            mesh.dispatcher.pulses,
            mesh.http,
            refresh_s=settings.directory.refresh_s,
            probe_timeout_s=settings.timeouts.probe_s,
            beside=beside,
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self._refresh, self._refresh_s))
            group.create_task(self._repeat(self._ask_the_lost, _RETRY_S))

    async def _refresh(self) -> None:
        await self._directory.refresh(thorough=False)
        if self._beside is not None:
            await self._beside()
        await self._probe([one async for page in self._directory.iterate_pages() for one in page])

    async def _ask_the_lost(self) -> None:
        await self._directory.ensure_fresh()
        lost = [
            one async for page in self._directory.iterate_pages() for one in page if one.health != "healthy"
        ]
        await self._probe(lost)

    async def _probe(self, agents: Sequence[Entry]) -> None:
        timeout_s = self._probe_timeout_s
        await probe(self._directory, self._pulses, agents, self._http, timeout_s=timeout_s)

    @staticmethod
    async def _repeat(work: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001 - one failed round must not end the upkeep
                _log.exception("upkeep failed")
            await asyncio.sleep(every_s)
