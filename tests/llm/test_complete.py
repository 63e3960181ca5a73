"""The skill ``complete`` of a model agent, through the whole dispatch path."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.core.call import TextPiece
from retinue.core.errors import (
    BudgetSpentError,
    InvalidParametersError,
    ModelError,
    TooLargeError,
    UnknownSkillError,
)
from retinue.core.record import is_visible
from retinue.llm import model_calls
from retinue.llm.command_model import CommandModel
from retinue.llm.completion import Model, ModelPrompt, ignore_text
from retinue.llm.model_agent import model_agent
from retinue.llm.spec import Budget, ModelSpec, Prices, Provider
from retinue.llm.spending import Ledger
from retinue.mesh.channel import NullChannel
from retinue.thinking.completion import CompletionReply, CompletionRequest
from tests.llm.test_model_agent import KEY, model
from tests.llm.vendors import INPUT_TOKENS, OUTPUT_TOKENS, Act, Fail, Refuse, Say, ToolCall

USER = {"role": "user", "content": [{"type": "text", "text": "How warm is it in Rome?"}]}
WEATHER = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ASKED = {"system": "Be brief.", "messages": [USER], "tools": [WEATHER]}
ROME = ToolCall("weather", '{"city": "Rome"}', "c1")


async def test_a_conversation_with_a_tool_call_goes_on_with_its_result(tmp_path: Path) -> None:
    async with model(tmp_path, Act((ROME,), "Looking.", "Hm.", "c2ln", cached=5), Say("31.")) as running:
        outcome = await running.agent.ask("complete", ASKED)
        reply = outcome.get()
        assert reply["calls"] == [{"id": "c1", "name": "weather", "arguments": {"city": "Rome"}}]
        assert (reply["text"], reply["finish"]) == ("Looking.", "calls")
        cost = ((INPUT_TOKENS - 5) * 3 + 5 * 3 + OUTPUT_TOKENS * 15) / 1e6
        assert outcome.usage == {
            "model": "model-of-anthropic",
            "input_tokens": INPUT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
            "cached_tokens": 5,
            "cost_usd": round(cost, 6),
        }
        result = {"id": "c1", "name": "weather", "content": [{"type": "text", "text": "31"}]}
        messages = [USER, {"role": "assistant", "reply": reply}, {"role": "tool", "results": [result]}]
        last = await running.agent.call("complete", {**ASKED, "messages": messages})
        assert (last["text"], last["finish"], last["calls"]) == ("31.", "stop", [])
        assert "c2ln" in json.dumps(running.server.requests[1])
        assert running.spent["calls"] == 2
        assert KEY not in json.dumps([reply, last])


async def test_cached_and_written_tokens_have_their_own_prices(tmp_path: Path) -> None:
    prices = Prices(3.0, 15.0, cached=0.3, cache_write=3.75)
    async with model(tmp_path, Act((ROME,), cached=5, written=4), prices=prices) as running:
        usage = (await running.agent.ask("complete", ASKED)).usage
    assert usage is not None
    cost = ((INPUT_TOKENS - 9) * 3 + 5 * 0.3 + 4 * 3.75 + OUTPUT_TOKENS * 15) / 1e6
    assert usage["cost_usd"] == round(cost, 6)


async def test_only_the_mesh_sees_the_skill(tmp_path: Path) -> None:
    async with model(tmp_path, Say("x")) as running:
        (skill,) = [skill for skill in running.agent.skills if skill.id == "complete"]
        assert not is_visible(skill.visibility, frozenset({"exposed"}))
        assert is_visible(skill.visibility, frozenset({"mesh"}))
        assert not skill.listed


class Listening(NullChannel):
    """A caller that keeps the text that is written for it."""

    def __init__(self) -> None:
        self.pieces: list[TextPiece] = []

    async def stream_text(self, piece: TextPiece) -> None:
        self.pieces.append(piece)


async def test_the_text_streams_to_the_caller(tmp_path: Path) -> None:
    caller = Listening()
    async with model(tmp_path, Act((ROME,), "Let me look.")) as running:
        await running.agent.ask("complete", ASKED, channel=caller)
    assert "".join(piece.text for piece in caller.pieces) == "Let me look."
    assert caller.pieces[0].at == 0


async def test_a_broken_stream_is_repeated_by_the_one_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.llm.completion.FIRST_WAIT_S", 0.01)
    broken = Act((ROME,), stops="end")
    async with model(tmp_path, broken, Fail(500), Act((ROME,)), retries=2) as running:
        reply = await running.agent.call("complete", ASKED)
        assert reply["finish"] == "calls"
        assert len(running.server.requests) == 3
        # the broken answer was paid too
        assert running.spent["tokens"] > INPUT_TOKENS + OUTPUT_TOKENS


async def test_a_refusal_is_a_reply_that_is_paid(tmp_path: Path) -> None:
    async with model(tmp_path, Refuse()) as running:
        outcome = await running.agent.ask("complete", ASKED)
        assert outcome.get()["finish"] == "refused"
        assert outcome.usage is not None
        assert running.spent["calls"] == 1


async def test_the_longest_answer_is_the_least_of_request_agent_and_budget(tmp_path: Path) -> None:
    async with model(tmp_path, Say("x"), max_tokens=700) as running:
        for asked, sent in ((None, 700), (300, 300), (9_000, 700)):
            await running.agent.call("complete", {**ASKED, "max_tokens": asked})
            assert running.server.requests[-1]["max_tokens"] == sent


async def test_the_budget_counts_messages_tools_and_images_before_the_request(tmp_path: Path) -> None:
    picture = {"type": "image", "data": "iVBORw==", "mime_type": "image/png"}
    tools = [{**WEATHER, "name": f"tool_{number}", "description": "x" * 3_000} for number in range(3)]
    long = {"role": "user", "content": [{"type": "text", "text": "x" * 12_000}]}
    sizes: list[dict[str, Any]] = [
        {**ASKED, "tools": tools},
        {**ASKED, "messages": [long]},
        {**ASKED, "messages": [{"role": "user", "content": [picture]}]},
        {**ASKED, "output_schema": {"type": "object", "description": "x" * 12_000}},
    ]
    async with model(tmp_path, Say("x"), budget=Budget(tokens_per_call=3_000)) as running:
        await running.agent.call("complete", ASKED)
        for arguments in sizes:
            with pytest.raises(BudgetSpentError):
                await running.agent.call("complete", arguments)
        assert len(running.server.requests) == 1


async def test_a_conversation_over_the_limit_is_refused_before_any_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_calls, "MAX_CONVERSATION_BYTES", 1_000)
    async with model(tmp_path, Say("x")) as running:
        long = {"role": "user", "content": [{"type": "text", "text": "x" * 1_000}]}
        with pytest.raises(TooLargeError) as caught:
            await running.agent.call("complete", {**ASKED, "messages": [long]})
        assert caught.value.limit == 1_000
        assert "summary" in caught.value.remedy
        assert running.server.requests == []


async def test_a_conversation_with_an_open_call_is_refused_before_any_request(tmp_path: Path) -> None:
    reply = CompletionReply.from_json(
        {"calls": [{"id": "c1", "name": "weather", "arguments": {}}], "finish": "calls"}
    )
    messages = [USER, {"role": "assistant", "reply": reply.to_json()}, USER]
    async with model(tmp_path, Say("x")) as running:
        with pytest.raises(InvalidParametersError, match=r"messages\[2\]"):
            await running.agent.call("complete", {**ASKED, "messages": messages})
        assert running.server.requests == []


async def test_a_command_line_agent_takes_no_tools_and_says_what_does(tmp_path: Path) -> None:
    spec = ModelSpec("claude", "anthropic", backend="command")

    async def open_nothing() -> Model:
        raise AssertionError("never asked")

    agent = model_agent(spec, open_nothing, Ledger(tmp_path / "x.json", spec), version="1.0.0")
    record = agent.record()
    assert "complete" not in [skill.id for skill in record.skills]
    assert record.labels["backend"] == "command"
    with pytest.raises(UnknownSkillError):
        await agent.call("complete", ASKED)
    command = CommandModel(spec, Ledger(tmp_path / "x.json", spec), {})
    conversation = CompletionRequest.from_json(ASKED)
    with pytest.raises(ModelError, match="cannot take tools") as caught:
        await command.complete(ModelPrompt("", "", 100, conversation), ignore_text)
    assert caught.value.reason == "no_tools"
    assert "API" in caught.value.remedy


def test_a_reservation_assumes_that_no_token_is_in_the_cache_yet(tmp_path: Path) -> None:
    spec = ModelSpec("claude", "anthropic", prices=Prices(4.0, 0.0, cached=0.4, cache_write=5.0))
    conversation = CompletionRequest.from_json(ASKED)
    prompt = ModelPrompt("", "", 100, conversation)
    expected: dict[Provider, float] = {"anthropic": 5.0, "google": 4.0}
    for provider, price in expected.items():
        ledger = Ledger(tmp_path / "x.json", replace(spec, provider=provider))
        with ledger.reserve(prompt, "run") as reservation:
            assert reservation.most.cost_usd == pytest.approx(prompt.most_tokens * price / 1e6)
