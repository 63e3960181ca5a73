"""The hub's own tools for MCP clients: seed 002's schemas, and run tools when there are runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from retinue.core.record import Skill
from retinue.hub.orchestration.tool_schemas import LISTED, show_tool
from retinue.hub.resources import keep_listed
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.routing import CAPABILITIES
from retinue.mesh.permissions import AgentView, is_seen

RUN_TOOLS = frozenset(
    {
        "start_run",
        "list_runs",
        "show_run",
        "follow_run",
        "cancel_run",
        "resume_run",
        "rerun_run",
        "signal_run",
    }
)
"""Tools that are listed only when a workflow is stored or a run exists."""

_NEVER = frozenset(
    {
        "add_schedule",
        "change_schedule",
        "check_workflow",
        "clear_cache",
        "list_calls",
        "list_imports",
        "list_schedules",
        "refresh_agents",
        "show_mesh",
        "show_trace",
        "store_workflow",
    }
)
"""Skills of the command line and the dashboard, too rare for a list that models read; they can be called."""


class ToolList:
    """Selects the hub's own tools for the tool list; ``notify`` informs clients of a change."""

    def __init__(
        self, directory: Directory, list_custom: Callable[[], Sequence[str]], notify: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._list_custom = list_custom
        self._notify = notify
        self._has_runs = False

    def note_run(self) -> None:
        """A run exists: the tools for runs are listed from now on."""
        if not self._has_runs:
            self._has_runs = True
            self._notify()

    def shape(self, skills: Sequence[Skill], scopes: frozenset[str], view: AgentView | None) -> list[Skill]:
        """The skills with the schemas that are listed; unlisted tools are marked so."""
        custom = self._list_custom()
        agents = self._list_agents(scopes, view)
        shaped = [
            replace(skill, input_schema=show_tool(skill.id, agents, custom)) if skill.id in LISTED else skill
            for skill in skills
        ]
        hidden = _NEVER if self._has_runs or custom else _NEVER | RUN_TOOLS
        return [replace(skill, listed=False) if skill.id in hidden else skill for skill in shaped]

    def _list_agents(self, scopes: frozenset[str], view: AgentView | None) -> list[str]:
        entries = {
            entry.id: entry
            for role in CAPABILITIES
            for entry in self._directory.list_with_role(role, scopes)
            if is_seen(view, entry.name)
        }
        return sorted(
            {entry.name for entry in keep_listed(self._directory, [*entries.values()], view, scopes)}
        )
