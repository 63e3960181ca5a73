"""The process of a worker: executes runs, and serves probes and metrics if it has a port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext

from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.observing.events import log_lines
from retinue.parts.installed import list_parts_of
from retinue.parts.part import Opened, Part
from retinue.parts.process import Echo, Process
from retinue.runtime.access import hub_access
from retinue.runtime.launch import Address, Core, Launch, ProcessIdentity, SettingsSource, Start
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.many_hubs.part import ManyHubsPart
from retinue.runtime.mesh import open_mesh
from retinue.runtime.parts.hub_moments import FirstReadingPart
from retinue.runtime.parts.messages import MessagesPart
from retinue.runtime.parts.policies import PoliciesPart
from retinue.runtime.parts.protocols import ProbesPart
from retinue.runtime.parts.runs import RunsPart
from retinue.runtime.parts.schedules import SchedulesPart
from retinue.runtime.parts.storage import StoragePart
from retinue.runtime.parts.upkeep import UpkeepPart
from retinue.runtime.parts.workflow_hints import WorkflowHintsPart
from retinue.runtime.run_process import run_process
from retinue.settings import Settings
from retinue.storage.run_store import RunStore
from retinue.storage.state import State

SERVICE = "worker"
"""The name of its metrics in OpenTelemetry."""


async def run_worker(
    address: Address | None,
    settings: Settings,
    state: State,
    echo: Echo,
    reread: Callable[[], Settings] | None = None,
) -> int:
    """Run workflows until asked to stop; returns the exit code. At SIGHUP it reads its settings again.

    Without an address it serves nothing. Raises PortInUseError, InvalidSettingError, StateDamagedError.
    """
    return await run_process(
        Launch(
            identity=ProcessIdentity("worker", "worker", SERVICE),
            source=SettingsSource(settings, reread),
            state=state,
            echo=echo,
            core=Core(hold_state=nullcontext, open=open_worker, access_of=hub_access),
            parts=worker_parts(settings),
            address=address,
        )
    )


def worker_parts(settings: Settings) -> Sequence[Part]:
    """The parts of a worker, in the order in which they run unless their needs say otherwise."""
    return [
        PoliciesPart(),
        WorkerLinePart(),
        MessagesPart(),
        ProbesPart(),
        StoragePart(),
        *list_parts_of("worker", settings.parts.off),
        FirstReadingPart(),
        UpkeepPart(),
        ManyHubsPart(),
        WorkflowHintsPart(),
        RunsPart(),
        SchedulesPart(),
    ]


@asynccontextmanager
async def open_worker(start: Start) -> AsyncIterator[Process]:
    """The core of a worker: a directory in memory, its dispatcher, and the runs."""
    settings, state = start.settings, start.state
    RunStore(settings.database, state.runs).check()
    runs = LazyRuns(settings, state)
    async with open_mesh(settings, state, MemoryListings(), open_runs=runs.open) as mesh:
        mesh.events.subscribe_batches(log_lines)
        process = mesh.as_process("worker", start)
        process.add(LazyRuns, runs)
        runs.hold_artifacts(mesh.artifacts)
        runs.share_reports(mesh.hub.starter.progress)
        try:
            yield process
        finally:
            mesh.events.flush()


class WorkerLinePart(Part):
    """Prints where the worker answers, if it serves probes."""

    name = "worker-line"
    kinds = frozenset({"worker"})
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            if process.own_url is not None:
                process.echo(f"worker at {process.own_url}{process.advertised}")
            yield

        yield Opened(running=running)
