"""Results too long for a model's context: a summary, and a link that the same caller can read."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, TextResourceContents

from retinue.authoring.agent import Agent
from retinue.core.call import Outcome, Part, Principal
from retinue.mcp.codec.content import render_call_result
from retinue.mcp.server.long_results import (
    KEPT_S,
    MAX_KEPT_CHARS,
    MAX_RESULT_CHARS,
    SHORTENED_KEY,
    LongResults,
)
from retinue.settings import Settings
from retinue.settings_tables import McpTable
from tests.mcp.clients import MODES, connect, texts
from tests.system import System

LIMIT = 4_000
ADA = Principal("ada", "token", frozenset({"exposed"}))
Rows = list[dict[str, Any]]


def long_agent() -> Agent:
    agent = Agent("long-agent")

    @agent.skill(expose=True)
    async def poem() -> str:
        return "o" * 5_000

    @agent.skill(expose=True)
    async def rows(count: int) -> dict[str, Rows]:
        return {"rows": [{"number": n, "text": "t" * 50} for n in range(count)]}

    @agent.skill(
        expose=True,
        output_schema={"type": "object", "properties": {"ids": {"type": "array", "minItems": 900}}},
    )
    async def strict() -> dict[str, list[int]]:
        return {"ids": list(range(1_000))}

    @agent.skill(expose=True)
    async def pages() -> list[Part | str]:
        return [Part.text("a" * 1_500), Part.image(b"png"), Part.text("b" * 3_000), Part.text("c")]

    return agent


async def read_whole(client: Client, result: CallToolResult) -> list[str]:
    """The contents behind the link in a result."""
    link = result.content[-1]
    assert link.type == "resource_link"
    found = await client.read_resource(link.uri)
    return [one.text for one in found.contents if isinstance(one, TextResourceContents)]


@pytest.mark.parametrize("mode", MODES)
async def test_a_text_that_is_too_long_is_cut_and_its_caller_reads_the_whole(
    system: System, mode: str
) -> None:
    system.settings = Settings(mcp=McpTable(result_chars=LIMIT))
    served = await system.start_agent(long_agent())
    async with connect(served, mode) as client:
        result = await client.call_tool("poem")
        shown, note = texts(result)
        assert shown == "o" * 2_000
        assert "shortened from 5,000 characters (2,000 of 5,000 characters)" in note
        assert await read_whole(client, result) == ["o" * 5_000]
        link = result.content[2]
        assert link.type == "resource_link"
    async with connect(served, mode, authorization=system.token) as client:
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource(link.uri)


@pytest.mark.parametrize("mode", MODES)
async def test_a_long_value_keeps_the_form_that_its_schema_promises(system: System, mode: str) -> None:
    system.settings = Settings(mcp=McpTable(result_chars=LIMIT))
    served = await system.start_agent(long_agent())
    async with connect(served, mode) as client:
        await client.list_tools()  # the client checks results against the listed schemas
        result = await client.call_tool("rows", {"count": 500})
        assert result.structured_content is not None
        shown = result.structured_content["rows"]
        assert shown == [{"number": n, "text": "t" * 50} for n in range(len(shown))]
        assert 0 < len(shown) < 500
        assert orjson.loads(texts(result)[0]) == {"rows": shown}
        assert f"rows: {len(shown)} of 500 entries" in texts(result)[1]
        assert result.meta is not None
        assert result.meta[SHORTENED_KEY]["characters"] > LIMIT
        (whole,) = await read_whole(client, result)
        assert len(orjson.loads(whole)["rows"]) == 500


async def test_a_value_whose_summary_would_break_its_schema_is_sent_whole(system: System) -> None:
    system.settings = Settings(mcp=McpTable(result_chars=LIMIT))
    served = await system.start_agent(long_agent())
    async with connect(served) as client:
        await client.list_tools()
        result = await client.call_tool("strict")
        assert result.structured_content == {"ids": list(range(1_000))}


async def test_a_program_that_asks_for_the_whole_gets_it(system: System) -> None:
    system.settings = Settings(mcp=McpTable(result_chars=LIMIT))
    served = await system.start_agent(long_agent())
    async with connect(served) as client:
        result = await client.call_tool("poem", meta=cast(Any, {"retinue/whole": True}))
        assert texts(result) == ["o" * 5_000]


async def test_of_several_blocks_the_texts_are_cut_and_the_image_stays(system: System) -> None:
    system.settings = Settings(mcp=McpTable(result_chars=LIMIT))
    served = await system.start_agent(long_agent())
    async with connect(served) as client:
        result = await client.call_tool("pages")
        kinds = [block.type for block in result.content]
        assert kinds == ["text", "image", "text", "text", "resource_link"]
        assert texts(result)[:2] == ["a" * 1_500, "b" * 500]
        assert await read_whole(client, result) == ["a" * 1_500, "b" * 3_000, "c"]


async def test_a_link_given_at_the_hub_is_read_at_the_hub(system: System) -> None:
    system.settings = Settings(mcp=McpTable(result_chars=LIMIT))
    hub = await system.start_hub()
    await system.start_agent(long_agent())
    async with connect(f"{hub.url}/mcp") as client:
        async with asyncio.timeout(60):
            while "long-agent__poem" not in {tool.name for tool in (await client.list_tools()).tools}:
                await asyncio.sleep(0.05)
        result = await client.call_tool("long-agent__poem")
        assert await read_whole(client, result) == ["o" * 5_000]


def shortened(results: LongResults, text: str, owner: Principal = ADA) -> dict[str, Any]:
    outcome = Outcome("1", "poem", "done", value=text)
    return results.shorten(render_call_result(text, (), None), outcome, None, owner)


def test_a_link_expires_and_is_not_for_other_rights() -> None:
    now = 0.0
    results = LongResults(LIMIT, clock=lambda: now)
    uri = shortened(results, "o" * 5_000)["_meta"][SHORTENED_KEY]["uri"]
    assert results.find(uri, ADA) is not None
    assert results.find(uri, Principal("ada", "token", frozenset())) is None
    assert results.find(uri, Principal("bob", "token", frozenset({"exposed"}))) is None
    now = KEPT_S + 1
    assert results.find(uri, ADA) is None


def test_what_is_too_large_to_be_kept_has_no_link_and_the_store_is_bounded() -> None:
    results = LongResults(LIMIT)
    huge = shortened(results, "o" * (MAX_RESULT_CHARS + 1))
    assert huge["_meta"][SHORTENED_KEY]["uri"] is None
    assert "ask for less" in huge["content"][-1]["text"]
    count = MAX_KEPT_CHARS // MAX_RESULT_CHARS + 1
    uris = [shortened(results, "o" * MAX_RESULT_CHARS)["_meta"][SHORTENED_KEY]["uri"] for _ in range(count)]
    assert results.find(uris[0], ADA) is None
    assert results.find(uris[-1], ADA) is not None
