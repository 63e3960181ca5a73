"""A cancelled run stops within two seconds, and says which effects had already happened."""

from __future__ import annotations

import asyncio
from typing import Any

from retinue.testing.memory_caller import MemoryCaller
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.tree import list_effects
from tests.time_bounds import Stopwatch
from tests.workflows.implementations import Open
from tests.workflows.shapes import HALF_DONE, HALF_DONE_EFFECTS

BOUND_S = 2.0


class Skills:
    """What the run asks for; ``hanging`` and ``cut`` count the calls that never end."""

    def __init__(self) -> None:
        self.caller = MemoryCaller()
        self.caller.offer("add", self._add, agent="adder")
        self.caller.offer("hang", self._hang, agent="hanger")
        self.hanging = asyncio.Semaphore(0)
        self.cut = 0

    async def _add(self, given: Any) -> Any:
        return {"n": given["n"] + 1}

    async def _hang(self, given: Any) -> Any:
        self.hanging.release()
        try:
            await asyncio.Event().wait()
        finally:
            self.cut += 1


async def test_a_cancelled_run_stops_within_two_seconds_and_says_what_had_happened(open_runs: Open) -> None:
    skills = Skills()
    async with open_runs(Interpreter(skills.caller).run) as runs:
        definition = (await HALF_DONE.bundle()).loaded.definition
        await Orchestrator(runs).start(definition, {"n": 0}, run_id="r")
        async with asyncio.timeout(60):
            for _ in HALF_DONE_EFFECTS["unknown"]:
                await skills.hanging.acquire()
        stopwatch = Stopwatch()
        record = await runs.cancel("r")
        effects = list_effects(await runs.list_events("r"))
        stopwatch.check(BOUND_S)
        assert record.status == "cancelled"
        assert skills.cut == len(HALF_DONE_EFFECTS["unknown"])
        assert {
            word: {one["step"] for one in calls} for word, calls in effects.items() if calls
        } == HALF_DONE_EFFECTS
        assert {one.status for one in await runs.list_all(children=True)} == {"cancelled"}
