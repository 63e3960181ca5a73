"""A person is asked before the calls that `approve` names."""

from __future__ import annotations

from typing import Any

from retinue import Agent
from retinue.testing import run_workflow
from tests.support.thinking import ScriptedModel, say, think, use


def make_files(written: list[str]) -> Agent:
    agent = Agent("files", version="1.0.0")

    @agent.skill(read_only=True)
    async def read_file(path: str) -> str:
        """Reads a file."""
        return f"content of {path}"

    @agent.skill
    async def write_file(path: str, text: str) -> str:
        """Writes a file."""
        written.append(path)
        return "written"

    return agent


def write(path: str) -> tuple[str, dict[str, str]]:
    return "files__write_file", {"path": path, "text": "x"}


TOOLS: dict[str, Any] = {"tools": ["files/*"], "approve": ["files/write_*"]}


async def test_a_call_that_a_person_approves_is_made() -> None:
    written: list[str] = []
    model = ScriptedModel(use(write("a")), say("done"))
    run = await run_workflow(
        think(**TOOLS), agents=[model.agent, make_files(written)], approvals={"files/write_file": True}
    )
    assert run.get() == "done"
    assert written == ["a"]


async def test_the_model_reads_why_a_person_refused_a_call() -> None:
    written: list[str] = []
    model = ScriptedModel(use(write("a")), say("I leave it"))
    run = await run_workflow(
        think(**TOOLS), agents=[model.agent, make_files(written)], approvals={"write_*": "not on a Sunday"}
    )
    assert run.get() == "I leave it"
    assert written == []
    assert "not on a Sunday" in model.list_results()[0]


async def test_calls_of_one_turn_are_asked_about_together_and_the_safe_ones_are_made() -> None:
    written: list[str] = []
    model = ScriptedModel(use(write("a"), ("files__read_file", {"path": "r"}), write("b")), say("done"))
    run = await run_workflow(think(**TOOLS), agents=[model.agent, make_files(written)], approvals={"*": True})
    assert run.get() == "done"
    assert sorted(written) == ["a", "b"]
    steps = [step.step.removeprefix("research/turn-1/") for step in run.steps]
    assert [name for name in steps if name.startswith(("approve", "answer", "use"))] == [
        "approve-1",
        "approve-2",
        "answer-1",
        "use-1",
        "answer-2",
        "use-2",
    ]


async def test_a_run_that_is_interrupted_at_each_step_asks_each_question_once() -> None:
    written: list[str] = []
    model = ScriptedModel(use(write("a"), write("b")), say("done"))
    run = await run_workflow(
        think(**TOOLS),
        agents=[model.agent, make_files(written)],
        approvals={"*": True},
        crash_at_every_step=True,
    )
    assert run.get() == "done"
    assert sorted(written) == ["a", "b"]
