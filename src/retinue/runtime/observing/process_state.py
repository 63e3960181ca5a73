"""The state of a process for ``/ready`` and ``/metrics``: readiness problems and metrics.

The endpoints ``/ready`` and ``/metrics`` of hub, agents and workers read it. Nothing is computed before
somebody asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from starlette.routing import Route

from retinue.core.call import Principal
from retinue.core.errors import RetinueError
from retinue.core.record import is_visible
from retinue.mesh.admission import Admission
from retinue.mesh.observing.call_metrics import CallMetrics
from retinue.mesh.observing.metrics import METRICS, Figures, Metric
from retinue.mesh.permissions import Access, is_seen
from retinue.parts.opening import OpenParts
from retinue.parts.part import ReadinessProblem
from retinue.parts.shown_agents import ShownAgents
from retinue.rpc.server import ready_route
from retinue.runtime.observing.otel_metrics import exporting_metrics
from retinue.web.metrics_endpoint import metrics_route

STARTING = ReadinessProblem("process", "", "it is starting")

_SHOWN_FIRST = ("process", "database", "runs", "storage", "source", "child", "upstream")
"""The order of problems by their kind; others follow."""


@dataclass(slots=True)
class ProcessState:
    """The state of one process, with the figures and problems of its ``parts``.

    ``kind`` is ``hub``, ``agent`` or ``worker``. ``is_started`` is set when the process serves its callers,
    and ``is_stopping`` tells whether it has been asked to stop.
    """

    kind: str
    access: Access
    admission: Admission
    calls: CallMetrics
    is_stopping: Callable[[], bool]
    is_started: bool = False
    parts: OpenParts | None = None
    """The parts, once they are open."""
    add_others: Callable[[Figures], Awaitable[None]] | None = None
    """Adds the figures of the other processes of a hub to those of this one."""
    shown: ShownAgents | None = None
    """The agents as callers see them; without it a caller of exposed skills sees no names of skills."""

    @classmethod
    def observing(
        cls, kind: str, access: Access, admission: Admission, is_stopping: Callable[[], bool]
    ) -> ProcessState:
        """The state of a process whose calls are counted from the events of ``admission``."""
        calls = CallMetrics()
        admission.events.subscribe_later(calls.observe)
        return cls(kind, access, admission, calls, is_stopping)

    def routes(self) -> list[Route]:
        """The endpoints ``/ready`` and ``/metrics``."""
        return [ready_route(self.find_problems), metrics_route(self.read_for)]

    def exporting(self, service: str, environ: Mapping[str, str]) -> AbstractAsyncContextManager[None]:
        """Export the metrics over OpenTelemetry while inside, where it is configured."""
        return exporting_metrics(service, environ, self.calls, self.read, self._metrics)

    async def find_problems(self) -> list[ReadinessProblem]:
        """The problems that keep the process from being ready."""
        if self.is_stopping():
            return [ReadinessProblem("process", "", "it is stopping")]
        return await self._list_problems()

    async def read_for(self, caller: Principal) -> Figures:
        """The metrics that a caller may see: hidden agents are counted as one, and hidden skills of one."""
        figures = await self.read()
        view = self.access.view_of(caller)
        names = _agent_names(figures)
        hidden = frozenset(name for name in names if name and not is_seen(view, name))
        skills = frozenset[tuple[str, str]]()
        if "mesh" not in caller.scopes:
            skills = await self._list_hidden_skills(figures, caller)
        return figures.hide(hidden, skills)

    async def _list_hidden_skills(self, figures: Figures, caller: Principal) -> frozenset[tuple[str, str]]:
        """The agents and skills that were called, and of which the caller may not see the skill."""
        called = {labels[:2] for labels in figures.values.get("retinue_calls_total", {}) if labels[1]}
        visible: dict[str, frozenset[str]] = {}
        hidden = set()
        for agent, skill in called:
            if agent not in visible:
                visible[agent] = await self._list_visible_skills(agent, caller)
            if skill not in visible[agent]:
                hidden.add((agent, skill))
        return frozenset(hidden)

    async def _list_visible_skills(self, agent: str, caller: Principal) -> frozenset[str]:
        if self.shown is None:
            return frozenset()
        try:
            own = self.shown.own(caller)
            shown = own if own.name == agent else await self.shown.find(agent, caller)
        except RetinueError:
            return frozenset()
        return frozenset(
            skill.id for skill in shown.record.skills if is_visible(skill.visibility, shown.scopes)
        )

    async def read(self) -> Figures:
        """All metrics."""
        figures = Figures(self._metrics)
        figures.put("retinue_build_info", 1, version("retinue"), self.kind)
        problems = await self._list_problems()
        is_down = any(problem.is_fatal for problem in problems)
        figures.put("retinue_ready", 0.0 if is_down else 0.5 if problems else 1.0)
        figures.put("retinue_calls_in_flight", self.admission.limits.in_flight)
        self.calls.read(figures)
        if self.parts is not None:
            await self.parts.read_figures(figures)
        if self.add_others is not None:
            await self.add_others(figures)
        return figures

    @property
    def _metrics(self) -> Mapping[str, Metric]:
        return METRICS if self.parts is None else self.parts.metrics

    async def _list_problems(self) -> list[ReadinessProblem]:
        problems = [] if self.is_started else [STARTING]
        if self.parts is not None:
            problems += await self.parts.find_problems()
        return sorted(problems, key=_rank)


def _rank(problem: ReadinessProblem) -> int:
    return _SHOWN_FIRST.index(problem.what) if problem.what in _SHOWN_FIRST else len(_SHOWN_FIRST)


def _agent_names(figures: Figures) -> set[str]:
    names: set[str] = set()
    rows: list[dict[str, dict[tuple[str, ...], Any]]] = [dict(figures.values), dict(figures.histograms)]
    for row in rows:
        for name in ("retinue_calls_total", "retinue_call_duration_seconds", "retinue_circuit_breaker_open"):
            names.update(labels[0] for labels in row.get(name, {}))
    names.update(labels[0] for labels in figures.values.get("retinue_upstream_up", {}))
    return names
