"""Following a run to its end: every event is told, whenever the run ends."""

from __future__ import annotations

import asyncio

import pytest

from retinue import Agent
from retinue.hub.run_access import RunAccess
from retinue.hub.runs import add_run_skills
from retinue.mesh.permissions import Access
from retinue.testing.memory_caller import MemoryCaller
from retinue.testing.memory_runs import MemoryRuns
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.records import RunRecord

FLOW = {"name": "w", "steps": [{"id": "first", "wait_for": "go"}, {"id": "last", "skill": "work"}]}


class EndingRuns(MemoryRuns):
    """Runs of which one ends just before its record is read for the ``at``-th time."""

    at = 0

    async def get(self, run_id: str) -> RunRecord:
        self.at -= 1
        if self.at == 0:
            await self.signal(run_id, "go", True)
            await self.finish(run_id)
        return await super().get(run_id)


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_run_that_ends_while_its_events_are_read_is_told_whole(at: int) -> None:
    caller = MemoryCaller()

    async def work(arguments: object) -> str:
        return "done"

    caller.offer("work", work)
    async with EndingRuns(Interpreter(caller).run) as runs:
        hub = Agent("hub")
        add_run_skills(hub, runs, RunAccess(runs, Access()))
        await Orchestrator(runs).start(load_definition(FLOW), {}, run_id="r")
        while not any(event.facts.get("kind") == "wait" for event in await runs.list_events("r")):
            await asyncio.sleep(0)
        began = seen = (await runs.list_events("r"))[-1].seq
        runs.at = at
        told: list[int] = []
        done = False
        while not done:
            reply = await hub.call("follow_run", {"run": "r", "after": seen, "wait_s": 0.05})
            told += [event["seq"] for event in reply["events"]]
            seen, done = reply["next"], reply["done"]
        assert reply["output"] == "done"
        events = await runs.list_events("r", after=began)
        assert told == [event.seq for event in events]
        assert events[-1].kind == "run_finished"
