"""Durable runs, opened with the first question: the engine's import takes longer than most commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import structlog

from retinue.core.errors import StateError
from retinue.drivers.state import State
from retinue.settings import Settings
from retinue.workflows.run_records import (
    RunEvent,
    RunRecord,
    RunRequest,
    RunStatus,
    StepRecord,
)
from retinue.workflows.runs import Accept, Body

if TYPE_CHECKING:
    from retinue.drivers.durable.runs import DurableRuns

_log = structlog.get_logger("retinue.runs")

AGAIN_S = 5.0
"""How soon a database that did not answer is asked again."""


class LateRuns:
    """The runs of a state folder or of the configured database, as ``DurableRuns`` has them."""

    def __init__(self, body: Body, settings: Settings, state: State) -> None:
        self._body = body
        self._settings = settings
        self._state = state
        self._opening = asyncio.Lock()
        self._opened: DurableRuns | None = None

    @property
    def place(self) -> str:
        """Where the runs are, for a person: without user and password."""
        scheme, mark, rest = (self._settings.database or str(self._state.runs)).partition("://")
        return scheme + mark + rest.rpartition("@")[2]

    async def launch(self) -> None:
        """Begin to run what waits; raises StateError where the database does not answer."""
        await (await self._open()).launch()

    async def keep_launching(self, say: Callable[[str], None]) -> None:
        """As `launch`, as soon as the database answers; ``say`` hears once that it does not."""
        told = False
        while True:
            try:
                await self.launch()
            except StateError as error:
                _log.warning("workflows do not run", error=error.message)
                if not told:
                    say(f"workflows wait: {error.message}; {error.remedy}")
                    told = True
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def start(self, request: RunRequest, *, run_id: str) -> RunRecord:
        return await (await self._open()).start(request, run_id=run_id)

    async def get(self, run_id: str) -> RunRecord:
        return await (await self._open()).get(run_id)

    async def list_all(
        self,
        *,
        status: RunStatus | None = None,
        name: str | None = None,
        children: bool = False,
        limit: int | None = None,
        accept: Accept | None = None,
    ) -> tuple[RunRecord, ...]:
        runs = await self._open()
        return await runs.list_all(status=status, name=name, children=children, limit=limit, accept=accept)

    async def finish(self, run_id: str) -> RunRecord:
        return await (await self._open()).finish(run_id)

    async def cancel(self, run_id: str) -> RunRecord:
        return await (await self._open()).cancel(run_id)

    async def resume(self, run_id: str) -> RunRecord:
        return await (await self._open()).resume(run_id)

    async def fork(self, run_id: str, *, from_step: str, new_run_id: str) -> RunRecord:
        return await (await self._open()).fork(run_id, from_step=from_step, new_run_id=new_run_id)

    async def signal(self, run_id: str, topic: str, value: Any) -> None:
        await (await self._open()).signal(run_id, topic, value)

    async def count_signals(self, run_id: str, topic: str) -> int:
        return await (await self._open()).count_signals(run_id, topic)

    async def list_steps(self, run_id: str) -> tuple[StepRecord, ...]:
        return await (await self._open()).list_steps(run_id)

    async def list_events(self, run_id: str, *, after: int = 0) -> tuple[RunEvent, ...]:
        return await (await self._open()).list_events(run_id, after=after)

    async def follow(self, run_id: str, *, after: int = 0) -> AsyncIterator[RunEvent]:
        runs = await self._open()
        async for event in runs.follow(run_id, after=after):
            yield event

    async def leave(self) -> None:
        """Run nothing any more; what runs here goes on where it is taken up next."""
        if self._opened is not None:
            await self._opened.leave()

    async def aclose(self) -> None:
        """Let go of the runs; they go on where they are taken up next."""
        if self._opened is not None:
            await self._opened.aclose()

    async def _open(self) -> DurableRuns:
        async with self._opening:
            if self._opened is None:
                durable = await asyncio.to_thread(import_module, "retinue.drivers.durable.runs")
                table = self._settings.runs
                self._opened = durable.DurableRuns(
                    self._body,
                    url=self._settings.database or f"sqlite:///{self._state.runs}",
                    nodes=self._state.nodes,
                    options=durable.DurableOptions(
                        lease_s=table.lease_s,
                        concurrency=table.concurrency,
                        keep=table.keep,
                        keep_days=table.keep_days,
                    ),
                )
            return self._opened
