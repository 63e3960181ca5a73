"""A run stopped at any point and resumed ends as an undisturbed one does, and repeats nothing done."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.call import Outcome
from retinue.core.errors import BusyError
from retinue.workflows.engine import Interpreter
from retinue.workflows.loading import load_definition
from retinue.workflows.memory_caller import MemoryCaller
from retinue.workflows.orchestrator import Orchestrator
from tests.workflows.implementations import Open

ORIGIN: dict[str, Any] = {"id": "t", "depth": 1, "calls_left": 10_000}

SHAPES = {
    "sequence": "- {id: a, skill: add}\n- {id: b, skill: add}\n- {id: c, skill: add}",
    "parallel": """
- {id: a, skill: add}
- id: p
  parallel: {}
  branches:
    left: [{id: b, skill: add}, {id: c, skill: add}]
    right: [{id: d, skill: add}, {id: e, skill: add}]
- {id: f, skill: add, with: {n: "${{ steps.p.output.left.n + steps.p.output.right.n }}"}}
""",
    "loop": """
- id: l
  loop: {max: 4, until: steps.b.output.n > 3}
  steps:
    - {id: a, skill: add, with: {n: "${{ has(steps.b.output) ? steps.b.output.n : input.n }}"}}
    - {id: b, skill: add}
""",
    "when and retry": """
- {id: a, skill: add}
- {id: b, skill: add, when: steps.a.output.n == 99}
- {id: c, skill: flaky, retry: {attempts: 3, delay: 1ms}}
- {id: d, skill: add}
""",
    "foreach": """
- id: each
  foreach: {in: [1, 2, 3, 4], concurrency: 2}
  steps:
    - {id: a, skill: add, with: {n: "${{ loop.item * 10 }}"}}
    - {id: b, skill: add}
- {id: c, skill: add, with: {n: "${{ steps.each.output[0].n + steps.each.output[3].n }}"}}
""",
    "switch and goto": """
- {id: a, skill: add, then: s}
- {id: never, skill: add}
- id: s
  switch: steps.a.output.n
  branches:
    "1":
      - {id: b, skill: flaky, on_error: {goto: d}}
      - {id: c, skill: add}
      - {id: d, skill: add, with: {n: 5}}
- {id: e, skill: add}
""",
    "vote": """
- id: v
  parallel: {mode: vote, role: execute, prompt: "1"}
- {id: c, skill: add, with: {n: "${{ steps.v.output.n + size(steps.v.ballots) }}"}}
""",
    "merge": """
- id: v
  parallel: {mode: merge, role: execute, prompt: "1", concurrency: 1}
- {id: c, skill: add, with: {n: "${{ size(steps.v.text) }}"}}
""",
    "limits": """
- id: l
  loop: {max: 2}
  timeout: 1h
  steps: [{id: a, skill: add, timeout: 1m}, {id: b, skill: add}]
""",
    "saga": """
- {id: a, skill: add, compensate: {skill: add, with: {n: "${{ steps.a.output.n }}"}}}
- id: p
  parallel: {}
  on_error: continue
  steps:
    - {id: b, skill: add, compensate: {skill: add, with: {n: 7}}}
    - {id: c, skill: add, validate: steps.c.output.n == 99}
- {id: d, skill: add, with: {n: "${{ size(steps.p.error.compensated) }}"}}
""",
}


FURTHER = 3


class Spender(MemoryCaller):
    """Each call causes so many further ones."""

    async def call(self, *args: Any, **more: Any) -> Outcome:
        return replace(await super().call(*args, **more), calls_used=FURTHER)


class Interrupted:
    """An engine whose run is cancelled when its ``stop_at``-th call begins, and then resumed."""

    def __init__(self, stop_at: int) -> None:
        self.calls: int | None = None
        self.done: Counter[str] = Counter()
        self.begun = 0
        self._stop_at = stop_at
        self._reached = asyncio.Event()
        self._failed_once = False
        self.caller = Spender()
        self.caller.offer("add", self._add, agent="adder")
        self.caller.offer("flaky", self._flaky, agent="flake")
        for agent in ("one", "two", "three"):
            self.caller.offer("ask", self._answer, agent=agent, roles=["execute"])

    async def _begin(self) -> None:
        self.begun += 1
        if self.begun == self._stop_at:
            self._reached.set()
            await asyncio.Event().wait()

    async def _add(self, given: Any) -> Any:
        await self._begin()
        return {"n": given["n"] + 1}

    async def _flaky(self, given: Any) -> Any:
        await self._begin()
        if not self._failed_once:
            self._failed_once = True
            raise BusyError("full", 0)
        return {"n": given["n"] * 10}

    async def _answer(self, given: Any) -> Any:
        await self._begin()
        return {"n": int(given["prompt"])}

    async def run(self, steps: str, open_runs: Open) -> Any:
        async with open_runs(Interpreter(self.caller).run) as runs:
            definition = load_definition("name: w\nsteps:\n" + steps)
            record = await Orchestrator(runs).start(definition, {"n": 0}, run_id="r", trace=ORIGIN)
            ended = asyncio.ensure_future(runs.finish("r"))
            reached = asyncio.ensure_future(self._reached.wait())
            await asyncio.wait([ended, reached], return_when=asyncio.FIRST_COMPLETED, timeout=10)
            reached.cancel()
            if self._reached.is_set():
                record = await runs.cancel("r")
                assert record.status == "cancelled"
                await runs.resume("r")
            record = await runs.finish("r")
            for event in await runs.list_events("r"):
                if event.kind == "step_finished":
                    self.done[event.step] += 1
            await ended
            self.calls = record.calls
            return record.get()


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_run_stopped_in_any_call_and_resumed_ends_the_same_and_repeats_nothing_done(
    shape: str, open_runs: Open
) -> None:
    undisturbed = Interrupted(stop_at=0)
    wanted = await undisturbed.run(SHAPES[shape], open_runs)
    assert undisturbed.begun > 2
    for stop_at in range(1, undisturbed.begun + 1):
        interrupted = Interrupted(stop_at)
        assert await interrupted.run(SHAPES[shape], open_runs) == wanted, f"stopped in call {stop_at}"
        assert interrupted.done == undisturbed.done
        assert max(interrupted.done.values()) == 1
        assert interrupted.begun <= undisturbed.begun + 2


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_run_stopped_in_any_call_and_resumed_never_says_that_it_used_less_than_it_did(
    shape: str, open_runs: Open
) -> None:
    undisturbed = Interrupted(stop_at=0)
    await undisturbed.run(SHAPES[shape], open_runs)
    assert undisturbed.calls == undisturbed.begun * (1 + FURTHER)
    for stop_at in range(1, undisturbed.begun + 1):
        interrupted = Interrupted(stop_at)
        await interrupted.run(SHAPES[shape], open_runs)
        assert interrupted.calls is not None
        assert interrupted.begun * (1 + FURTHER) <= interrupted.calls <= ORIGIN["calls_left"]


async def test_a_fork_of_a_run_begins_at_the_step_and_keeps_the_rest(open_runs: Open) -> None:
    engine = Interrupted(stop_at=0)
    definition = load_definition("name: w\nsteps:\n" + SHAPES["sequence"])
    async with open_runs(Interpreter(engine.caller).run) as runs:
        await Orchestrator(runs).run(definition, {"n": 0}, run_id="r")
        await runs.fork("r", from_step="b", new_run_id="f")
        assert (await runs.finish("f")).get() == {"n": 3}
    assert engine.begun == 5
