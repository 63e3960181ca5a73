"""The calls in flight of a process as a part: a stopping process finishes them and refuses new calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from retinue.core.durations import render_duration
from retinue.mesh.admission import ProcessLimits
from retinue.parts.part import Opened, Part
from retinue.parts.process import Echo, Process
from retinue.runtime.serving import LAST_REQUESTS_S
from retinue.settings_tables import TimeoutTable

_LOOK_S = 0.02


class CallsPart(Part):
    """Waits for the calls in flight when the process stops.

    It is listed after everything that calls need, and before what invites callers, such as a card.
    """

    name = "calls"
    kinds = frozenset({"hub", "agent"})
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        limits = process.dispatcher.admission.limits
        table = process.tables.get(TimeoutTable)

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            try:
                yield
            finally:
                if table.leave_s:
                    shown = render_duration(table.leave_s)
                    process.echo(f"leaving: calls are answered for {shown}; stop again to end at once")
                    await asyncio.sleep(table.leave_s + LAST_REQUESTS_S)
                limits.is_stopping = True
                await finish_calls(limits, table.drain_s, process.echo)

        yield Opened(running=running)


async def finish_calls(limits: ProcessLimits, drain_s: float, echo: Echo) -> None:
    """Wait until no call is in flight, at most ``drain_s``. Steps of runs are left to other processes."""
    if (count := _count(limits)) == 0:
        return
    calls = "1 call" if count == 1 else f"{count:,} calls"
    echo(f"{calls} in flight: waiting up to {render_duration(drain_s)}; stop again to end at once")
    try:
        async with asyncio.timeout(drain_s):
            while _count(limits):
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        echo(f"cutting off {_describe(_count(limits))} after {render_duration(drain_s)}")


def _count(limits: ProcessLimits) -> int:
    return limits.in_flight - limits.steps_in_flight


def _describe(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"
