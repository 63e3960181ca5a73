"""Tests of agents and workflows in one process: no hub, no sockets, no database.

For an agent, ``await agent.call(skill_id, arguments)`` is a call with all its checks.
`scripted_caller.ScriptedCaller` is a caller with a person and a model that answer as scripted,
`scripted_peer.scripted_peer` another agent; ``fixtures`` makes both in pytest.
`scripted_model.ScriptedModel` is a model agent that replies by a script, with calls of tools;
`recorded_model.RecordedModel` plays back the replies of a real model.

For a program, `connect_agents` is the client that `retinue.connect` makes, over agents in memory.

For a workflow, `run_workflow` runs it over agents, scripted skills and signals. It stands on
`memory_caller.MemoryCaller`, which offers plain functions as skills, and `memory_runs.MemoryRuns`, which
executes the runs.
"""

from __future__ import annotations

from retinue.testing.memory_artifacts import MemoryArtifacts
from retinue.testing.memory_caller import MemoryCaller
from retinue.testing.memory_mesh import connect_agents
from retinue.testing.memory_runs import MemoryRuns
from retinue.testing.model_script import ModelScript, ModelTurn
from retinue.testing.recorded_model import RecordedModel
from retinue.testing.scripted_caller import DECLINED, ScriptedCaller
from retinue.testing.scripted_model import ScriptedModel
from retinue.testing.scripted_peer import ScriptedPeer, in_turn, scripted_peer
from retinue.testing.workflow_run import WorkflowRun, run_workflow

__all__ = [
    "DECLINED",
    "MemoryArtifacts",
    "MemoryCaller",
    "MemoryRuns",
    "ModelScript",
    "ModelTurn",
    "RecordedModel",
    "ScriptedCaller",
    "ScriptedModel",
    "ScriptedPeer",
    "WorkflowRun",
    "connect_agents",
    "in_turn",
    "run_workflow",
    "scripted_peer",
]
