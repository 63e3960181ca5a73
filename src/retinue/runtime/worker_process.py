"""The process of a worker: executes runs, and serves probes and metrics where it was given a port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from starlette.routing import Router
from starlette.types import ASGIApp

from retinue.core.errors import InvalidSettingError
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.events import log_lines
from retinue.rpc.server import health_route
from retinue.runtime.access import (
    OnChecks,
    advertised,
    check_address,
    guarded,
    hub_access,
    protected_resource,
)
from retinue.runtime.background_tasks import BackgroundTasks
from retinue.runtime.configuration_reload import ConfigurationReload, dispatcher_parts, endpoint_part
from retinue.runtime.factories import http_limits
from retinue.runtime.mesh import LazyRuns, Mesh, check_runs, open_mesh
from retinue.runtime.process_state import ProcessState
from retinue.runtime.serving import Echo, Stop, bind, end_task, serving, url_of
from retinue.runtime.supervisor import report_ready
from retinue.settings import Settings, environment
from retinue.storage.state import State
from retinue.web.rejections import metadata_routes

SERVICE = "worker"
"""The name of its metrics in OpenTelemetry."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker runs; with ``port`` None it serves nothing, with 0 it takes any free port."""

    host: str = "127.0.0.1"
    port: int | None = None
    advertise: str | None = None
    insecure_bind: bool = False


async def run_worker(
    options: WorkerOptions,
    settings: Settings,
    state: State,
    echo: Echo,
    reread: Callable[[], Settings] | None = None,
) -> int:
    """Run workflows until asked to stop; returns the exit code. At SIGHUP it reads its settings anew.

    Raises PortInUseError, InvalidSettingError, StateDamagedError.
    """
    async with AsyncExitStack() as stack:
        configured = settings
        listener = None
        if options.port is not None:
            check_address(options.host, settings, insecure_ok=options.insecure_bind)
            listener = bind(options.host, options.port)
            settings = advertised(settings, options.advertise)
            stack.callback(listener.close)
        elif options.advertise is not None:
            raise InvalidSettingError(
                "worker.advertise", "a worker without a port serves nothing", remedy="add --port N"
            )
        stop = Stop()
        stop.on_signals()
        supervisor_line = stop.with_supervisor()
        check_runs(settings, state)
        runs = LazyRuns(settings, state)
        mesh = await stack.enter_async_context(
            open_mesh(settings, state, MemoryListings(), open_runs=runs.open)
        )
        mesh.events.subscribe_batches(log_lines)
        stack.callback(mesh.events.flush)
        reload = ConfigurationReload(
            configured, reread or (lambda: configured), dispatcher_parts(mesh.dispatcher, hub_access), echo
        )
        if reread is not None:
            stop.on_hangup = reload
        process = ProcessState.of_mesh("worker", mesh, runs, lambda: stop.asked)
        process.needs_database = settings.database is not None
        await stack.enter_async_context(process.exporting(SERVICE, environment()))
        if listener is not None:
            url = options.advertise or url_of(listener)
            app = worker_app(
                mesh,
                settings,
                state,
                process,
                host=options.host,
                url=url,
                on_checks=lambda checks: reload.add(
                    endpoint_part(checks, options.host, options.advertise, insecure_ok=options.insecure_bind)
                ),
            )
            await stack.enter_async_context(serving(app, listener, stop, http_limits(settings)))
            reached = "" if options.advertise is None else f", advertised as {url}"
            echo(f"worker at {url_of(listener)}{reached}")
        # the registries may be unreachable by the time that a run starts here
        await mesh.directory.ensure_fresh()
        upkeep = BackgroundTasks.of(mesh, settings)
        reload.add(upkeep.live_part())
        background = asyncio.create_task(upkeep.run())
        stack.push_async_callback(end_task, background)
        launching = asyncio.create_task(runs.launch(echo, refuse_full=True))
        stack.push_async_callback(end_task, launching)
        stopping = asyncio.create_task(stop.wait())
        # without runs in its state folder it waits for the first, ready to take it
        process.is_started = settings.database is None
        await asyncio.wait({launching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.asked:
            launching.result()  # raises for a full disk, as the start of a hub does
            process.is_started = True
            echo(f"worker on {runs.place}")
            report_ready(supervisor_line, {"name": "worker"})
        await stopping
        echo(f"stopping: {stop.reason}")
    return 0


def worker_app(
    mesh: Mesh,
    settings: Settings,
    state: State,
    process: ProcessState,
    *,
    host: str,
    url: str,
    on_checks: OnChecks = lambda checks: None,
) -> ASGIApp:
    """The endpoints of a worker, behind the security middleware."""
    routes = [health_route(), *process.routes(), *metadata_routes(protected_resource(settings))]
    return guarded(Router(routes=routes), settings, state, host, mesh.http, url=url, on_checks=on_checks)
