"""What agents said before a step is recorded like the choice: a resumed run does not ask again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.testing.memory_caller import MemoryCaller
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from tests.workflows.implementations import Open

STEPS = {
    "skill": "{id: a, skill: work, ask: true}",
    "role": "{id: a, role: execute, prompt: x, ask: true}",
    "all": "{id: a, parallel: {mode: all, role: execute, prompt: x}, ask: true}",
    "race": "{id: a, parallel: {mode: race, role: execute, prompt: x}, ask: true}",
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_run_stopped_in_the_call_after_the_answers_is_resumed_with_the_same_agents(
    step: str, open_runs: Open
) -> None:
    caller, reached, hangs = MemoryCaller(), asyncio.Event(), True

    async def work(given: Any) -> str:
        reached.set()
        if hangs:
            await asyncio.Event().wait()
        return "done"

    for agent in ("one", "two", "three"):
        caller.offer("work", work, agent=agent, roles=["execute"])
    caller.answer_asked("one", False, True)
    caller.answer_asked("two", True, False)
    caller.answer_asked("three", False)
    definition = load_definition(f"name: w\nsteps:\n  - {STEPS[step]}\n")
    async with open_runs(Interpreter(caller).run) as runs:
        await Orchestrator(runs).start(definition, {}, run_id="r")
        ended = asyncio.ensure_future(runs.finish("r"))
        await asyncio.wait_for(reached.wait(), 60)
        assert (await runs.cancel("r")).status == "cancelled"
        await ended
        hangs = False
        await runs.resume("r")
        assert (await runs.finish("r")).status == "done"
    assert {call.agent for call in caller.calls} == {"two"}
    assert sorted(caller.asked) == ["one", "three", "two"]
