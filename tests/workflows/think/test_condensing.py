"""Older turns of a step think are condensed before the window of the model is full."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from retinue import Agent
from retinue.core.errors import ModelError
from retinue.testing import ModelTurn, ScriptedModel, WorkflowRun, run_workflow
from retinue.testing.memory_runs import MemorySessions
from retinue.testing.scripted_model import NOTES, ScriptedReplies
from retinue.thinking.completion import AssistantMessage, CompletionRequest, ToolMessage
from retinue.thinking.condensing import CONDENSE
from tests.requirements import requirement
from tests.support.thinking import think


def make_reader(size: int = 3_000) -> Agent:
    agent = Agent("files", version="1.0.0")

    @agent.skill(read_only=True)
    async def read(page: int) -> str:
        """Reads a page."""
        return f"page {page} " + "x" * size

    return agent


def read_pages(count: int, answer: str = "Read.") -> list[Any]:
    return [*(ModelTurn(calls=[("files__read", {"page": n})]) for n in range(count)), answer]


async def run_script(model: ScriptedModel, **options: Any) -> WorkflowRun:
    options = {"tools": ["read"], **options}
    return await run_workflow(think(**options), agents=[model, make_reader()], crash_at_every_step=True)


def summaries(model: ScriptedModel) -> list[CompletionRequest]:
    return [request for request in model.requests if request.system == CONDENSE]


def paths(run: WorkflowRun, word: str) -> list[str]:
    return [step.step for step in run.steps if word in step.step]


@requirement("T-15")
async def test_older_turns_are_condensed_and_each_request_fits_into_the_window() -> None:
    model = ScriptedModel(*read_pages(12), context_window=8_000)
    run = await run_script(model)
    assert run.get() == "Read."
    assert paths(run, "condense") == [f"research/condense-{n}" for n in range(1, 3)]
    # no finished request and no call was repeated, although the run was interrupted after each step
    assert len(model.requests) == 13 + 2
    assert run.agents.count("files") == 12
    for request in model.requests:
        assert len(orjson.dumps(request.to_json())) < 3 * 8_000
    last = model.requests[-1]
    first, notes, *rest = last.messages
    assert first.to_json()["content"][0]["text"] == "Do it"
    assert f"\n{NOTES} " in notes.to_json()["content"][0]["text"]
    assert isinstance(rest[0], AssistantMessage)
    assert isinstance(rest[-1], ToolMessage)
    assert "page 11 " in str(rest[-1].to_json())
    _, second = summaries(model)
    assert second.tools == ()
    assert NOTES in str(second.messages)


@requirement("T-15")
async def test_what_was_condensed_is_among_the_steps_and_in_the_budget() -> None:
    model = ScriptedModel(*read_pages(7), context_window=8_000)
    run = await run_script(model)
    (event,) = [
        event for event in run.events if event.step == "research/condense-1" and event.kind == "step_started"
    ]
    shown = event.facts["input"]
    assert shown["condenses"] == "10 messages"
    assert (shown["window_tokens"], shown["window"]) == (8_000, "card of the model")
    assert shown["prompt_tokens"] > 5_600
    spent = [
        step.outcome.value["usage"]["input_tokens"]
        for step in run.steps
        if step.step.startswith("research/") and "usage" in (step.outcome.value or {})
    ]
    assert len(spent) == 9
    assert run.record.usage is not None
    assert run.record.usage["input_tokens"] == sum(spent)


async def test_without_a_window_on_the_card_100000_tokens_are_assumed_and_said() -> None:
    model = ScriptedModel(*read_pages(12))
    run = await run_workflow(
        think(tools=["read"], limits={"tokens": 2_000_000}, context={"keep_results": 100_000}),
        agents=[model, make_reader(40_000)],
    )
    assert run.get() == "Read."
    (event,) = [
        event for event in run.events if event.step == "research/condense-1" and event.kind == "step_started"
    ]
    assert event.facts["input"]["window_tokens"] == 100_000
    assert event.facts["input"]["window"] == "assumed"


async def test_compact_at_is_the_part_of_the_window() -> None:
    model = ScriptedModel(*read_pages(7), context_window=20_000)
    run = await run_script(model)
    assert not summaries(model)
    model = ScriptedModel(*read_pages(7), context_window=20_000)
    await run_script(model, context={"compact_at": 0.2})
    assert summaries(model)
    assert run.get() == "Read."


@pytest.mark.parametrize("reason", ["refused", "too_long", "empty"])
async def test_without_a_summary_the_run_goes_on_with_the_end_of_the_turns(
    reason: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ModelError("scripted", reason, "no")

    monkeypatch.setattr(ScriptedReplies, "_condense", fail)
    model = ScriptedModel(*read_pages(7), context_window=8_000)
    run = await run_workflow(think(tools=["read"]), agents=[model, make_reader()])
    assert run.get() == "Read."
    text = str(model.requests[-1].messages[1].to_json())
    assert "# Call of files__read" in text


@requirement("T-15")
async def test_a_prompt_that_the_model_refuses_as_too_long_is_condensed_once() -> None:
    """The card may say too much: what the model refused is the window then."""
    error = ModelError("scripted", "too_long", "300 tokens at most")
    turns = read_pages(12)
    model = ScriptedModel(*turns[:11], ModelTurn("Read.", error=error, times=1))
    run = await run_workflow(think(tools=["read"]), agents=[model, make_reader(2_000)])
    assert run.get() == "Read."
    assert paths(run, "condense") == ["research/condense-1"]

    always = ScriptedModel(*turns[:11], error)
    run = await run_workflow(think(tools=["read"]), agents=[always, make_reader(2_000)])
    assert run.status == "failed"
    assert "too_long" in str(run.record.fault)
    assert len(summaries(always)) == 1


@requirement("T-16")
async def test_a_long_history_of_a_session_is_condensed_once() -> None:
    sessions = MemorySessions()
    requests: list[CompletionRequest] = []
    for number in range(6):
        model = ScriptedModel(*["y" * 7_500] * 9)
        flow = think(f"{number} " + "x" * 3_000, tools=[], session="s")
        run = await run_workflow(flow, agents=[model], sessions=sessions, crash_at_every_step=True)
        assert run.status == "done"
        assert len(model.requests) == 1 + len(summaries(model))
        requests += model.requests
    made = [request.system == CONDENSE for request in requests]
    assert made == [False, False, False, True, False, True, False, True, False]
    # before the last run: the notes, two exchanges, and the prompt
    assert len(requests[-1].messages) == 6
    assert NOTES in str(requests[-1].messages[0].to_json())
    assert NOTES in str(requests[5].messages)
