"""Shared parts of the tests: the three shipped agents behind the workflow engine."""

from __future__ import annotations

from typing import Any

from retinue import Agent
from retinue.testing.memory_caller import MemoryCaller
from retinue.testing.memory_runs import MemoryRuns
from retinue.workflows.definitions.loading import load_builtin
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue_testwriter import builder, planner, tester

AGENTS = (planner.agent, builder.agent, tester.agent)


async def write_tests(requirements: str, **more: str) -> dict[str, Any]:
    """The output of the workflow plan-build-test, run in this process."""
    caller = MemoryCaller()
    for agent in AGENTS:
        for skill in agent.skills:
            caller.offer(skill.id, _call(agent, skill.id), agent=agent.name, input_schema=skill.input_schema)
    runs = MemoryRuns(Interpreter(caller).run)
    try:
        record = await Orchestrator(runs).run(
            load_builtin("plan-build-test").definition, {"requirements": requirements, **more}
        )
        output: dict[str, Any] = record.get()
    finally:
        await runs.aclose()
    return output


def _call(agent: Agent, skill: str) -> Any:
    async def call(arguments: Any) -> Any:
        return await agent.call(skill, arguments, timeout_s=600)

    return call
