"""A scripted model in place of an offline agent of ``plan-build-test`` is chosen by its score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.storage.state import State
from retinue_testwriter import builder, planner, tester
from tests.system import System, Wire, open_system, open_wire

MODULE = '''"""Small sums."""


def double(number: int) -> int:
    """Twice the number."""
    return number * 2
'''
ROLES = {"create_plan": ("plan", "planning"), "generate_code": ("execute", "execution")}


def make_model(skill: str, answer: dict[str, Any], asked: list[Any]) -> Agent:
    role, capability = ROLES[skill]
    agent = Agent("scripted", version="1.0.0", scores={capability: 0.95})

    async def create_plan(requirements: str) -> dict[str, Any]:
        asked.append(requirements)
        return answer

    async def generate_code(plan: str) -> dict[str, Any]:
        asked.append(plan)
        return answer

    function = create_plan if skill == "create_plan" else generate_code
    agent.skill(skill, roles=[role], expose=True)(function)
    return agent


async def run(system: System, wire: Wire, module: Path) -> dict[str, Any]:
    hub = await system.start_hub()
    arguments = {"workflow": "plan-build-test", "input": orjson.dumps({"requirements": str(module)}).decode()}
    found = await wire.call(hub.url, "orchestrate_workflow", arguments, authorization=system.token)
    result: dict[str, Any] = found.result
    return result


@pytest.mark.parametrize("skill", ROLES)
async def test_a_scripted_model_takes_the_step_of_an_offline_agent(retinue_home: Path, skill: str) -> None:
    module = retinue_home.parent / "small_sums.py"
    module.write_text(MODULE)
    asked: list[Any] = []
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        for agent in (planner.agent, builder.agent, tester.agent):
            await system.start_agent(agent)
        offline = await run(system, wire, module)
        assert offline["agents"] == ["plan-agent", "build-agent", "test-agent"]
        output = offline["output"]
        answer = {"plan": f"Test {module}", "steps": ["test it"]}
        if skill == "generate_code":
            answer = {"code": output["code"]}
        await system.start_agent(make_model(skill, answer, asked))
        ours = await run(system, wire, module)
    assert "scripted" in ours["agents"]
    assert len(asked) == 1
    assert ours["output"].keys() == output.keys()
    for key in ("plan", "code", "review", "feedback"):
        assert type(ours["output"][key]) is type(output[key])
    assert ours["output"]["failed"] == 0
