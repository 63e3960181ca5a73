"""The mesh of a command when no hub runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from retinue.mesh.directory.listings import MemoryListings
from retinue.parts.opening import open_parts
from retinue.parts.process import Process
from retinue.runtime.launch import Start
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.mesh import open_mesh
from retinue.runtime.parts.finding.history import HistoryPart
from retinue.runtime.parts.finding.receipts import ReceiptsPart
from retinue.runtime.parts.messages import MessagesPart
from retinue.runtime.parts.policies import PoliciesPart
from retinue.runtime.parts.runs import ApprovalsPart
from retinue.runtime.parts.schedules import SchedulesPart
from retinue.runtime.serving import Stop
from retinue.settings import Settings
from retinue.storage.state import State


@asynccontextmanager
async def open_own_mesh(settings: Settings, state: State) -> AsyncIterator[Process]:
    """The hub's skills in this process, over the registries of the state; closed on leaving."""
    runs = LazyRuns(settings, state)
    start = Start(settings, state, lambda line: None, Stop())
    async with open_mesh(settings, state, MemoryListings(), open_runs=runs.open) as mesh:
        process = mesh.as_process("command", start)
        process.add(LazyRuns, runs)
        runs.hold_artifacts(mesh.artifacts)
        runs.share_reports(mesh.hub.starter.progress)
        parts = [
            PoliciesPart(),
            HistoryPart(),
            ReceiptsPart(),
            MessagesPart(),
            SchedulesPart(),
            ApprovalsPart(),
        ]
        # a process of agents keeps this mesh for long, so changed policies are loaded in it too
        async with open_parts(process, parts) as opened, opened.running():
            yield process
