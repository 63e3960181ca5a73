"""Tools of an agent, listed and called by the official Python client in both eras."""

from __future__ import annotations

import pytest
from mcp.client import Client
from mcp_types import CallToolResult, TextContent

from retinue.authoring.agent import Agent
from tests.requirements import requirement
from tests.system import System

MODES = ("auto", "legacy")


def office_agent() -> Agent:
    agent = Agent("office-agent", version="1.2.0")

    @agent.skill("fs:read_file", expose=True)
    async def read_file(path: str) -> str:
        """Reads a file."""
        return f"# {path}"

    @agent.skill(expose=True)
    async def count(words: list[str]) -> dict[str, int]:
        return {word: len(word) for word in words}

    @agent.skill
    async def for_the_mesh() -> str:
        return "mesh"

    @agent.skill(private=True)
    async def hidden() -> str:
        return "hidden"

    return agent


def texts(result: CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, TextContent)]


@pytest.mark.parametrize("mode", MODES)
@requirement("S-01")
@requirement("S-09")
async def test_a_client_lists_and_calls_the_exposed_skills(system: System, mode: str) -> None:
    served = await system.start_agent(office_agent())
    async with Client(f"{served.url}/mcp", mode=mode) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["fs_read_file", "count"]
        result = await client.call_tool("fs_read_file", {"path": "README.md"})
        assert texts(result) == ["# README.md"]
        counted = await client.call_tool("count", {"words": ["one", "three"]})
        assert counted.structured_content == {"one": 3, "three": 5}
