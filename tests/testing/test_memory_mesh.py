"""A program's client over agents in memory does what it does over a hub."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue import Agent, Answer, Context, Part
from retinue.client.received_parts import ReceivedPart
from retinue.core.errors import (
    CallTimedOutError,
    ExecutionFailedError,
    InputRequiredError,
    InvalidParametersError,
    InvalidSettingError,
    RetinueError,
    SkillNotOfferedError,
    StepFailedError,
    UnknownRunError,
    UnknownSkillError,
)
from retinue.testing import connect_agents
from tests.support.thinking import ScriptedModel, think, use
from tests.system import WAIT_S

FLOW = {
    "name": "plan",
    "steps": [
        {"id": "count", "skill": "count_words", "with": {"text": "${{ input.text }}"}},
        {"id": "ask", "wait_for": {"topic": "approve"}},
    ],
    "output": "${{ steps.count.output }}",
}


def word_agent() -> Agent:
    agent = Agent("word-agent", version="1.0.0", logging=True)
    agent_calls: list[str] = []

    @agent.skill
    def count_words(text: str) -> int:
        """Counts the words of a text."""
        return len(text.split())

    @agent.skill
    async def compare(ctx: Context) -> int:
        """Calls itself and another agent."""
        return int(await ctx.call("secret")) + int(await ctx.call("measure", {"text": "a"}))

    @agent.skill(private=True)
    def secret() -> int:
        """Is seen by this agent only."""
        return 40

    @agent.skill
    async def greet(ctx: Context) -> str:
        """Asks a person."""
        await ctx.progress(0.5, "asking")
        return f"Hello, {await ctx.elicit('Who are you?', str)}"

    @agent.skill
    def fail() -> None:
        """Fails."""
        raise ValueError("no")

    @agent.skill
    def draw() -> Any:
        """Draws."""
        return Answer(parts=(Part.image(b"png"),))

    @agent.skill
    def note_once() -> int:
        """Counts its calls."""
        agent_calls.append("")
        return len(agent_calls)

    @agent.skill
    async def wait() -> None:
        """Waits."""
        await asyncio.sleep(WAIT_S)

    return agent


def ruler() -> Agent:
    agent = Agent("ruler")

    @agent.skill
    def measure(text: str) -> int:
        """Measures a text."""
        return len(text) + 1

    return agent


async def test_agents_are_found_called_and_call_each_other() -> None:
    async with connect_agents(word_agent(), ruler()) as mesh:
        assert (await mesh.find("count the words of a text"))[0].skill == "count_words"
        assert sorted(row["name"] for row in await mesh.agents()) == ["ruler", "word-agent"]
        assert (await mesh.show("ruler"))["card"]["name"] == "ruler"
        assert await mesh.call("count_words", text="one two") == 2
        assert await mesh.call("compare") == 42
        assert (await mesh.ask_agents(["measure"])).best.agent == "ruler"  # type: ignore[union-attr]
        image = await mesh.call("draw")
        assert isinstance(image, ReceivedPart)
        assert image.content == b"png"
        assert [await mesh.call("note_once", {}, key="k") for _ in range(2)] == [1, 1]


async def test_failures_are_those_of_a_hub() -> None:
    async with connect_agents(word_agent(), timeout_s=0.2) as mesh:
        with pytest.raises(ExecutionFailedError, match="no"):
            await mesh.call("fail")
        with pytest.raises(InvalidParametersError):
            await mesh.call("count_words", text=3)
        with pytest.raises(SkillNotOfferedError):
            await mesh.call("secret")
        with pytest.raises(InputRequiredError):
            await mesh.call("greet")
        with pytest.raises(CallTimedOutError, match="wait did not answer"):
            await mesh.call("wait")
    with pytest.raises(InvalidSettingError, match="one name"):
        async with connect_agents(ruler(), ruler()):
            pass


async def test_a_stream_reports_and_a_question_is_answered() -> None:
    async with connect_agents(word_agent(), on_question=lambda question: "Ada") as mesh:
        updates = [update async for update in mesh.stream("greet")]
    assert [update.kind for update in updates] == ["progress", "outcome"]
    assert updates[-1].outcome is not None
    assert updates[-1].outcome.get() == "Hello, Ada"


async def test_a_run_is_followed_and_signalled() -> None:
    async with connect_agents(word_agent()) as mesh:
        run = await mesh.start(FLOW, {"text": "one two"}, id="mine")
        async with asyncio.timeout(WAIT_S):
            async for update in run.events():
                if update.step == "ask" and update.kind == "step_started":
                    await run.signal("approve")
            assert await run.result() == 2
        assert [row["run"] for row in await mesh.runs()] == ["mine"]
        failing = await mesh.start({"name": "f", "steps": [{"id": "a", "skill": "fail"}]})
        with pytest.raises(StepFailedError):
            await failing.result()
        with pytest.raises(UnknownRunError):
            await mesh.run("nobody").result()


async def test_runs_are_listed_by_the_status_that_they_show() -> None:
    model = ScriptedModel(*[use(("word-agent__count_words", {"text": f"{n}"})) for n in range(5)])
    limited = think(tools=["count_words"], limits={"turns": 1})
    broken = {"name": "broken", "steps": [{"id": "a", "skill": "fail"}]}
    async with connect_agents(word_agent(), model.agent) as mesh:
        for definition, run_id in ((limited, "limited"), (broken, "failed")):
            run = await mesh.start(definition, id=run_id)
            with pytest.raises(RetinueError):
                await run.result()
        for status in ("limited", "failed"):
            assert [(row["run"], row["status"]) for row in await mesh.runs(status=status)] == [
                (status, status)
            ]
        assert len(await mesh.runs()) == 2


async def test_what_a_mesh_in_memory_does_not_have_is_no_matter_of_tokens() -> None:
    async with connect_agents(word_agent()) as mesh:
        for use_hub in (mesh.imports, mesh.schedules):
            with pytest.raises(UnknownSkillError, match="in memory") as refused:
                await use_hub()
            assert "token" not in refused.value.remedy
            assert "retinue.connect()" in refused.value.remedy
