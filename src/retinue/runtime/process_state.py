"""What a process knows of itself: whether it is ready and what is not, and its metrics.

The endpoints ``/ready`` and ``/metrics`` of hub, agents and workers read it. Nothing is computed before
somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, get_args

from starlette.routing import Route

from retinue.core.call import Principal
from retinue.core.record import Health
from retinue.mesh.admission import Limits
from retinue.mesh.events import EventBus
from retinue.mesh.health.call_metrics import CallMetrics
from retinue.mesh.metrics import BoundedNames, Figures
from retinue.mesh.permissions import Access, is_seen
from retinue.rpc.server import Problem, ready_route
from retinue.runtime.observing.otel_metrics import exporting_metrics
from retinue.web.metrics_endpoint import metrics_route

if TYPE_CHECKING:
    from retinue.mesh.directory.directory import Directory
    from retinue.mesh.health.agent_stats import AgentStatsTable
    from retinue.runtime.mesh import LazyRuns, Mesh
    from retinue.runtime.supervisor import Child
    from retinue.workflows.durable.database_watch import RunFigures

STARTING = Problem("process", "", "it is starting")


@dataclass(slots=True)
class ProcessState:
    """The state of one process; the composition root sets what its kind of process has.

    ``kind`` is ``hub``, ``agent`` or ``worker``. ``is_started`` is set when the process serves its callers,
    and ``stopping`` tells whether it has been asked to stop.
    """

    kind: str
    access: Access
    limits: Limits
    calls: CallMetrics
    is_started: bool = False
    stopping: Callable[[], bool] = lambda: False
    directory: Directory | None = None
    agent_stats: AgentStatsTable | None = None
    read_runs: Callable[[], Awaitable[RunFigures | None]] | None = None
    needs_database: bool = False
    children: Callable[[], Sequence[Child]] = tuple
    upstreams: Callable[[], Sequence[tuple[str, bool, str]]] = tuple
    """The imported servers: name, whether connected, and the reason if not."""
    _sources: BoundedNames = field(default_factory=BoundedNames)

    @classmethod
    def observing(cls, kind: str, access: Access, limits: Limits, events: EventBus) -> ProcessState:
        """The state of a process whose calls are counted from ``events``."""
        calls = CallMetrics()
        events.subscribe_later(calls.observe)
        return cls(kind, access, limits, calls)

    @classmethod
    def of_mesh(cls, kind: str, mesh: Mesh, runs: LazyRuns, stopping: Callable[[], bool]) -> ProcessState:
        """As `observing`, of a process that has a mesh and its runs."""
        process = cls.observing(kind, mesh.access, mesh.dispatcher.admission.limits, mesh.events)
        process.stopping = stopping
        process.directory, process.agent_stats = mesh.directory, mesh.dispatcher.agent_stats
        process.read_runs = runs.read_figures
        return process

    def routes(self) -> list[Route]:
        """The endpoints ``/ready`` and ``/metrics``."""
        return [ready_route(self.find_problems), metrics_route(self.read_for)]

    def exporting(self, service: str, environ: Mapping[str, str]) -> AbstractAsyncContextManager[None]:
        """Export the metrics over OpenTelemetry while inside, where it is configured."""
        return exporting_metrics(service, environ, self.calls, self.read)

    async def find_problems(self) -> list[Problem]:
        """What is not ready."""
        if self.stopping():
            return [Problem("process", "", "it is stopping")]
        runs = None if self.read_runs is None else await self.read_runs()
        return self._list_problems(runs)

    async def read_for(self, caller: Principal) -> Figures:
        """The metrics that a caller may see: hidden agents are counted as one."""
        figures = await self.read()
        view = self.access.view_of(caller)
        names = _agent_names(figures)
        return figures.hide(frozenset(name for name in names if name and not is_seen(view, name)))

    async def read(self) -> Figures:
        """All metrics."""
        figures = Figures()
        figures.put("retinue_build_info", 1, version("retinue"), self.kind)
        runs = None if self.read_runs is None else await self.read_runs()
        problems = self._list_problems(runs)
        is_down = any(problem.is_fatal for problem in problems)
        figures.put("retinue_ready", 0.0 if is_down else 0.5 if problems else 1.0)
        figures.put("retinue_calls_in_flight", self.limits.in_flight)
        self.calls.read(figures)
        self._read_agents(figures)
        for child in self.children():
            figures.put("retinue_child_up", float(child.is_ready), child.spec.name)
            figures.put("retinue_child_restarts_total", child.restarts, child.spec.name)
        for name, is_up, _ in self.upstreams():
            figures.put("retinue_upstream_up", float(is_up), name)
        if runs is not None:
            _read_runs(figures, runs)
        return figures

    def _list_problems(self, runs: RunFigures | None) -> list[Problem]:
        found = [] if self.is_started else [STARTING]
        if runs is not None and runs.problem is not None:
            found.append(Problem("database", "", _told(runs.problem)))
        elif runs is None and self.needs_database:
            found.append(Problem("database", "", "not connected yet"))
        failures = {} if self.directory is None else self.directory.source_failures()
        found += [
            Problem("source", name, _told(error), is_fatal=False)
            for name, error in failures.items()
            if error is not None
        ]
        found += [
            Problem("child", child.spec.name, "not running", is_fatal=False)
            for child in self.children()
            if not child.is_ready
        ]
        return found + [
            Problem("upstream", name, reason, is_fatal=False)
            for name, is_up, reason in self.upstreams()
            if not is_up
        ]

    def _read_agents(self, figures: Figures) -> None:
        if self.directory is not None:
            health = Counter(entry.health for entry in self.directory.list_entries())
            for state in get_args(Health):
                figures.put("retinue_agents", health[state], state)
            for name, failure in self.directory.source_failures().items():
                figures.put("retinue_source_up", float(failure is None), self._sources(name))
        if self.agent_stats is not None:
            breakers = self.agent_stats.list_breakers()
            open_ones = [name for name, is_open in breakers if is_open]
            figures.put("retinue_circuit_breakers", len(open_ones), "open")
            figures.put("retinue_circuit_breakers", len(breakers) - len(open_ones), "closed")
            names = BoundedNames()
            figures.put_all("retinue_circuit_breaker_open", {(names(name),): 1.0 for name in open_ones})


def _read_runs(figures: Figures, runs: RunFigures) -> None:
    figures.put("retinue_database_up", float(runs.problem is None))
    if runs.query_s is not None:
        figures.put("retinue_database_query_seconds", runs.query_s)
    for status, count in runs.statuses.items():
        figures.put("retinue_runs", count, status)
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


def _agent_names(figures: Figures) -> set[str]:
    found: set[str] = set()
    rows: list[dict[str, dict[tuple[str, ...], Any]]] = [dict(figures.values), dict(figures.histograms)]
    for row in rows:
        for name in ("retinue_calls_total", "retinue_call_duration_seconds", "retinue_circuit_breaker_open"):
            found.update(labels[0] for labels in row.get(name, {}))
    found.update(labels[0] for labels in figures.values.get("retinue_upstream_up", {}))
    return found


def _told(error: Any) -> str:
    return f"{error.message} — {error.remedy}" if error.remedy else str(error.message)
