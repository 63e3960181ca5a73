"""The process of a worker: runs workflows of a shared database, without endpoints."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.events import log_line
from retinue.runtime.background_tasks import BackgroundTasks
from retinue.runtime.mesh import LazyRuns, check_runs, open_mesh
from retinue.runtime.serving import Echo, Stop, end_task
from retinue.runtime.supervisor import report_ready
from retinue.settings import Settings
from retinue.storage.state import State


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
        mesh.events.subscribe(log_line)
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
