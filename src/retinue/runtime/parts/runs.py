"""The workflow runs of a hub or worker as a part: start, drain, figures and readiness."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from retinue.mesh.observing.metrics import Figures
from retinue.parts.part import AgentsStarted, FirstReading, Opened, Part, Problem
from retinue.parts.process import Process
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.observing.process_state import ProcessState
from retinue.runtime.serving import end_task

if TYPE_CHECKING:  # with the database libraries, which a process without runs does not load
    from retinue.workflows.durable.database_watch import RunFigures


class RunsPart(Part):
    """Executes runs once the agents answer, because a recovered run calls agents at once.

    On stopping, runs leave before the agents stop, so that interrupted calls are no failures of a run.
    """

    name = "runs"
    kinds = frozenset({"hub", "worker"})
    needs = (LazyRuns,)
    runs_after = (FirstReading, AgentsStarted)
    ready_after = (AgentsStarted,)
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        runs = process.get(LazyRuns)
        database = runs.store.database
        launching: list[asyncio.Task[None]] = []

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            try:
                yield
            finally:
                for task in launching:
                    await end_task(task)
                await runs.leave()

        async def on_ready() -> None:
            if process.kind == "hub":
                launching.append(asyncio.create_task(runs.launch(process.echo)))
                return
            # without runs in its state folder a worker waits for the first, ready to take it
            process.get(ProcessState).is_started = database is None
            await runs.launch(process.echo, refuse_full=True)
            process.echo(f"worker on {runs.store.place}")

        async def problems() -> Sequence[Problem]:
            figures = await runs.read_figures()
            if figures is not None and figures.problem is not None:
                error = figures.problem
                reason = f"{error.message} — {error.remedy}" if error.remedy else error.message
                return [Problem("database", "", reason)]
            if figures is None and database is not None:
                return [Problem("database", "", "not connected yet")]
            return []

        async def figures(figures: Figures) -> None:
            known = await runs.read_figures()
            if known is not None:
                put_run_figures(figures, known)

        yield Opened(running=running, on_ready=on_ready, problems=problems, figures=figures)


def put_run_figures(figures: Figures, runs: RunFigures) -> None:
    """Put what is known of the runs and their database."""
    figures.put("retinue_database_up", float(runs.problem is None))
    if runs.query_s is not None:
        figures.put("retinue_database_query_seconds", runs.query_s)
    for status, count in runs.statuses.items():
        figures.put("retinue_runs", count, status)
    if runs.half_undone is not None:
        figures.put("retinue_runs_half_undone", runs.half_undone)
    for state, count in runs.connections.items():
        figures.put("retinue_database_connections", count, state)
    for outcome, count in runs.steps.items():
        figures.put("retinue_run_steps_total", count, outcome)
    figures.put("retinue_runs_executing", runs.executing)
    if runs.own_node is not None:
        figures.put("retinue_nodes", len(runs.nodes))
    if runs.lease_left_s is not None:
        figures.put("retinue_lease_remaining_seconds", runs.lease_left_s)
    if runs.lease_losses is not None:
        figures.put("retinue_lease_losses_total", runs.lease_losses)
