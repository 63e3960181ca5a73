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
from retinue.workflows.runs.ports import Body, RunContext, Runs
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


class Versions:
    """The body of runs of a workflow whose code is replaced; each version continues runs of the others."""

    def __init__(self, mesh: Mesh, *functions: CodeWorkflow) -> None:
        digests = [f"sha256:{function.function.__name__}" for function in functions]
        self._bodies = {
            function.function.__name__: mesh.body(_with_code(function, digest, frozenset(digests)))
            for function, digest in zip(functions, digests, strict=True)
        }
        self._flows = {function.function.__name__: function for function in functions}
        self.current = functions[0].function.__name__

    async def run(self, context: RunContext, request: RunRequest) -> Any:
        return await self._bodies[self.current](context, request)

    def ask(self, name: str) -> RunRequest:
        """The request of a run of one version, which is current from now on."""
        self.current = name
        return ask_for(_with_code(self._flows[name], f"sha256:{name}", frozenset()))

    async def replace(self, runs: Runs, run_id: str, name: str) -> None:
        """Let a run go on with another version."""
        await runs.cancel(run_id)
        self.current = name
        await runs.resume(run_id)


def _with_code(flow: CodeWorkflow, digest: str, continues: frozenset[str]) -> CodeWorkflow:
    code = flow.definition.code.model_copy(update={"digest": digest, "function": "versions"})
    definition = flow.definition.model_copy(update={"code": code})
    return CodeWorkflow(flow.function, definition, flow.signature, flow.place, continues)


@workflow(name="versions")
async def plain(run: Run) -> None:
    await run.call("work", n=1)
    await run.receive("go")
    await run.call("work", n=2)
    await run.receive("end")


@workflow(name="versions")
async def patched(run: Run) -> None:
    for _ in range(2):
        if await run.patched("early"):
            await run.call("work", n=10)
    await run.call("work", n=1)
    await run.receive("go")
    if await run.patched("late"):
        await run.call("work", n=20)
    await run.call("work", n=2)
    await run.receive("end")


@workflow(name="versions")
async def changed(run: Run) -> None:
    for _ in range(2):
        await run.call("work", n=10)
    await run.call("work", n=1)
    await run.receive("go")
    await run.call("work", n=20)
    await run.call("work", n=2)
    await run.receive("end")


async def _go_on(runs: Runs, versions: Versions, begun_by: str, *later: str) -> dict[str, Any] | None:
    """Run one version until it waits, then the others; the fault of the run."""
    await runs.start(versions.ask(begun_by), run_id=begun_by)
    await until(runs, begun_by, started("go"))
    for name in later:
        await versions.replace(runs, begun_by, name)
    await runs.signal(begun_by, "go", None)
    await runs.signal(begun_by, "end", None)
    fault = (await runs.finish(begun_by)).fault
    return None if fault is None else {"type": fault.type, **fault.data}


async def test_a_run_has_the_changes_of_the_code_that_it_had_not_passed_by(open_runs: Open) -> None:
    """The answer holds for the whole run, and each replay repeats it."""
    mesh = Mesh()
    versions = Versions(mesh, plain, patched, changed)
    async with open_runs(versions.run) as runs:
        assert await _go_on(runs, versions, "plain", "patched", "patched") is None
        assert mesh.begun == {1: 1, 20: 1, 2: 1}
        mesh.begun.clear()
        assert await _go_on(runs, versions, "patched", "patched") is None
        assert mesh.begun == {10: 2, 1: 1, 20: 1, 2: 1}
        steps = [record.step for record in await runs.list_steps("patched")]
        assert "early" not in " ".join(steps)
        await runs.fork("patched", from_step="work-2", new_run_id="fork")
        await until(runs, "fork", started("go"))
        await runs.signal("fork", "go", None)
        await runs.signal("fork", "end", None)
        assert (await runs.finish("fork")).status == "done"


async def test_a_question_that_is_left_out_is_passed_and_a_change_that_is_taken_back_is_refused(
    open_runs: Open,
) -> None:
    mesh = Mesh()
    versions = Versions(mesh, plain, patched, changed)
    async with open_runs(versions.run) as runs:
        assert await _go_on(runs, versions, "patched", "changed") is None
        assert mesh.begun == {10: 2, 1: 1, 20: 1, 2: 1}
        refused = await _go_on(runs, versions, "plain", "changed")
        assert refused is not None
        assert refused["type"] == "nondeterminism"


async def test_a_run_passed_by_a_place_behind_which_any_step_is_recorded(open_runs: Open) -> None:
    """The first of two steps that were made together had not ended."""

    @workflow(name="versions")
    async def before(run: Run) -> None:
        await run.gather(run.step(hang), run.call("work", n=1))

    @workflow(name="versions")
    async def after(run: Run) -> bool:
        is_patched = await run.patched("first")
        await run.gather(run.step(hang), run.call("work", n=1))
        return is_patched

    async def hang() -> None:
        if versions.current == "before":
            await asyncio.Event().wait()

    mesh = Mesh()
    versions = Versions(mesh, before, after)
    async with open_runs(versions.run) as runs:
        await runs.start(versions.ask("before"), run_id="r")
        await until(runs, "r", lambda event: event.kind == "step_finished" and event.step == "work")
        await versions.replace(runs, "r", "after")
        assert (await runs.finish("r")).get() is False
