"""A model agent that replies by a script."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from retinue.core.call import TextPiece
from retinue.core.errors import (
    BudgetSpentError,
    BusyError,
    CallTimedOutError,
    DefinitionError,
    InvalidSettingError,
    ModelError,
)
from retinue.llm.spec import Budget
from retinue.mesh.channel import NullChannel
from retinue.testing import ModelScript, ModelTurn, ScriptedModel
from retinue.testing.model_script import ErrorKind
from retinue.thinking.completion import CompletionRequest

USER = {"role": "user", "content": [{"type": "text", "text": "How warm is it in Rome?"}]}
WEATHER = {"name": "weather", "description": "The weather", "input_schema": {"type": "object"}}
ROME = ("weather", {"city": "Rome"})


async def go_on(model: ScriptedModel, turns: int, **fields: Any) -> list[dict[str, Any]]:
    """The replies of so many turns; each call gets the result "31"."""
    messages: list[dict[str, Any]] = [fields.pop("user", USER)]
    replies: list[dict[str, Any]] = []
    for _ in range(turns):
        arguments = {"system": "Be brief.", "messages": messages, "tools": [WEATHER], **fields}
        reply = await model.call("complete", arguments)
        replies.append(reply)
        content = [{"type": "text", "text": "31"}]
        results = [{"id": call["id"], "name": call["name"], "content": content} for call in reply["calls"]]
        messages = [
            *messages,
            {"role": "assistant", "reply": reply},
            {"role": "tool", "results": results} if results else USER,
        ]
    return replies


async def test_the_turns_come_in_order_and_a_repeated_request_gets_the_same_reply() -> None:
    model = ScriptedModel(ModelTurn("Looking.", [ROME, ROME]), ModelTurn(calls=[ROME]), "31 degrees.")
    first, again = await go_on(model, 3), await go_on(model, 3)
    assert first == again
    assert [reply["text"] for reply in first] == ["Looking.", "", "31 degrees."]
    assert [reply["finish"] for reply in first] == ["calls", "calls", "stop"]
    assert len({call["id"] for reply in first for call in reply["calls"]}) == 3
    assert model.list_results() == [("31", False)] * 3
    assert model.find_rewritten() == []
    with pytest.raises(InvalidSettingError, match="there is no turn 4"):
        await go_on(model, 4)


async def test_a_turn_can_be_made_from_the_request() -> None:
    def name_tools(request: CompletionRequest) -> str:
        return ", ".join(tool.name for tool in request.tools)

    (reply,) = await go_on(ScriptedModel(name_tools), 1)
    assert reply["text"] == "weather"


async def test_each_conversation_has_the_script_that_its_first_message_names() -> None:
    rome = ModelScript(["31"], when="Rome")
    model = ScriptedModel("unknown", scripts=[rome, ModelScript(["again"], when="Be brief", repeats=True)])
    oslo = {"role": "user", "content": [{"type": "text", "text": "And in Oslo?"}]}
    replies = await asyncio.gather(go_on(model, 1), go_on(model, 3, user=oslo), go_on(model, 1, system="x"))
    assert [[reply["text"] for reply in talk] for talk in replies] == [["31"], ["again"] * 3, ["31"]]


async def test_the_last_turn_answers_where_calls_are_forbidden() -> None:
    model = ScriptedModel(ModelTurn(calls=[ROME]), last="As far as I came: 31.", repeats=True)
    assert (await go_on(model, 1))[0]["finish"] == "calls"
    (reply,) = await go_on(model, 1, tool_choice="none")
    assert (reply["text"], reply["calls"]) == ("As far as I came: 31.", [])


async def test_errors_come_as_from_a_model_agent_and_go_away() -> None:
    model = ScriptedModel(ModelTurn("ok", error="busy", times=2, retry_after_s=7))
    for _ in range(2):
        with pytest.raises(BusyError) as busy:
            await go_on(model, 1)
        assert busy.value.retry_after_s == 7
    assert (await go_on(model, 1))[0]["text"] == "ok"
    kinds: list[ErrorKind] = ["unavailable", "too_long", "empty", "malformed", "login", "quota", "rejected"]
    for kind in kinds:
        with pytest.raises(ModelError) as failed:
            await go_on(ScriptedModel(ModelTurn(error=kind)), 1)
        assert failed.value.reason == kind
    with pytest.raises(CallTimedOutError):
        await go_on(ScriptedModel(ModelTurn(error="timeout")), 1)
    with pytest.raises(ModelError):
        await go_on(ScriptedModel(ModelError("x", "quota", "no credit")), 1)


async def test_its_own_retries_are_those_of_every_model_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.llm.completion.FIRST_WAIT_S", 0.01)
    model = ScriptedModel(ModelTurn("ok", error="unavailable", times=2), retries=2)
    assert (await go_on(model, 1))[0]["text"] == "ok"
    assert len(model.requests) == 3


class Listening(NullChannel):
    def __init__(self) -> None:
        self.pieces: list[TextPiece] = []

    async def stream_text(self, piece: TextPiece) -> None:
        self.pieces.append(piece)


async def test_a_stream_that_stops_has_written_its_text() -> None:
    caller = Listening()
    model = ScriptedModel(ModelTurn("half of", stops=True))
    outcome = await model.ask("complete", {"messages": [USER]}, channel=caller)
    assert isinstance(outcome.error, ModelError)
    assert outcome.error.reason == "unavailable"
    assert "half of".startswith("".join(piece.text for piece in caller.pieces))


async def test_malformed_arguments_cut_replies_and_refusals() -> None:
    model = ScriptedModel(
        ModelTurn(calls=[("weather", '{"city": ')]),
        ModelTurn("I begin", [ROME], finish="length"),
        ModelTurn("No.", finish="refused"),
    )
    malformed, cut, refused = await go_on(model, 3)
    assert malformed["calls"][0]["arguments"] == '{"city": '
    assert (cut["finish"], len(cut["calls"])) == ("length", 1)
    assert refused["finish"] == "refused"


async def test_an_output_is_given_where_a_schema_asks_for_it() -> None:
    model = ScriptedModel(ModelTurn(output={"warm": True}))
    (plain,), (asked,) = await go_on(model, 1), await go_on(model, 1, output_schema={"type": "object"})
    assert plain["text"] == asked["text"] == '{"warm": true}'
    assert "output" not in plain
    assert asked["output"] == {"warm": True}


async def test_tokens_and_cost_are_exact_and_the_budget_is_that_of_a_model_agent() -> None:
    model = ScriptedModel(
        ModelTurn("x", tokens=(1_000, 200, 600)),
        prices={"input": 3.0, "output": 15.0, "cached": 0.3},
        budget=Budget(tokens_per_day=11_000),
    )
    outcome = await model.ask("complete", {"messages": [USER]})
    assert outcome.usage == {
        "model": "scripted-model",
        "input_tokens": 1_000,
        "output_tokens": 200,
        "cached_tokens": 600,
        "cost_usd": round((400 * 3 + 600 * 0.3 + 200 * 15) / 1e6, 6),
    }
    for _ in range(9):
        outcome = await model.ask("complete", {"messages": [USER]})
    assert isinstance(outcome.error, BudgetSpentError)


async def test_a_text_beyond_the_limit_of_the_answer_is_cut() -> None:
    outcome = await ScriptedModel("x" * 1_000).ask("complete", {"messages": [USER], "max_tokens": 20})
    reply = outcome.get()
    assert (reply["finish"], len(reply["text"])) == ("length", 80)
    assert outcome.usage is not None
    assert outcome.usage["output_tokens"] == 20


async def test_a_changed_conversation_is_found() -> None:
    model = ScriptedModel("a", repeats=True)
    await go_on(model, 2)
    assert model.find_rewritten() == []
    changed = {"role": "assistant", "reply": {"text": "b", "calls": [], "finish": "stop"}}
    await model.call("complete", {"system": "Be brief.", "messages": [USER, changed, USER]})
    assert model.find_rewritten() == ["request 3 changes messages of the request before it"]
    other = {**WEATHER, "name": "forecast"}
    await model.call("complete", {"system": "Be brief.", "messages": [USER], "tools": [other]})
    await model.call("complete", {"system": "Be brief.", "messages": [USER], "tools": [WEATHER]})
    assert model.find_rewritten()[1:] == ["request 5 changes tools of the request before it"]


async def test_it_answers_requests_in_words_too_and_has_the_card_of_a_model() -> None:
    model = ScriptedModel("a plan")
    assert await model.call("plan", {"prompt": "build"}) == "a plan"
    record = model.record()
    assert record.labels["kind"] == "model"
    assert record.scores == {"planning": 0.5, "execution": 0.5, "review": 0.5}


SCRIPT = """
name: thinker
prices: {input: 3, output: 15}
log: log.jsonl
scripts:
  - when: Rome
    turns:
      - text: Looking.
        calls:
          - {name: weather, arguments: {city: Rome}}
          - {name: weather, arguments: "{broken"}
      - {text: 31 degrees., wait_s: 0.01, waits_for: go, tokens: [100, 10]}
  - turns: [unknown]
    repeats: true
"""


async def test_a_file_has_the_script_and_writes_a_log(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(SCRIPT)
    model = ScriptedModel.from_file(tmp_path / "script.yaml")
    assert model.name == "thinker"
    talk = asyncio.create_task(go_on(model, 2))
    while len(model.requests) < 2:
        await asyncio.sleep(0.005)
    assert not talk.done()
    (tmp_path / "go").touch()
    first, last = await talk
    assert [call["arguments"] for call in first["calls"]] == [{"city": "Rome"}, "{broken"]
    assert last["text"] == "31 degrees."
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["script"], line["turn"], line["attempt"], line["messages"]) for line in lines] == [
        (0, 1, 1, 1),
        (0, 2, 1, 3),
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("turns: [{txt: a}]", "txt"),
        ("turns: [{text: 3}]", r"turns.*text"),
        ("turns: [{calls: [weather]}]", "calls"),
        ("turns: [{error: boom}]", "error"),
        ("name: x", "turns"),
        ("[]", "object"),
        ("turns: [a]\nscripts: []", "scripts"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(text)
    with pytest.raises(InvalidSettingError, match=place) as caught:
        ScriptedModel.from_file(path)
    assert caught.value.remedy


def test_a_file_that_is_no_yaml_or_absent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="cannot be read"):
        ScriptedModel.from_file(tmp_path / "absent.yaml")
    (tmp_path / "script.yaml").write_text("turns: [")
    with pytest.raises(DefinitionError):
        ScriptedModel.from_file(tmp_path / "script.yaml")
