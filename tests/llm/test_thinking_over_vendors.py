"""A step ``think`` with a real model agent over the wire formats of the vendors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent
from retinue.core.call import Part
from retinue.llm.api_model import ApiModel
from retinue.llm.completion import Model
from retinue.llm.model_agent import model_agent
from retinue.llm.spec import ModelSpec, Prices
from retinue.llm.spending import Ledger
from retinue.testing import run_workflow
from tests.llm.vendors import VENDORS, Act, Fail, Say, ToolCall, Turn, Vendor, vendor

MODELS = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-5.6-terra", "google": "gemini-3.8-flash"}
THINK: dict[str, Any] = {"prompt": "Which city is warmer?", "tools": ["weather/*"]}
OUTPUT = {"type": "object", "properties": {"warmer": {"type": "string"}}, "required": ["warmer"]}


def make_weather() -> Agent:
    agent = Agent("weather", version="1.0.0")

    @agent.skill(read_only=True)
    async def temperature(city: str) -> dict[str, int]:
        """The temperature of a city."""
        return {"Rome": {"celsius": 31}, "Oslo": {"celsius": 12}}[city]

    @agent.skill(read_only=True)
    async def map_of(city: str) -> Part:
        """A map of a city."""
        return Part.image(b"\x89PNG " + city.encode())

    return agent


async def think(
    kind: Vendor, tmp_path: Path, *turns: Turn, **options: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """The run of one step, and the requests that the vendor got."""
    async with vendor(kind, *turns) as server:
        spec = ModelSpec(
            "claude",
            kind,
            "api",
            model=MODELS[kind],
            base_url=server.base_url,
            scores={"planning": 0.5, "execution": 0.9, "review": 0.5},
            prices=Prices(3.0, 15.0),
            retries=0,
        )
        model = ApiModel(spec, None)

        async def open_model() -> Model:
            return model

        agent = model_agent(spec, open_model, Ledger(tmp_path / "spent.json", spec), version="1.0.0")
        definition = {"name": "w", "steps": [{"id": "research", "think": {**THINK, **options}}]}
        try:
            run = await run_workflow(definition, agents=[agent, make_weather()])
        finally:
            await model.aclose()
        return run, server.requests


@pytest.mark.parametrize("kind", VENDORS)
async def test_parallel_calls_broken_arguments_and_an_output(kind: Vendor, tmp_path: Path) -> None:
    cities = [ToolCall("weather__temperature", json.dumps({"city": city}), city) for city in ("Rome", "Oslo")]
    wrong = ToolCall("weather__temperature", '{"town": "Rome"}', "c3")
    run, requests = await think(
        kind,
        tmp_path,
        Act((cities[0], wrong), "Looking.", "Two cities.", "c2lnbmF0dXJl"),
        Act((cities[1],)),
        Say('{"warmer": "Rome"}'),
        output=OUTPUT,
    )
    assert run.get() == {"warmer": "Rome"}
    assert len(requests) == 3
    last = json.dumps(requests[-1])
    assert "31" in last
    assert "12" in last
    assert "city" in last
    assert kind == "openai" or "c2lnbmF0dXJl" in last


@pytest.mark.parametrize("kind", VENDORS)
async def test_an_image_of_a_tool_reaches_the_model(kind: Vendor, tmp_path: Path) -> None:
    run, requests = await think(
        kind, tmp_path, Act((ToolCall("weather__map_of", '{"city": "Rome"}', "c1"),)), Say("a map")
    )
    assert run.get() == "a map"
    assert "iVBORyBSb21l"[:8] in json.dumps(requests[1])


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_rate_limit_a_server_error_and_a_broken_stream_repeat_only_the_request(
    kind: Vendor, tmp_path: Path
) -> None:
    call = ToolCall("weather__temperature", '{"city": "Rome"}', "c1")
    run, requests = await think(
        kind,
        tmp_path,
        Act((call,)),
        Fail(429, retry_after="1"),
        Fail(500),
        Act((call,), stops="end"),
        Say("31 degrees"),
    )
    assert run.get() == "31 degrees"
    assert len(requests) == 5
    assert [step.step for step in run.steps if "call" in step.step] == ["research/turn-1/call-1"]
