"""Runs of workflows in Python over every implementation of the ports."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from retinue import Run, workflow
from retinue.flows.body import CodeBody, HostedWorkflows
from retinue.flows.workflow import CodeWorkflow
from retinue.testing.memory_caller import MemoryCaller
from retinue.workflows.definitions.run_forms import WholeRun, render_form
from retinue.workflows.interpreter.frame import Tools
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.runs.ports import Body, Runs
from retinue.workflows.runs.records import RunRequest
from tests.workflows.implementations import Open
from tests.workflows.runs.effects import started, until


class Mesh:
    """A skill ``work`` that hangs for the numbers in ``hanging``, and counts how often it begins."""

    def __init__(self, *hanging: int) -> None:
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.hanging = set(hanging)
        self.caller = MemoryCaller()
        self.caller.offer("work", self._work, agent="worker")

    async def _work(self, given: Any) -> Any:
        number = given["n"]
        self.begun[number] += 1
        if number in self.hanging:
            await asyncio.Event().wait()
        self.ended[number] += 1
        return {"n": number + 1}

    def body(self, *workflows: CodeWorkflow) -> Body:
        tools = Tools(self.caller)
        return Interpreter(tools, code=CodeBody(HostedWorkflows(workflows), tools).run).run


def ask_for(flow: CodeWorkflow, given: Any = None) -> RunRequest:
    return RunRequest(flow.name, render_form(WholeRun.of(flow.definition, {})), given or {})


@workflow
async def fan(run: Run, numbers: list[int]) -> list[int]:
    first = await run.call("work", n=0)
    some = await run.gather(*(run.call("work", n=number) for number in numbers), limit=3)
    await run.sleep(0.01)
    last = await run.call("work", n=100)
    return [first["n"], *(one["n"] for one in some), last["n"]]


async def test_a_run_that_is_stopped_in_the_middle_of_a_gather_repeats_what_was_in_flight(
    open_runs: Open,
) -> None:
    mesh = Mesh(2, 3)
    async with open_runs(mesh.body(fan)) as runs:
        await runs.start(ask_for(fan, {"numbers": [1, 2, 3, 4]}), run_id="r")
        async with asyncio.timeout(30):
            while not (mesh.begun[2] and mesh.begun[3]):
                await asyncio.sleep(0.01)
            finished = set[str]()
            async for event in runs.follow("r"):
                if event.kind == "step_finished":
                    finished.add(event.step)
                if finished >= {"work-2", "work-5"}:
                    break
        await runs.cancel("r")
        mesh.hanging.clear()
        await runs.resume("r")
        assert (await runs.finish("r")).get() == [1, 2, 3, 4, 5, 101]
        steps = [step.step for step in await runs.list_steps("r") if "/" not in step.step]
        assert steps == ["work", "work-2", "work-3", "work-4", "work-5", "work-6"]
    assert mesh.begun == {0: 1, 1: 1, 2: 2, 3: 2, 4: 1, 100: 1}
    assert set(mesh.ended.values()) == {1}
    keys = [call.idempotency_key for call in mesh.caller.calls if call.arguments["n"] == 2]
    assert keys == ["r/work-3"] * 2


async def test_a_run_of_code_that_is_not_here_waits_and_can_be_cancelled(open_runs: Open) -> None:
    mesh = Mesh()
    async with open_runs(mesh.body()) as runs:
        await runs.start(ask_for(fan, {"numbers": []}), run_id="r")
        await until(runs, "r", lambda event: event.kind == "run_started")
        assert (await runs.get("r")).status == "running"
        assert (await runs.cancel("r")).status == "cancelled"
    assert not mesh.begun


async def test_a_run_goes_on_with_later_code_only_if_that_code_says_so(open_runs: Open) -> None:
    """The same function name with another digest, and with the digest of the first among ``continues``."""

    @workflow(name="versions")
    async def first(run: Run) -> str:
        await run.call("work", n=1)
        return await run.receive("go", str)

    mesh = Mesh()
    later = CodeWorkflow(
        first.function,
        first.definition.model_copy(
            update={"code": first.definition.code.model_copy(update={"digest": "sha256:later"})}
        ),
        first.signature,
        first.place,
        frozenset({first.definition.code.digest}),
    )
    other = CodeWorkflow(first.function, later.definition, first.signature, first.place, frozenset())
    assert not other.hosted.executes(first.hosted.code)
    async with open_runs(mesh.body(later)) as runs:
        await runs.start(ask_for(first), run_id="r")
        await until(runs, "r", started("go"))
        await runs.signal("r", "go", "went on")
        assert (await runs.finish("r")).get() == "went on"


async def test_a_rerun_keeps_the_results_before_its_step(open_runs: Open) -> None:
    mesh = Mesh()
    async with open_runs(mesh.body(fan)) as runs:
        await runs.start(ask_for(fan, {"numbers": [1, 2]}), run_id="r")
        assert (await runs.finish("r")).get() == [1, 2, 3, 101]
        await runs.fork("r", from_step="work-4", new_run_id="again")
        assert (await runs.finish("again")).get() == [1, 2, 3, 101]
    assert mesh.begun == {0: 1, 1: 1, 2: 1, 100: 2}


@workflow
async def tells(run: Run) -> str:
    await run.log("begins", data={"n": 1})
    await run.call("work", n=1)
    await run.log("worked once")
    await run.call("work", n=2)
    await run.log("worked twice", level="warning")
    return await run.receive("go", str)


async def test_a_line_of_the_log_is_stored_once_and_a_rerun_tells_only_what_it_does(open_runs: Open) -> None:
    mesh = Mesh()

    async def read_log(runs: Runs, run_id: str) -> list[str]:
        return [event.facts["message"] for event in await runs.list_events(run_id) if event.kind == "log"]

    async with open_runs(mesh.body(tells)) as runs:
        await runs.start(ask_for(tells), run_id="r")
        await until(runs, "r", started("go"))
        await runs.cancel("r")
        await runs.resume("r")
        await runs.signal("r", "go", "went on")
        assert (await runs.finish("r")).get() == "went on"
        assert await read_log(runs, "r") == ["begins", "worked once", "worked twice"]
        await runs.fork("r", from_step="work-2", new_run_id="again")
        await runs.signal("again", "go", "again")
        assert (await runs.finish("again")).get() == "again"
        assert await read_log(runs, "again") == ["worked once", "worked twice"]
    assert mesh.begun == {1: 1, 2: 2}
