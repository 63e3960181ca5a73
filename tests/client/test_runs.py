"""A program starts runs, follows them over restarts of the hub, signals and cancels them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import retinue
from retinue import Agent, Context
from retinue.client.mesh_connection import MeshConnection
from retinue.client.run_handle import RunHandle
from retinue.client.updates import RunUpdate
from retinue.core.errors import (
    AgentUnreachableError,
    CallCancelledError,
    CallTimedOutError,
    DefinitionError,
    InvalidParametersError,
    RetinueError,
    StepFailedError,
)
from retinue.testing import connect_agents
from tests.client.scripted_hub import CutError, FaultError, ScriptedHub
from tests.ports import reserved_port
from tests.serving import serve_app
from tests.system import WAIT_S, System

FLOW = {
    "name": "plan",
    "steps": [{"id": "count", "skill": "count_words", "with": {"text": "${{ input.text }}"}}],
}
APPROVED = {
    "name": "approved",
    "steps": [{"id": "ask", "wait_for": {"topic": "approve"}}],
    "output": "${{ steps.ask.output }}",
}
BROKEN = {"name": "broken", "steps": [{"id": "break", "skill": "break_down"}]}


def word_agent() -> Agent:
    agent = Agent("word-agent")

    @agent.skill
    def count_words(text: str) -> int:
        """Counts words."""
        return len(text.split())

    @agent.skill
    def break_down() -> int:
        """Breaks."""
        raise ValueError("no words left")

    return agent


async def wait_for(run: RunHandle, kind: str, step: str) -> RunUpdate:
    async with asyncio.timeout(WAIT_S):
        async for update in run.events():
            if (update.kind, update.step) == (kind, step):
                return update
    raise AssertionError(f"{step} never {kind}")


async def test_a_run_is_started_followed_and_returns_its_output(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        run = await mesh.start(FLOW, {"text": "one two"}, id="tonight")
        updates = [update async for update in run.events()]
        assert [(one.kind, one.step) for one in updates][-1][0] == "run_finished"
        assert ("step_finished", "count") in [(one.kind, one.step) for one in updates]
        assert [one.seq for one in updates] == sorted({one.seq for one in updates})
        assert [one async for one in run.events(after=updates[-2].seq)] == updates[-1:]
        assert await run.result() == 2
        assert await mesh.run("tonight").result(into=float) == 2.0
        assert await run.status() == "done"
        assert (await run.show())["workflow"] == "plan"
        assert [row["run"] for row in await mesh.runs(workflow="plan")] == ["tonight"]
        assert (await mesh.start(FLOW, {"text": "one two"}, id="tonight")).id == "tonight"
        assert len(await mesh.runs()) == 1
        # a workflow whose parameters have defaults needs no input
        eager = {"name": "eager", "input": {"type": "object"}, "steps": APPROVED["steps"]}
        eager_run = await mesh.start(eager)
        assert (await eager_run.show())["input"] == {}
        await eager_run.cancel()
        with pytest.raises(InvalidParametersError, match="missing required field 'text'"):
            await mesh.start(eager | {"input": {"type": "object", "required": ["text"]}})


async def test_a_step_that_waits_is_answered(system: System) -> None:
    await system.start_hub()
    async with retinue.connect() as mesh:
        run = await mesh.start(APPROVED)
        update = await wait_for(run, "step_started", "ask")
        assert update.facts["topic"] == "approve"
        assert await run.status() == "running"
        with pytest.raises(CallTimedOutError, match=f"run {run.id}"):
            await run.result(timeout_s=0.05)
        assert (await run.signal("approve", {"by": "Ada"}))["step"] == "ask"
        assert await run.result(timeout_s=WAIT_S) == {"by": "Ada"}


async def test_a_failed_run_names_its_step_and_the_cause(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        run = await mesh.start(BROKEN)
        with pytest.raises(StepFailedError, match=r"step break \(agent word-agent\) failed: no words left"):
            await run.result()
        again = await run.rerun("break")
        assert again.id != run.id
        with pytest.raises(StepFailedError):
            await again.result()
        with pytest.raises(DefinitionError):
            await mesh.start({"name": "wrong", "steps": [{"id": "a", "skill": "no_such_skill"}]})
        with pytest.raises(RetinueError, match="Unknown run: nobody"):
            await mesh.run("nobody").result()


WRITTEN = {
    "name": "written",
    "steps": [
        {"id": "draft", "skill": "write", "with": {"title": "A"}},
        {"id": "final", "skill": "write", "with": {"title": "B"}},
    ],
}


def writing_agent() -> Agent:
    agent = Agent("writing-agent")

    @agent.skill
    async def write(title: str, ctx: Context) -> str:
        """Writes a text."""
        await ctx.progress(0.5, "thinking")
        await ctx.stream_text(f"{title} ")
        await ctx.stream_text("text")
        return f"{title} text"

    return agent


async def check_reports(mesh: MeshConnection) -> None:
    run = await mesh.start(WRITTEN, progress=True)
    updates = [update async for update in run.events()]
    kinds = ("step_started", "progress", "text", "step_finished")
    for step, text in (("draft", "A text"), ("final", "B text")):
        heard = [one for one in updates if one.step == step and one.kind in kinds]
        assert [heard[0].kind, heard[-1].kind] == ["step_started", "step_finished"]
        reports = heard[1:-1]
        assert (reports[0].kind, reports[0].text, reports[0].fraction) == ("progress", "thinking", 0.5)
        assert "".join(one.text for one in reports if one.kind == "text") == text
        assert {one.piece.agent for one in reports if one.piece is not None} == {"writing-agent"}
    assert updates[-1].kind == "run_finished"
    numbers = [one.seq for one in updates]
    assert numbers == sorted(numbers)
    # they are not stored, and a program that does not ask for them hears none
    assert {one.kind for one in updates} - {one.kind async for one in mesh.run(run.id).events()} == {
        "progress",
        "text",
    }
    quiet = await mesh.start(WRITTEN)
    assert not {"progress", "text"} & {update.kind async for update in quiet.events()}


async def test_the_reports_of_steps_stand_between_their_events(system: System) -> None:
    await system.start_agent(writing_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        await check_reports(mesh)


async def test_the_reports_of_steps_are_heard_over_agents_in_memory() -> None:
    async with connect_agents(writing_agent()) as mesh:
        await check_reports(mesh)


async def test_a_hub_that_knows_no_reports_gives_the_events_alone() -> None:
    def start(params: dict[str, Any]) -> Any:
        return {"run": params["run"]} if "progress" not in params else refuse("progress")

    def answer(params: dict[str, Any]) -> Any:
        return follow(event(1), done=True) if "progress_after" not in params else refuse("progress_after")

    def refuse(name: str) -> Any:
        errors = [{"path": name, "message": f"unknown field '{name}'"}]
        raise FaultError("Invalid parameters", type="validation_error", errors=errors)

    hub = ScriptedHub(start_run=start, follow_run=answer)
    async with serve_app(hub) as url, retinue.connect(url) as mesh:
        run = await mesh.start("plan", progress=True)
        assert [update.kind async for update in run.events()] == ["step_finished"]
    assert hub.skills == ["start_run", "start_run", "follow_run", "follow_run"]


async def test_a_run_ends_by_cancel_and_not_by_a_cancelled_task(system: System) -> None:
    await system.start_hub()
    async with retinue.connect() as mesh:
        run = await mesh.start(APPROVED)
        following = asyncio.create_task(run.result())
        await wait_for(run, "step_started", "ask")
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        assert await run.status() == "running"
        assert (await run.cancel())["status"] == "cancelled"
        with pytest.raises(CallCancelledError):
            await run.result()
        await run.resume()
        await run.signal("approve")
        assert await run.result(timeout_s=WAIT_S) is True


async def test_a_schedule_is_added_and_changed(system: System) -> None:
    await system.start_hub()
    async with retinue.connect() as mesh:
        added = await mesh.schedule("direct", name="nightly", cron="0 3 * * *", input={"prompt": "x"})
        assert added["status"] == "active"
        assert [row["schedule"] for row in await mesh.schedules()] == ["nightly"]
        assert (await mesh.change_schedule("nightly", "pause"))["status"] == "paused"
        assert "direct" in [row["name"] for row in await mesh.workflows()]


# a hub that restarts


def follow(*events: dict[str, Any], done: bool = False) -> dict[str, Any]:
    last = events[-1]["seq"] if events else 0
    reply = {"events": list(events), "next": last, "done": done, "status": "done" if done else "running"}
    return reply | ({"output": 7} if done else {})


def event(seq: int) -> dict[str, Any]:
    return {"seq": seq, "event": "step_finished", "step": f"s{seq}", "at": 1.0, "kind": "call"}


async def test_events_go_on_after_a_restart_of_the_hub_and_none_comes_twice() -> None:
    first = ScriptedHub(follow_run=lambda params: follow(event(1), event(2)))
    second = ScriptedHub(follow_run=lambda params: follow(event(3), done=True))
    seen: list[int] = []
    with reserved_port() as port:
        async with retinue.connect(f"http://127.0.0.1:{port}") as mesh:
            run = mesh.run("mine")
            updates = run.events()
            async with serve_app(first, port=port):
                async for update in updates:
                    seen.append(update.seq)
                    if update.seq == 2:
                        break
            resuming = asyncio.ensure_future(anext(updates))
            await asyncio.sleep(0.05)
            async with serve_app(second, port=port), asyncio.timeout(WAIT_S):
                seen.append((await resuming).seq)
                seen += [update.seq async for update in updates]
                assert await run.result() == 7
    assert seen == [1, 2, 3]
    assert second.received[0][1]["after"] == 2


async def test_a_hub_that_stops_or_cuts_off_is_asked_again() -> None:
    replies: list[Any] = [
        follow(event(1)),
        FaultError("Busy: stopping", type="stopping", retry_after_s=0.01),
        CutError(),
        CutError(),
        CutError(),
        CutError(),
        follow(event(2), done=True),
    ]

    def answer(params: dict[str, Any]) -> Any:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async with serve_app(ScriptedHub(follow_run=answer)) as url, retinue.connect(url) as mesh:
        assert [update.seq async for update in mesh.run("mine").events()] == [1, 2]
    assert not replies


async def test_a_hub_that_does_not_come_back_ends_the_events() -> None:
    def lose(params: dict[str, Any]) -> Any:
        raise CutError

    hub = ScriptedHub(follow_run=lambda params: follow(event(1)))
    async with serve_app(hub) as url, retinue.connect(url, retries=0) as mesh:
        run = RunHandle("mine", mesh.run("mine")._hub, _patience_s=0.01)
        updates = run.events()
        assert (await anext(updates)).seq == 1
        hub.answers["follow_run"] = lose
        with pytest.raises(AgentUnreachableError):
            await anext(updates)
        with pytest.raises(AgentUnreachableError):
            await mesh.run("mine").result()


async def test_a_start_that_is_lost_is_sent_again_under_the_same_id() -> None:
    count = 0

    def start(params: dict[str, Any]) -> dict[str, Any]:
        nonlocal count
        count += 1
        if count == 1:
            raise CutError
        return {"run": params["run"], "workflow": "w"}

    hub = ScriptedHub(start_run=start)
    async with serve_app(hub) as url, retinue.connect(url) as mesh:
        run = await mesh.start("w")
    assert [params["run"] for _, params in hub.received] == [run.id, run.id]
