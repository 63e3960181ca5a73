"""A run stopped at any point and resumed ends as an undisturbed one does, and repeats nothing done."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from retinue.core.call import Outcome, TraceContext
from retinue.core.errors import BusyError
from retinue.testing.memory_caller import MemoryCaller
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.records import MESH_SCOPES, Origin
from tests.workflows.implementations import Open
from tests.workflows.shapes import SHAPES, Shape, think_in_turns

GIVEN = 10_000
ORIGIN = Origin(MESH_SCOPES, trace=TraceContext("t", depth=1, calls_left=GIVEN))


FURTHER = 3


MOST_AT_ONCE = 3
"""So many calls of a shape are in flight at one time, and may all be cut off and begun again."""


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
        self._hanging = asyncio.Event()
        self.caller = Spender()
        self.caller.offer("add", self._add, agent="adder")
        self.caller.offer("flaky", self._flaky, agent="flake")
        self.caller.offer("hang", self._hang, agent="hanger")
        self.caller.offer("complete", self._think, agent="thinker")
        self.caller.offer("late", self._add_late, agent="latecomer")
        for agent in ("one", "two", "three"):
            self.caller.offer("ask", self._answer, agent=agent, roles=["execute"])
        self.caller.offer("ask", self._hang, agent="idle", roles=["execute"])
        self.caller.offer("ask", self._answer_late, agent="tardy", roles=["execute"])

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

    async def _think(self, given: Any) -> Any:
        await self._begin()
        return think_in_turns(given)

    async def _answer(self, given: Any) -> Any:
        await self._begin()
        return {"n": int(given["prompt"])}

    async def _hang(self, given: Any) -> Any:
        self._hanging.set()
        await self._begin()
        await asyncio.Event().wait()

    async def _add_late(self, given: Any) -> Any:
        await self._hanging.wait()
        return await self._add(given)

    async def _answer_late(self, given: Any) -> Any:
        await self._hanging.wait()
        return await self._answer(given)

    async def run(self, shape: Shape, open_runs: Open) -> Any:
        async with open_runs(Interpreter(self.caller).run) as runs:
            whole = await shape.bundle()
            record = await Orchestrator(runs).start(
                whole.loaded.definition, {"n": 0}, run_id="r", nested=whole.nested, origin=ORIGIN
            )
            for topic, value in shape.signals.items():
                await runs.signal("r", topic, value)
            ended = asyncio.ensure_future(runs.finish("r"))
            reached = asyncio.ensure_future(self._reached.wait())
            await asyncio.wait([ended, reached], return_when=asyncio.FIRST_COMPLETED, timeout=120)
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


def is_retry(step: str) -> bool:
    """Whether it is a later attempt: a failure that the stop cuts off before it is recorded needs none."""
    return "@" in step


@dataclass
class Stops:
    """The undisturbed run of a shape with its value, and those stopped in each of its calls."""

    undisturbed: Interrupted
    value: Any
    interrupted: list[tuple[Interrupted, Any]]


_stops: dict[str, Stops] = {}


async def stop_everywhere(shape: str, open_runs: Open) -> Stops:
    """The runs of a shape, made once for the tests that look at them."""
    if shape not in _stops:
        undisturbed = Interrupted(stop_at=0)
        value = await undisturbed.run(SHAPES[shape], open_runs)
        interrupted = [Interrupted(stop_at) for stop_at in range(1, undisturbed.begun + 1)]
        values = [await engine.run(SHAPES[shape], open_runs) for engine in interrupted]
        _stops[shape] = Stops(undisturbed, value, list(zip(interrupted, values, strict=True)))
    return _stops[shape]


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_run_stopped_in_any_call_and_resumed_ends_the_same_and_repeats_nothing_done(
    shape: str, open_runs: Open
) -> None:
    stops = await stop_everywhere(shape, open_runs)
    undisturbed = stops.undisturbed
    assert undisturbed.begun > 2
    for stop_at, (interrupted, value) in enumerate(stops.interrupted, 1):
        assert value == stops.value, f"stopped in call {stop_at}"
        assert not interrupted.done - undisturbed.done
        assert all(is_retry(step) for step in undisturbed.done - interrupted.done)
        assert max(interrupted.done.values()) == 1
        assert interrupted.begun <= undisturbed.begun + MOST_AT_ONCE


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_run_stopped_in_any_call_and_resumed_never_says_that_it_used_less_than_it_did(
    shape: str, open_runs: Open
) -> None:
    stops = await stop_everywhere(shape, open_runs)
    spent, used = stops.undisturbed.begun * (1 + FURTHER), stops.undisturbed.calls
    assert used == spent or (SHAPES[shape].cuts_off and used is not None and used > spent)
    for interrupted, _ in stops.interrupted:
        assert interrupted.calls is not None
        assert interrupted.begun * (1 + FURTHER) <= interrupted.calls <= GIVEN


async def test_a_fork_of_a_run_begins_at_the_step_and_keeps_the_rest(open_runs: Open) -> None:
    engine = Interrupted(stop_at=0)
    async with open_runs(Interpreter(engine.caller).run) as runs:
        definition = (await SHAPES["sequence"].bundle()).loaded.definition
        await Orchestrator(runs).run(definition, {"n": 0}, run_id="r")
        await runs.fork("r", from_step="b", new_run_id="f")
        assert (await runs.finish("f")).get() == {"n": 3}
    assert engine.begun == 5


SAGA = """
name: saga
steps:
- {id: a, skill: add, compensate: {skill: free, with: {n: 1}, retry: {attempts: 1}}}
- {id: b, skill: add, validate: "steps.b.output.n == 99"}
"""


async def test_a_run_that_failed_half_undone_is_given_up_by_cancelling_it(open_runs: Open) -> None:
    engine, freed = Interrupted(stop_at=0), list[Any]()
    refusals = [BusyError("full", 0)]

    async def free(given: Any) -> None:
        if refusals:
            raise refusals.pop()
        freed.append(given)

    engine.caller.offer("free", free, agent="adder")
    async with open_runs(Interpreter(engine.caller).run) as runs:
        assert (await Orchestrator(runs).run(load_definition(SAGA), {"n": 0}, run_id="r")).is_half_undone
        for _ in range(2):
            assert (await runs.cancel("r")).status == (await runs.get("r")).status == "cancelled"
        assert freed == []
        await runs.resume("r")
        record = await runs.finish("r")
    assert (record.status, record.is_half_undone, freed) == ("failed", False, [{"n": 1}])


async def test_a_run_that_failed_half_undone_is_resumed_to_undo_the_rest_as_often_as_it_takes(
    open_runs: Open,
) -> None:
    engine = Interrupted(stop_at=0)
    refusals, freed = [BusyError("full", 0)] * 2, []

    async def free(given: Any) -> None:
        if refusals:
            raise refusals.pop()
        freed.append(given)

    engine.caller.offer("free", free, agent="adder")
    async with open_runs(Interpreter(engine.caller).run) as runs:
        record = await Orchestrator(runs).run(load_definition(SAGA), {"n": 0}, run_id="r")
        assert record.is_half_undone
        await runs.resume("r")
        assert (await runs.finish("r")).is_half_undone
        await runs.resume("r")
        record = await runs.finish("r")
        assert (record.status, record.is_half_undone, freed) == ("failed", False, [{"n": 1}])
        # Nothing is left, so nothing is done.
        await runs.resume("r")
        assert (await runs.finish("r")).status == "failed"
        kinds = [event.kind for event in await runs.list_events("r")]
    assert engine.begun == 2
    assert [kinds.count(kind) for kind in ("run_started", "run_resumed", "run_finished")] == [1, 2, 3]
