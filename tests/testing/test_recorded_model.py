"""A model agent that records a real model's replies and plays them back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import InvalidSettingError, ModelError
from retinue.testing import RecordedModel
from tests.llm.vendors import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    VENDORS,
    Act,
    Fail,
    Say,
    ToolCall,
    Turn,
    Vendor,
    VendorServer,
    vendor,
)

KEY = "sk-very-secret-0123456789abcdef"
USER = {"role": "user", "content": [{"type": "text", "text": "How warm is it in Rome?"}]}
WEATHER = {"name": "weather", "description": "The weather", "input_schema": {"type": "object"}}
ROME = ToolCall("weather", '{"city": "Rome"}', "c1")
ECHO = Act((ROME,), f"The key is {KEY}.", "Hm.", "c2lnbmF0dXJl", cached=3)


@asynccontextmanager
async def recording(
    path: Path, kind: Vendor, *turns: Turn
) -> AsyncIterator[tuple[RecordedModel, VendorServer]]:
    async with vendor(kind, *turns) as server:
        options: dict[str, Any] = {"provider": kind, "model": "m", "api_key_env": "MY_KEY", "retries": 0}
        async with aclosing(RecordedModel(path, base_url=server.base_url, **options)) as model:
            yield model, server


async def talk(model: RecordedModel, result: str = "31") -> list[Any]:
    """The outcomes of a conversation of two turns."""
    first = await model.ask("complete", {"messages": [USER], "tools": [WEATHER]})
    content = [{"type": "text", "text": result}]
    results = [{"id": "c1", "name": "weather", "content": content}]
    messages = [USER, {"role": "assistant", "reply": first.get()}, {"role": "tool", "results": results}]
    return [first, await model.ask("complete", {"messages": messages, "tools": [WEATHER]})]


@pytest.mark.parametrize("kind", VENDORS)
async def test_the_second_time_no_model_and_no_key_is_needed(
    kind: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "talks" / "weather.json"
    monkeypatch.setenv("MY_KEY", KEY)
    async with recording(path, kind, ECHO, Say("31.")) as (model, server):
        live = await talk(model)
        assert (model.recorded, model.replayed) == (2, 0)
        options: dict[str, Any] = {"base_url": server.base_url}
    monkeypatch.delenv("MY_KEY")
    text = path.read_text()
    assert KEY not in text
    assert "c2lnbmF0dXJl" in text or kind == "openai"
    assert "How warm is it" in text
    replayed = RecordedModel(path, provider=kind, model="m", api_key_env="MY_KEY", **options)
    played = await talk(replayed)
    assert (replayed.recorded, replayed.replayed) == (0, 2)
    assert played[1].get() == live[1].get()
    assert played[0].get()["calls"] == live[0].get()["calls"]
    assert played[0].usage == live[0].usage
    assert (played[0].usage["input_tokens"], played[0].usage["output_tokens"]) == (
        INPUT_TOKENS,
        OUTPUT_TOKENS,
    )


@pytest.fixture
async def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording of the conversation."""
    monkeypatch.setenv("MY_KEY", KEY)
    place = tmp_path / "weather.json"
    async with recording(place, "anthropic", Act((ROME,)), Say("31."), Say("42")) as (model, _):
        await talk(model)
        assert await model.call("agent.ask", {"prompt": "6 * 7?"}) == "42"
    monkeypatch.delenv("MY_KEY")
    return place


async def test_requests_in_words_are_played_back_as_well(path: Path) -> None:
    assert await RecordedModel(path).call("agent.ask", {"prompt": "6 * 7?"}) == "42"


async def test_another_request_is_refused_with_what_differs(path: Path) -> None:
    outcomes = await talk(RecordedModel(path), result="32")
    error = outcomes[1].error
    assert isinstance(error, InvalidSettingError)
    assert "differs in messages[2]" in error.message
    assert "record it again" in error.remedy
    tools = await RecordedModel(path).ask("complete", {"messages": [USER], "tools": []})
    assert tools.error is not None
    assert "differs in tools" in tools.error.message


async def test_a_recording_goes_on_where_the_mode_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    async with vendor("anthropic", Say("new")) as server:
        options: dict[str, Any] = {"base_url": server.base_url, "model": "m", "api_key_env": "MY_KEY"}
        async with aclosing(RecordedModel(path, mode="record", **options)) as model:
            assert await model.call("agent.ask", {"prompt": "6 * 7?"}) == "42"
            assert await model.call("agent.ask", {"prompt": "6 * 8?"}) == "new"
            assert (model.recorded, model.replayed) == (1, 1)
    assert _count_replies(path) == 4


async def test_a_failure_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    async with recording(tmp_path / "x.json", "openai", Fail(500)) as (model, _):
        with pytest.raises(ModelError):
            await model.call("agent.ask", {"prompt": "6 * 7?"})
    assert not (tmp_path / "x.json").exists()


def test_without_a_file_and_a_key_there_is_nothing_to_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(InvalidSettingError, match="no ANTHROPIC_API_KEY") as caught:
        RecordedModel(tmp_path / "x.json")
    assert "ANTHROPIC_API_KEY" in caught.value.remedy


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 9, "replies": []}', '{"version": 1, "replies": [{}]}']
)
def test_a_damaged_recording_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InvalidSettingError, match=r"x\.json: it cannot be read"):
        RecordedModel(tmp_path / "x.json")


def _damage(path: Path) -> None:
    document = json.loads(path.read_text())
    document["replies"][0]["reply"] = {"text": 3}
    path.write_text(json.dumps(document))


def _count_replies(path: Path) -> int:
    return len(json.loads(path.read_text())["replies"])


async def test_a_damaged_reply_is_named(path: Path) -> None:
    _damage(path)
    outcome = await RecordedModel(path, mode="replay").ask(
        "complete", {"messages": [USER], "tools": [WEATHER]}
    )
    assert isinstance(outcome.error, InvalidSettingError)
