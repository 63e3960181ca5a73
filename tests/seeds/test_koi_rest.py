"""Exchanges 3-6 … 3-9 of seed 003 over real sockets: REST of coordinator and agent, and MCP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from koi.network import parse_traits
from retinue_koi.adapter import MCPAdapter
from retinue_koi.codec.orn import KoiNetNode
from retinue_koi.codec.personality import AgentPersonality, PersonalityProfile
from retinue_koi.programs.servers import AgentPersonalityServer, AgentRegistryServer
from tests.mcp.clients import connect, texts
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import Reply, Wire

TRAITS = {
    "mood": "helpful",
    "calculate": {"description": "Performs calculations", "is_callable": True},
    "motto": {"description": "Says it", "is_callable": True, "value": "measure twice"},
    "shout": {"description": "Shouts", "is_callable": True},
}
PREFIXES = ("", "/koi-net", "/mcp")


def shout(text: str) -> str:
    return text.upper()


def make_profile(name: str = "helpful-agent", mcp_url: str | None = None) -> PersonalityProfile:
    return PersonalityProfile(
        rid=AgentPersonality(name, "1.0"),
        node_rid=KoiNetNode(name, "0b8a"),
        mcp_url=mcp_url,
        traits=parse_traits(TRAITS),
    )


@asynccontextmanager
async def serve_agent() -> AsyncIterator[tuple[str, AgentPersonalityServer]]:
    server = AgentPersonalityServer(8101, make_profile(), functions={"shout": shout})
    async with serve_app(server.app) as url:
        server.personality.mcp_url = url
        yield url, server


@asynccontextmanager
async def serve_both() -> AsyncIterator[tuple[str, str, PersonalityProfile]]:
    """The urls of a coordinator and of an agent that it lists, and that agent's profile."""
    adapter = MCPAdapter()
    coordinator = AgentRegistryServer(9000, adapter, "/koi-net")
    async with serve_agent() as (agent_url, agent), serve_app(coordinator.app) as url:
        adapter.register_agent(agent.personality)
        yield url, agent_url, agent.personality


def read(reply: Reply) -> Any:
    assert reply.status == 200, reply
    return json.loads(reply.body)


def read_text(content: Any) -> Any:
    return json.loads(content.text)


def refused(reply: Reply) -> tuple[int, Any]:
    return reply.status, json.loads(reply.body)


@requirement("K-21")
@requirement("K-23")
@requirement("K-24")
async def test_the_coordinator_lists_agents_as_the_seed_says(wire: Wire) -> None:
    async with serve_both() as (url, agent_url, _):
        for prefix in PREFIXES:
            listed = read(await wire.get(f"{url}{prefix}/resources/list"))
            assert listed == {
                "resources": [
                    {
                        "id": "agent:helpful-agent",
                        "type": "agent_profile",
                        "description": "Agent helpful-agent personality profile",
                        "url": agent_url,
                    }
                ]
            }
        own = read(await wire.get(f"{listed['resources'][0]['url']}/resources/list"))
        assert [one["id"] for one in own["resources"]] == ["agent:helpful-agent"]


@requirement("K-21")
async def test_the_coordinator_gives_a_profile_or_404(wire: Wire) -> None:
    async with serve_both() as (url, _, profile):
        content = read(await wire.get(f"{url}/resources/read/agent:helpful-agent"))
        assert content == {
            "id": "agent:helpful-agent",
            "type": "agent_profile",
            "content": profile.model_dump(),
        }
        unknown = await wire.get(f"{url}/resources/read/agent:nobody")
        assert refused(unknown) == (404, {"detail": "Agent not found"})
        other = await wire.get(f"{url}/resources/read/helpful-agent")
        assert refused(other) == (404, {"detail": "Resource not found"})


@requirement("K-20")
@requirement("K-21")
async def test_the_coordinator_lists_tools_whose_urls_answer(wire: Wire) -> None:
    async with serve_both() as (url, agent_url, _):
        tools = read(await wire.get(f"{url}/tools/list"))["tools"]
        assert [tool["name"] for tool in tools] == [
            "helpful-agent.calculate",
            "helpful-agent.motto",
            "helpful-agent.shout",
        ]
        calculate = dict(tools[0])
        assert calculate.pop("inputSchema") == {"type": "object", "properties": {"input": {"type": "string"}}}
        assert calculate == {
            "name": "helpful-agent.calculate",
            "description": "Performs calculations",
            "input_schema": {"type": "string"},
            "url": f"{agent_url}/tools/call/calculate",
        }
        assert tools[2]["inputSchema"]["properties"]["text"]["type"] == "string"
        assert read(await wire.post(tools[1]["url"], {})) == {"result": "measure twice"}


@requirement("K-22")
async def test_an_agent_shows_only_itself(wire: Wire) -> None:
    async with serve_agent() as (url, server):
        for prefix in PREFIXES:
            assert read(await wire.get(f"{url}{prefix}/resources/list")) == {
                "resources": [
                    {
                        "id": "agent:helpful-agent",
                        "type": "agent_profile",
                        "description": "helpful-agent agent personality",
                        "url": "/resources/read/agent:helpful-agent",
                    }
                ]
            }
        content = read(await wire.get(f"{url}/resources/read/agent:helpful-agent"))
        assert content["content"] == server.personality.model_dump()
        other = await wire.get(f"{url}/resources/read/agent:other")
        assert refused(other) == (404, {"detail": "Agent not found"})
        tools = read(await wire.get(f"{url}/tools/list"))["tools"]
        assert [(tool["name"], tool["url"]) for tool in tools] == [
            ("calculate", "/tools/call/calculate"),
            ("motto", "/tools/call/motto"),
            ("shout", "/tools/call/shout"),
        ]


@requirement("K-22")
@requirement("K-33")
async def test_a_callable_trait_runs_its_function_or_gives_its_value(wire: Wire) -> None:
    async with serve_agent() as (url, _):
        for body in (b"", {}, {"any": "thing"}, b"[", [1]):
            assert read(await wire.post(f"{url}/tools/call/motto", body)) == {"result": "measure twice"}
        assert read(await wire.post(f"{url}/tools/call/calculate", {})) == {"result": None}
        for given in ({"text": "hello"}, "hello"):
            assert read(await wire.post(f"{url}/tools/call/shout", given)) == {"result": "HELLO"}


@requirement("K-22")
async def test_a_trait_that_cannot_be_called_says_why(wire: Wire) -> None:
    async with serve_agent() as (url, _):
        missing = await wire.post(f"{url}/tools/call/x", {})
        assert refused(missing) == (404, {"detail": "Trait x not found"})
        status, plain = refused(await wire.post(f"{url}/tools/call/mood", {}))
        assert (status, plain["detail"]) == (400, "Trait mood is not callable")


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b"7", b"null", b"{", {"text": 5}, {"text": "a", "more": 1}]
)
@requirement("K-22")
async def test_arguments_that_do_not_fit_are_422_with_the_field(wire: Wire, body: Any) -> None:
    async with serve_agent() as (url, _):
        status, said = refused(await wire.post(f"{url}/tools/call/shout", body))
        assert status == 422
        assert isinstance(said["detail"], str)
        assert said["detail"]


@requirement("K-24")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_finds_tools_at_the_coordinator_and_calls_them_at_the_agent(
    mode: str,
) -> None:
    async with serve_both() as (url, agent_url, profile):
        async with connect(f"{url}/mcp", mode) as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == {
                "helpful-agent__calculate",
                "helpful-agent__motto",
                "helpful-agent__shout",
            }
            resources = (await client.list_resources()).resources
            assert [str(one.uri) for one in resources] == ["agent:helpful-agent"]
            [content] = (await client.read_resource("agent:helpful-agent")).contents
            assert read_text(content) == profile.model_dump()
            for name in ("helpful-agent__shout", "helpful-agent.shout"):
                through = await client.call_tool(name, {"text": "hub"})
                assert (through.is_error, texts(through)) == (False, ["HUB"])
        async with connect(f"{agent_url}/mcp", mode) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {
                "calculate",
                "motto",
                "shout",
            }
            called = await client.call_tool("shout", {"text": "hello"})
            assert (called.is_error, texts(called)) == (False, ["HELLO"])
            [content] = (await client.read_resource("agent:helpful-agent")).contents
            assert read_text(content) == profile.model_dump()
