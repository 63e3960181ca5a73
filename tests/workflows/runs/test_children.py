"""The part of the suite of the durability ports that is about children of a run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.core.errors import BusyError, CallCancelledError, ExecutionFailedError, UnknownRunError
from retinue.workflows.runs.ports import RunContext
from retinue.workflows.runs.records import ChildRun, RunRequest, StepOutcome
from tests.workflows.implementations import Open
from tests.workflows.runs.effects import ask, gives, raises, started, until, waits_for_ever


async def test_no_sibling_runs_a_step_while_the_body_waits_for_a_child(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input == "child":
            await context.step("long", waits_for_ever, timeout_s=5)
        child = await context.child("c", ask("child"))
        waiting = asyncio.ensure_future(context.wait("c/wait", [child]))
        await asyncio.sleep(0)
        try:
            await context.step("sibling", gives(1), timeout_s=5)
        finally:
            waiting.cancel()

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        record = await runs.finish("r")
        assert record.fault is not None
        assert record.fault.type == "durable_rule"


async def test_children_run_side_by_side_and_come_back_in_order(open_runs: Open) -> None:
    met = asyncio.Barrier(3)

    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input is None:
            children = [await context.child(name, ask(name)) for name in "abc"]
            return [[outcome.child.run_id, outcome.value] for outcome in await context.wait("all", children)]

        async def meet() -> Any:
            await met.wait()
            return request.input.upper()

        return (await context.step("s", meet, timeout_s=5)).value

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == [["r/a", "A"], ["r/b", "B"], ["r/c", "C"]]
        assert [r.id for r in await runs.list_all()] == ["r"]
        assert {r.parent_id for r in await runs.list_all(children=True)} == {None, "r"}
        steps = [e.step for e in await runs.list_events("r") if e.kind == "step_finished"]
        assert sorted(steps) == ["a/s", "b/s", "c/s"]


async def test_the_first_child_wins_and_the_rest_are_cut_off(open_runs: Open) -> None:
    cut = asyncio.Event()

    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input is None:
            children = [await context.child(name, ask(name)) for name in ("slow", "fast")]
            (winner,) = await context.wait("race", children, "first")
            await context.cancel("stop", [c for c in children if c != winner.child])
            return winner.value
        if request.input == "slow":

            async def hang() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    cut.set()

            await context.step("s", hang, timeout_s=5)
        return request.input

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == "fast"
        assert cut.is_set()
        assert (await runs.get("r/slow")).status == "cancelled"


async def test_a_failed_child_is_an_outcome(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input == "child":
            raise ExecutionFailedError("child failed")
        (outcome,) = await context.wait("w", [await context.child("c", ask("child"))])
        return [outcome.status, outcome.fault and outcome.fault.message]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        assert (await runs.finish("r")).get() == ["failed", "child failed"]


async def test_cancelling_a_run_stops_children_and_effects_in_flight(open_runs: Open) -> None:
    cut: list[str] = []

    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input is None:
            return await context.wait("w", [await context.child(name, ask(name)) for name in "ab"])

        async def hang() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cut.append(request.input)

        return (await context.step("s", hang, timeout_s=60)).value

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await until(runs, "r", started("b/s"))
        record = await runs.cancel("r")
        assert record.status == "cancelled"
        assert sorted(cut) == ["a", "b"]
        assert {r.status for r in await runs.list_all(children=True)} == {"cancelled"}
        with pytest.raises(CallCancelledError):
            record.get()
        assert (await runs.cancel("r")) == record


async def test_a_resumed_run_resumes_its_children(open_runs: Open) -> None:
    gate = asyncio.Event()
    ran: list[str] = []

    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input is None:
            children = [await context.child(name, ask(name)) for name in "ab"]
            return [outcome.value for outcome in await context.wait("w", children)]

        async def note() -> Any:
            ran.append(request.input)
            if request.input == "b":
                await gate.wait()
            return request.input

        return (await context.step("s", note, timeout_s=60)).value

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await until(runs, "r", started("b/s"))
        await runs.finish("r/a")
        await runs.cancel("r")
        gate.set()
        await runs.resume("r")
        assert (await runs.finish("r")).get() == ["a", "b"]
        assert sorted(ran) == ["a", "b", "b"]


async def test_a_fork_after_children_keeps_their_outcomes(open_runs: Open) -> None:
    ran: list[Any] = []

    async def body(context: RunContext, request: RunRequest) -> Any:
        ran.append(request.input)
        if request.input is not None:
            return request.input
        outcomes = await context.wait("p/wait", [await context.child("p.a", ask("child"))])
        after = await context.step("after", gives("x"), timeout_s=5)
        return [outcomes[0].value, after.value]

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await runs.finish("r")
        await runs.fork("r", from_step="after", new_run_id="f")
        assert (await runs.finish("f")).get() == ["child", "x"]
        assert ran == [None, "child", None]
        await runs.fork("r", from_step="p", new_run_id="g")
        assert (await runs.finish("g")).get() == ["child", "x"]
        assert ran == [None, "child", None, None, "child"]


async def test_a_child_may_be_followed_alone(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input is None:
            await context.wait("w", [await context.child(name, ask(name)) for name in ("a", "ab")])

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await runs.finish("r")
        assert {event.run_id async for event in runs.follow("r/a")} == {"r/a"}
        assert {event.run_id for event in await runs.list_events("r/ab")} == {"r/ab"}


async def test_a_child_of_another_run_cannot_be_waited_for_unless_it_is_known(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        await context.wait("w", [ChildRun("nobody", "x")])

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        record = await runs.finish("r")
        assert record.status == "failed"
        assert record.fault is not None
        assert record.fault.type == "unknown_run"


async def test_the_recorded_outcomes_of_a_run_and_its_children_are_listed(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input == "child":
            return (await context.step("inside", gives("in"), timeout_s=5)).value
        await context.step("before", gives({"n": 1}), timeout_s=5)
        await context.step("broken", raises(BusyError("full", 1)), timeout_s=5)
        child = await context.child("c", ask("child"))
        await context.wait("c/wait", [child])
        await context.sleep("rest", 0)
        return (await context.receive("ask", "topic", 0.01)).value

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await runs.finish("r")
        records = await runs.list_steps("r")
        assert [(one.run_id, one.step) for one in records] == [
            ("r", "before"),
            ("r", "broken"),
            ("r", "ask"),
            ("r/c", "c/inside"),
        ]
        assert records[0].outcome == StepOutcome({"n": 1})
        assert [one.outcome.fault and one.outcome.fault.type for one in records[1:3]] == ["busy", "timeout"]
        with pytest.raises(UnknownRunError):
            await runs.list_steps("nobody")


async def test_how_long_a_child_took_is_recorded_with_its_end(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input == "child":
            await context.step("s", lambda: asyncio.sleep(0.02), timeout_s=5)
            return None
        child = await context.child("c", ask("child"))
        (ended,) = await context.wait("c/wait", [child])
        await context.step("hold", waits_once, timeout_s=5)
        return ended.duration_ms

    reached = asyncio.Event()

    async def waits_once() -> None:
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        async with asyncio.timeout(60):
            await reached.wait()
            await runs.cancel("r")
            await runs.resume("r")
            took = (await runs.finish("r")).get()
        assert 15 <= took < 5_000


async def test_beginning_and_end_of_a_child_name_its_step(open_runs: Open) -> None:
    async def body(context: RunContext, request: RunRequest) -> Any:
        if request.input is None:
            await context.wait("w", [await context.child("a", ask("a"))])

    async with open_runs(body) as runs:
        await runs.start(ask(), run_id="r")
        await runs.finish("r")
        seen = [(event.run_id, event.kind, event.step) for event in await runs.list_events("r")]
        assert ("r/a", "run_started", "a") in seen
        assert ("r/a", "run_finished", "a") in seen
        assert seen[-1] == ("r", "run_finished", "")
