"""What a run may store: one bound over its definition, inputs and results, child runs included."""

from __future__ import annotations

from collections import Counter
from typing import Any

from retinue.testing.memory_caller import MemoryCaller
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.ports import Runs
from retinue.workflows.runs.records import RunRecord
from tests.workflows.implementations import Open

LIMIT = 1_000_000
PART = 300_000


class Agents:
    """Skills that give much, and count their calls."""

    def __init__(self) -> None:
        self.called: Counter[str] = Counter()
        self.caller = MemoryCaller()
        self.caller.offer("give", self._give)
        self.caller.offer("take", self._take)
        self.caller.offer("undo", self._undo)

    async def _give(self, given: Any) -> Any:
        self.called["give"] += 1
        return {"part": "x" * PART}

    async def _take(self, given: Any) -> Any:
        self.called["take"] += 1
        return len(given["part"])

    async def _undo(self, given: Any) -> Any:
        self.called["undo"] += 1
        return True


async def run(runs: Runs, definition: Any, given: Any = None, run_id: str = "r") -> RunRecord:
    return await Orchestrator(runs).run(load_definition(definition), given or {}, run_id=run_id)


def give(step: str, **more: Any) -> dict[str, Any]:
    return {"id": step, "skill": "give", "with": {}, **more}


async def test_a_result_that_no_longer_fits_fails_its_step_and_what_was_done_is_undone(
    open_runs: Open,
) -> None:
    agents = Agents()
    steps = [give("a", compensate={"skill": "undo", "with": {}}), give("b"), give("c"), give("d"), give("e")]
    async with open_runs(Interpreter(agents.caller).run, run_bytes=LIMIT) as runs:
        record = await run(runs, {"name": "w", "steps": steps})
    assert record.status == "failed"
    assert record.fault is not None
    assert "step d " in record.fault.message
    assert "the result of step d, 300," in record.fault.message
    assert "is over the limit of 1,000,000 bytes" in record.fault.message
    assert record.fault.data["cause"]["remedy"].startswith("pass references to large data")
    assert [one["ok"] for one in record.fault.data["compensated"]] == [True]
    assert agents.called == {"give": 4, "undo": 1}


async def test_the_inputs_of_branches_count_before_they_start(open_runs: Open) -> None:
    """Of a thousand items that each get the same part, only as many start as fit."""
    agents = Agents()
    each = {
        "id": "each",
        "foreach": {"in": "${{ input.items }}", "concurrency": 100},
        "steps": [{"id": "t", "skill": "take", "with": {"part": "${{ steps.a.output.part }}"}}],
    }
    definition = {"name": "w", "steps": [give("a"), each]}
    async with open_runs(Interpreter(agents.caller).run, run_bytes=LIMIT) as runs:
        record = await run(runs, definition, {"items": list(range(50))})
        stored = await runs.list_all(children=True)
    assert record.fault is not None
    assert record.status == "failed"
    assert "over the limit of 1,000,000 bytes" in record.fault.message
    assert len(stored) <= 4
    assert all(one.status != "running" for one in stored)


async def test_all_branches_together_have_the_bound_of_their_run(open_runs: Open) -> None:
    agents = Agents()
    branches = {name: [give(f"{name}{n}") for n in range(2)] for name in ("p", "q", "s")}
    step = {"id": "each", "parallel": {}, "branches": branches}
    async with open_runs(Interpreter(agents.caller).run, run_bytes=LIMIT) as runs:
        record = await run(runs, {"name": "w", "steps": [step]})
    assert record.fault is not None
    assert "over the limit of 1,000,000 bytes" in record.fault.message


async def test_an_output_that_does_not_fit_fails_the_run(open_runs: Open) -> None:
    agents = Agents()
    output = [f"${{{{ steps.{name}.output }}}}" for name in "abc"]
    definition = {"name": "w", "steps": [give(name) for name in "abc"], "output": output}
    async with open_runs(Interpreter(agents.caller).run, run_bytes=LIMIT) as runs:
        record = await run(runs, definition)
    assert record.fault is not None
    assert record.fault.type == "too_large"
    assert "the output of run r, 900," in record.fault.message


async def test_a_resumed_run_decides_as_before(open_runs: Open) -> None:
    """What did not fit is a recorded failure; what a run stored before it was stopped counts on."""
    agents = Agents()
    steps = [*(give(name) for name in "abc"), give("d", on_error="continue"), {"id": "w", "wait_for": "go"}]
    steps.append(give("e"))
    async with open_runs(Interpreter(agents.caller).run, run_bytes=LIMIT) as runs:
        await Orchestrator(runs).start(load_definition({"name": "w", "steps": steps}), {}, run_id="r")
        async for event in runs.follow("r"):
            if (event.kind, event.step) == ("step_started", "w"):
                break
        await runs.cancel("r")
        await runs.resume("r")
        await runs.signal("r", "go", 1)
        record = await runs.finish("r")
    assert record.fault is not None
    assert "the result of step e, 300," in record.fault.message
    assert agents.called == {"give": 5}


async def test_small_results_always_fit(open_runs: Open) -> None:
    """A decision, a failure or a compensation is stored although the run is full."""
    agents = Agents()
    steps = [give("a", compensate={"skill": "undo", "with": {}}), give("b", on_error="continue")]
    steps += [{"id": f"u{n}", "skill": "undo", "with": {}} for n in range(5)]
    async with open_runs(Interpreter(agents.caller).run, run_bytes=PART + 5_000) as runs:
        record = await run(runs, {"name": "w", "steps": steps})
    assert record.status == "done"
