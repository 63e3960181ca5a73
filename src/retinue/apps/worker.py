"""A worker: a process that has no doors and runs workflows beside the hubs on the same database."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from retinue.apps.agent import Say
from retinue.apps.children import say_ready
from retinue.apps.late_runs import LateRuns
from retinue.apps.mesh import open_mesh
from retinue.apps.serving import Stop, end_task
from retinue.apps.upkeep import Upkeep
from retinue.drivers.state import State
from retinue.mesh.events import log_line
from retinue.mesh.listings import MemoryListings
from retinue.settings import Settings


async def run_worker(settings: Settings, state: State, say: Say) -> int:
    """Run what workflows there are until told to stop; returns the exit code."""
    async with AsyncExitStack() as stack:
        stop = Stop()
        stop.on_signals()
        supervisor_line = stop.with_supervisor()
        mesh = await stack.enter_async_context(open_mesh(settings, state, MemoryListings(), durable=True))
        mesh.events.subscribe(log_line)
        # whoever lists the agents may be gone by the time that a run comes here
        await mesh.directory.ensure_fresh()
        upkeep = asyncio.create_task(Upkeep.of(mesh, settings).run())
        stack.push_async_callback(end_task, upkeep)
        assert isinstance(mesh.runs, LateRuns)
        launching = asyncio.create_task(mesh.runs.keep_launching(say))
        stack.push_async_callback(end_task, launching)
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({launching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.asked:
            say(f"worker on {mesh.runs.place}")
            say_ready(supervisor_line, {"name": "worker"})
        await stopping
        say(f"stopping: {stop.reason}")
    return 0
