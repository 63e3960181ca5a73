"""Passes on what the steps of a run report: to the caller that waits for the run, or in a reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from retinue.authoring.context import Context
from retinue.workflows.run_progress import RunProgress, StepReport

LOOK_S = 0.1
"""The interval at which the reports of a run are looked at; pieces of a text that came meanwhile are one."""


Report = Callable[[float | None, str], Awaitable[None]]


@asynccontextmanager
async def passed_on(progress: RunProgress, run_id: str, ctx: Context) -> AsyncIterator[Report]:
    """While the body runs, the reports of a run go to the caller of ``ctx``; the last ones at its end.

    Gives a function for further progress, before which all reports so far are sent.
    """
    passing = _Passing(progress, run_id, ctx)
    task = asyncio.create_task(passing.go_on())
    try:
        yield passing.report
        passing.is_over.set()
        await task
    finally:
        task.cancel()


class _Passing:
    """Sends the reports of one run to one caller, from now on."""

    def __init__(self, progress: RunProgress, run_id: str, ctx: Context) -> None:
        self.is_over = asyncio.Event()
        self._progress = progress
        self._run_id = run_id
        self._ctx = ctx
        self._sent = progress.last(run_id)
        self._sending = asyncio.Lock()

    async def go_on(self) -> None:
        """Send the reports until the run is over."""
        while not self.is_over.is_set():
            self._progress.watch(self._run_id)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self.is_over.wait()
            await self._send()
        # what came while that was sending
        await self._progress.catch_up(self._run_id)
        await self._send()

    async def report(self, fraction: float | None, message: str) -> None:
        """Report progress of the run itself."""
        await self._progress.catch_up(self._run_id)
        await self._send()
        await self._ctx.progress(fraction, message)

    async def _send(self) -> None:
        async with self._sending:
            for report in self._progress.list_after(self._run_id, self._sent):
                self._sent = report.number
                if report.piece is not None:
                    await self._ctx.pass_on(report.piece)
                else:
                    await self._ctx.progress(None, _describe(report))


def _describe(report: StepReport) -> str:
    share = "" if report.fraction is None else f"{report.fraction:.0%}"
    return f"{report.step}: {' '.join(part for part in (share, report.message) if part) or 'running'}"
