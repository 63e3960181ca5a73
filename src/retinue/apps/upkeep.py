"""What the hub does by itself: reads the registries again and asks agents whether they are there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from retinue.core.record import Listing
from retinue.drivers.http import HttpClient
from retinue.drivers.probes import probe
from retinue.mesh.directory import Directory
from retinue.mesh.pulse import Pulses

_log = structlog.get_logger("retinue.upkeep")

_RETRY_S = 5.0
"""How often an agent that does not answer well is asked again; the others are asked at each refresh."""


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

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat(self._refresh, self._refresh_s))
            group.create_task(self._repeat(self._ask_the_lost, _RETRY_S))

    async def _refresh(self) -> None:
        await self._directory.refresh(thorough=False)
        if self._beside is not None:
            await self._beside()
        await self._probe(self._directory.list_all())

    async def _ask_the_lost(self) -> None:
        await self._directory.ensure_fresh()
        lost = [one for one in self._directory.list_all() if one.health != "healthy"]
        await self._probe(lost)

    async def _probe(self, listings: Iterable[Listing]) -> None:
        timeout_s = self._probe_timeout_s
        await probe(self._directory, self._pulses, listings, self._http, timeout_s=timeout_s)

    @staticmethod
    async def _repeat(work: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001 - one failed round must not end the upkeep
                _log.exception("upkeep failed")
            await asyncio.sleep(every_s)
