"""Retinue, an agent mesh: find agents by their skills, call them with checks, and chain the calls.

The public names; each is imported when it is first used, so that the command line starts at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retinue.authoring.agent import Agent
    from retinue.authoring.context import Context, current_context
    from retinue.client.connecting import connect, connect_sync
    from retinue.core.call import Answer, Outcome, Part
    from retinue.core.errors import (
        AgentUnreachableError,
        BusyError,
        CallCancelledError,
        CallTimedOutError,
        CannotAskError,
        DefinitionError,
        ExecutionFailedError,
        GuardError,
        InputRefusedError,
        InputRequiredError,
        InvalidParametersError,
        InvalidSettingError,
        KeyConflictError,
        LimitedError,
        NondeterminismError,
        NotAllowedError,
        NotAuthenticatedError,
        OutputInvalidError,
        QuotaExceededError,
        RemoteFaultError,
        RetinueError,
        RunConflictError,
        SkillNotOfferedError,
        StepFailedError,
        UnknownAgentError,
        UnknownArtifactError,
        UnknownRunError,
        UnknownSkillError,
        VersionConflictError,
    )
    from retinue.core.record import AgentRecord, Example, Skill, Trait
    from retinue.flows.run import Run
    from retinue.flows.workflow import workflow
    from retinue.mesh.artifacts import Artifact
    from retinue.mesh.asking.query import Can
    from retinue.mesh.directory.directory import Directory
    from retinue.runtime.discovery import discover_agent, open_directory
    from retinue.workflows.definitions.definition import Definition as Workflow

__all__ = [
    "Agent",
    "AgentRecord",
    "AgentUnreachableError",
    "Answer",
    "Artifact",
    "BusyError",
    "CallCancelledError",
    "CallTimedOutError",
    "Can",
    "CannotAskError",
    "Context",
    "DefinitionError",
    "Directory",
    "Example",
    "ExecutionFailedError",
    "GuardError",
    "InputRefusedError",
    "InputRequiredError",
    "InvalidParametersError",
    "InvalidSettingError",
    "KeyConflictError",
    "LimitedError",
    "NondeterminismError",
    "NotAllowedError",
    "NotAuthenticatedError",
    "Outcome",
    "OutputInvalidError",
    "Part",
    "QuotaExceededError",
    "RemoteFaultError",
    "RetinueError",
    "Run",
    "RunConflictError",
    "Skill",
    "SkillNotOfferedError",
    "StepFailedError",
    "Trait",
    "UnknownAgentError",
    "UnknownArtifactError",
    "UnknownRunError",
    "UnknownSkillError",
    "VersionConflictError",
    "Workflow",
    "connect",
    "connect_sync",
    "current_context",
    "discover_agent",
    "open_directory",
    "workflow",
]

_HOMES = {
    "Agent": "retinue.authoring.agent",
    "AgentRecord": "retinue.core.record",
    "AgentUnreachableError": "retinue.core.errors",
    "Answer": "retinue.core.call",
    "Artifact": "retinue.mesh.artifacts",
    "BusyError": "retinue.core.errors",
    "CallCancelledError": "retinue.core.errors",
    "CallTimedOutError": "retinue.core.errors",
    "Can": "retinue.mesh.asking.query",
    "CannotAskError": "retinue.core.errors",
    "Context": "retinue.authoring.context",
    "DefinitionError": "retinue.core.errors",
    "Directory": "retinue.mesh.directory.directory",
    "Example": "retinue.core.record",
    "ExecutionFailedError": "retinue.core.errors",
    "GuardError": "retinue.core.errors",
    "InputRefusedError": "retinue.core.errors",
    "InputRequiredError": "retinue.core.errors",
    "InvalidParametersError": "retinue.core.errors",
    "InvalidSettingError": "retinue.core.errors",
    "KeyConflictError": "retinue.core.errors",
    "LimitedError": "retinue.core.errors",
    "NondeterminismError": "retinue.core.errors",
    "NotAllowedError": "retinue.core.errors",
    "NotAuthenticatedError": "retinue.core.errors",
    "Outcome": "retinue.core.call",
    "OutputInvalidError": "retinue.core.errors",
    "Part": "retinue.core.call",
    "QuotaExceededError": "retinue.core.errors",
    "RemoteFaultError": "retinue.core.errors",
    "RetinueError": "retinue.core.errors",
    "Run": "retinue.flows.run",
    "RunConflictError": "retinue.core.errors",
    "Skill": "retinue.core.record",
    "SkillNotOfferedError": "retinue.core.errors",
    "StepFailedError": "retinue.core.errors",
    "Trait": "retinue.core.record",
    "UnknownAgentError": "retinue.core.errors",
    "UnknownArtifactError": "retinue.core.errors",
    "UnknownRunError": "retinue.core.errors",
    "UnknownSkillError": "retinue.core.errors",
    "VersionConflictError": "retinue.core.errors",
    "Workflow": "retinue.workflows.definitions.definition",
    "connect": "retinue.client.connecting",
    "connect_sync": "retinue.client.connecting",
    "current_context": "retinue.authoring.context",
    "discover_agent": "retinue.runtime.discovery",
    "open_directory": "retinue.runtime.discovery",
    "workflow": "retinue.flows.workflow",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'retinue' has no attribute {name!r}")
    member = getattr(importlib.import_module(home), "Definition" if name == "Workflow" else name)
    globals()[name] = member
    return member


def __dir__() -> list[str]:
    return __all__
