"""Retinue: an agent mesh. Agents are found by what they can do, called with checks, and chained.

The public names; each is imported when it is first used, so that the command line starts at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retinue.authoring.agent import Agent
    from retinue.authoring.context import Context, current_context
    from retinue.core.call import Outcome, Part
    from retinue.core.errors import RetinueError, UnknownSkillError
    from retinue.core.record import AgentRecord, Example, Skill, Trait
    from retinue.mesh.directory.directory import Directory
    from retinue.runtime.factories import discover_agent, open_directory
    from retinue.workflows.definitions.definition import Definition as Workflow

__all__ = [
    "Agent",
    "AgentRecord",
    "Context",
    "Directory",
    "Example",
    "Outcome",
    "Part",
    "RetinueError",
    "Skill",
    "Trait",
    "UnknownSkillError",
    "Workflow",
    "current_context",
    "discover_agent",
    "open_directory",
]

_HOMES = {
    "Agent": "retinue.authoring.agent",
    "AgentRecord": "retinue.core.record",
    "Context": "retinue.authoring.context",
    "Directory": "retinue.mesh.directory.directory",
    "Example": "retinue.core.record",
    "Outcome": "retinue.core.call",
    "Part": "retinue.core.call",
    "RetinueError": "retinue.core.errors",
    "Skill": "retinue.core.record",
    "Trait": "retinue.core.record",
    "UnknownSkillError": "retinue.core.errors",
    "Workflow": "retinue.workflows.definitions.definition",
    "current_context": "retinue.authoring.context",
    "discover_agent": "retinue.runtime.factories",
    "open_directory": "retinue.runtime.factories",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'retinue' has no attribute {name!r}")
    found = getattr(importlib.import_module(home), "Definition" if name == "Workflow" else name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
