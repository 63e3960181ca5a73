"""Roles, modes and built-in workflows through real agents: published, found by role, called over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from tests.requirements import requirement
from tests.system import WAIT_S, Hub, System, Wire

Answer = Callable[[str], str]


@dataclass
class Crew:
    """A hub, agents with roles, and what they were asked."""

    system: System
    wire: Wire
    hub: Hub | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    cut_off: asyncio.Event = field(default_factory=asyncio.Event)

    async def join(self, name: str, roles: list[str], answer: Answer | None, score: float = 0.5) -> None:
        """Let an agent join that has these roles; without ``answer`` it hangs until it is cut off."""
        scores = {"planning": score, "execution": score, "review": score}
        agent = Agent(name, version="1.0.0", scores=scores)

        async def ask(prompt: str) -> str:
            self.asked.append((name, prompt))
            if answer is not None:
                return answer(prompt)
            self.hanging.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cut_off.set()
                raise
            return "never"

        for role in roles:
            agent.skill(f"{role}_by_prompt", roles=[role])(ask)
        await self.system.start_agent(agent)

    async def get(self, skill: str, arguments: Any = None) -> Any:
        if self.hub is None:
            self.hub = await self.system.start_hub()
        return (await self.wire.call(self.hub.url, skill, arguments)).result

    async def run(self, workflow: Any, given: Any = None, **more: Any) -> Any:
        reply = await self.get("orchestrate_workflow", {"workflow": workflow, "input": given or {}, **more})
        return reply["output"]


@pytest.fixture
def crew(system: System, wire: Wire) -> Crew:
    return Crew(system, wire)


def says(text: str) -> Answer:
    return lambda prompt: text


def ask(mode: str, **more: Any) -> dict[str, Any]:
    parallel = {"mode": mode, "role": "execute", "prompt": "Capital of ${{ input.of }}?", **more}
    return {
        "name": f"ask-{mode}",
        "steps": [{"id": "ask", "parallel": parallel}],
        "output": {"output": "${{ steps.ask.output }}", "rows": "${{ steps.ask.ballots }}"},
    }


@requirement("L-15")
async def test_a_race_aborts_the_http_calls_of_the_losers(crew: Crew) -> None:
    """All the way to the skill in the loser's process."""
    await crew.join("mute", ["execute"], None, score=0.9)

    def answer(prompt: str) -> str:
        return "Paris"

    await crew.join("swift", ["execute"], answer)
    async with asyncio.timeout(WAIT_S):
        output = await crew.run(ask("race"), {"of": "France"})
        await crew.cut_off.wait()
    assert output["output"] == "Paris"
    assert [(row["agent"], row["ok"]) for row in output["rows"]] == [("swift", True)]


@requirement("L-15")
async def test_all_vote_and_merge_over_http(crew: Crew) -> None:
    for name, text, score in (("a", "Rome", 0.9), ("b", "paris.", 0.4), ("c", "Paris", 0.6)):
        await crew.join(name, ["execute"], says(text), score)
    await crew.join("judge", ["review"], says("Paris, all in all"))
    every = await crew.run(ask("all"), {"of": "France"})
    assert [(row["agent"], row["ok"], row["output"]) for row in every["output"]] == [
        ("a", True, "Rome"),
        ("c", True, "Paris"),
        ("b", True, "paris."),
    ]
    assert all(row["duration_ms"] > 0 for row in every["output"])
    assert (await crew.run(ask("vote"), {"of": "France"}))["output"] == "Paris"
    assert (await crew.run(ask("merge"), {"of": "France"}))["output"] == "Paris, all in all"
    assert crew.asked[-1][0] == "judge"
    assert "Capital of France?" in crew.asked[-1][1]


def _write(prompt: str) -> str:
    if "Apply the findings" in prompt:
        return "code, mended"
    if "by the plan below" in prompt:
        return "built by plan: " + prompt.rpartition("Plan:")[2].strip().splitlines()[1]
    if "A reviewer says" in prompt:
        return "second draft"
    return "first draft"


def _review(prompt: str) -> str:
    if "Answer with the letter" in prompt:
        return "B"
    if "security of this code" in prompt:
        return "no holes"
    if "performance of this code" in prompt:
        return "fast enough"
    return "APPROVED" if "second draft" in prompt else "Make it better."


BUILT_INS: dict[str, dict[str, Any]] = {
    "direct": {"output": "first draft", "agent": "writer"},
    "plan-execute": {
        "plan": "1. think",
        "output": "built by plan: 1. think",
        "agents": ["thinker", "writer"],
    },
    "competitive": {"output": "other draft", "agent": "rival", "decided_by": "reviewer"},
    "iterative": {
        "output": "second draft",
        "review": "APPROVED",
        "approved": True,
        "agents": ["writer", "judge"],
    },
    "code-review": {
        "output": "code, mended",
        "code": "first draft",
        "security": "no holes",
        "performance": "fast enough",
    },
}


@requirement("L-31")
@pytest.mark.parametrize("name", BUILT_INS)
async def test_each_built_in_workflow_runs_on_agents_found_by_role(crew: Crew, name: str) -> None:
    await crew.join("thinker", ["plan"], says("1. think"))
    await crew.join("writer", ["execute"], _write, score=0.9)
    await crew.join("rival", ["execute"], says("other draft"), score=0.1)
    await crew.join("judge", ["review"], _review)
    output = await crew.run(name, {"prompt": "Write something"})
    ballots = output.pop("ballots", [])
    assert output == BUILT_INS[name]
    assert [row["agent"] for row in ballots] == (["writer", "rival"] if name == "competitive" else [])


@requirement("L-30")
async def test_a_workflow_can_be_chosen_by_the_prompt_and_the_reply_says_why(crew: Crew) -> None:
    await crew.join("writer", ["execute"], says("done"))
    arguments = {"workflow": "auto", "input": {"prompt": "What is 2 + 2?"}}
    reply = await crew.get("orchestrate_workflow", arguments)
    assert reply["workflow"] == "direct"
    assert reply["choice"]["because"] == "it is one simple task"
    assert reply["output"]["output"] == "done"


@requirement("L-12")
async def test_a_step_can_be_given_to_another_agent_for_one_run(crew: Crew) -> None:
    for name, score in (("good", 0.9), ("other", 0.1)):
        await crew.join(name, ["execute"], says(name), score)
    workflow = {"name": "w", "steps": [{"prompt": "x"}]}
    assert await crew.run(workflow) == "good"
    assert await crew.run(workflow, overrides={"agents": {"execute": "other"}}) == "other"
    assert crew.hub is not None
    refused = await crew.wire.call(
        crew.hub.url,
        "start_run",
        {"workflow": workflow, "overrides": {"timeouts": {"exekute": 5}}},
    )
    assert refused.error["data"]["type"] == "unknown_step"


async def test_a_run_that_waits_for_a_person_is_answered_by_a_signal(crew: Crew) -> None:
    await crew.join("writer", ["execute"], says("deployed"))
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    workflow = {
        "name": "deploy",
        "steps": [
            {
                "id": "side",
                "parallel": {"mode": "all"},
                "steps": [
                    {"id": "approval", "wait_for": {"topic": "go", "message": "Deploy?", "schema": schema}}
                ],
            },
            {"id": "deploy", "when": "steps.approval.output.ok", "prompt": "Deploy it"},
        ],
    }
    await crew.get("start_run", {"workflow": workflow, "run": "r"})
    waits = await _until(crew, lambda event: event.get("kind") == "wait")
    assert (waits["step"], waits["message"]) == ("side.approval/approval", "Deploy?")
    (side,) = (await crew.get("show_run", {"run": "r"}))["steps"]
    assert side["status"] == "waiting"
    assert crew.hub is not None
    for value, topic, words in (
        ("yes", "go", "Invalid parameters"),
        ({"ok": True}, "gone", "waits for 'gone'"),
    ):
        refused = await crew.wire.call(
            crew.hub.url, "signal_run", {"run": "r", "topic": topic, "value": value}
        )
        assert words in refused.error["message"]
    given = await crew.get("signal_run", {"run": "r", "topic": "go", "value": {"ok": True}})
    assert given == {"run": "r", "topic": "go", "step": "side.approval/approval"}
    await _until(crew, lambda event: event["event"] == "run_finished" and event["step"] == "")
    shown = await crew.get("show_run", {"run": "r"})
    assert (shown["status"], shown["output"]) == ("done", "deployed")


async def _until(crew: Crew, found: Callable[[Any], bool]) -> Any:
    """The first event of run ``r`` of which that holds."""
    after = 0
    async with asyncio.timeout(WAIT_S):
        while True:
            reply = await crew.get("follow_run", {"run": "r", "after": after})
            if event := next((one for one in reply["events"] if found(one)), None):
                return event
            after = reply["next"]
