"""Tools of an agent, listed and called by the official Python client in both eras."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ImageContent, TextContent

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Answer, Part
from retinue.core.record import Skill
from retinue.mesh.guard.trace_guard import new_trace
from retinue.settings import Settings
from retinue.settings_tables import McpTable
from retinue.web.codec.jsonrpc import INTERNAL_ERROR
from retinue.web.codec.trace import CALLS_USED_KEY, find_calls_used, render_trace_headers
from retinue.web.issued_tokens import TokenFile
from retinue.web.mesh_tokens import MeshSigner
from tests.mcp.clients import MODES, connect, read_result, sessionless, texts
from tests.requirements import requirement
from tests.system import System, Wire


def office_agent() -> Agent:
    agent = Agent("office-agent", version="1.2.0")

    @agent.skill("fs:read_file", expose=True, read_only=True)
    async def read_file(path: str) -> str:
        """Reads a file."""
        return f"# {path}"

    @agent.skill(expose=True)
    async def count(words: list[str]) -> dict[str, int]:
        return {word: len(word) for word in words}

    @agent.skill(expose=True)
    async def numbers() -> list[int]:
        return [1, 2]

    @agent.skill(expose=True)
    async def picture() -> Answer:
        return Answer({"width": 1}, parts=(Part.image(b"png"), Part.text("as asked")))

    @agent.skill(expose=True)
    async def fail() -> str:
        raise ValueError("no luck")

    @agent.skill
    async def for_the_mesh() -> str:
        return "mesh"

    @agent.skill(private=True)
    async def hidden() -> str:
        return "hidden"

    return agent


@pytest.mark.parametrize("mode", MODES)
@requirement("S-01")
@requirement("S-06")
@requirement("S-16")
async def test_a_client_sees_the_exposed_skills_and_no_other(system: System, mode: str) -> None:
    served = await system.start_agent(office_agent())
    async with connect(served, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == ["fs_read_file", "count", "numbers", "picture", "fail"]
    read = tools["fs_read_file"]
    assert (read.title, read.description) == ("fs:read_file", "Reads a file.")
    assert read.meta == {"retinue/skill": "fs:read_file"}
    assert read.annotations is not None
    assert read.annotations.read_only_hint is True
    assert tools["count"].description == "count"


@pytest.mark.parametrize("mode", MODES)
@requirement("S-09")
@requirement("S-11")
@requirement("S-12")
async def test_a_tool_is_called_by_its_alias_and_by_the_name_that_its_author_gave(
    system: System, mode: str
) -> None:
    served = await system.start_agent(office_agent())
    async with connect(served, mode) as client:
        for name in ("fs_read_file", "fs:read_file"):
            result = await client.call_tool(name, {"path": "README.md"})
            assert texts(result) == ["# README.md"]
            assert result.structured_content is None


@pytest.mark.parametrize("mode", MODES)
async def test_a_picture_is_a_block_of_its_own(system: System, mode: str) -> None:
    served = await system.start_agent(office_agent())
    async with connect(served, mode) as client:
        picture = (await client.call_tool("picture")).content
        assert [type(block) for block in picture] == [ImageContent, TextContent]


@pytest.mark.parametrize("mode", MODES)
async def test_whoever_has_the_token_of_the_state_sees_what_the_mesh_sees(system: System, mode: str) -> None:
    served = await system.start_agent(office_agent())
    async with connect(served, mode, authorization=system.token) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names[-1] == "for_the_mesh"
        assert texts(await client.call_tool("for_the_mesh")) == ["mesh"]
        with pytest.raises(MCPError, match="Unknown tool: hidden"):
            await client.call_tool("hidden")


@pytest.mark.parametrize("mode", MODES)
async def test_a_refusal_for_lack_of_rights_is_a_result_whose_text_names_the_token_that_helps(
    system: System, mode: str
) -> None:
    """Programs with a model show it the text of a result; a JSON-RPC error ends some of them."""
    agent = office_agent()

    @agent.skill(expose=True, runs_code=True)
    async def run_it() -> str:
        return "ran"

    served = await system.start_agent(agent)
    hub = await system.start_hub()
    _, narrow = TokenFile(system.state.keys).issue(["exposed"])
    _, wide = TokenFile(system.state.keys).issue(["exposed", "runs_code"])
    places = (
        (f"{served.url}/mcp", "run_it"),
        (f"{hub.url}/mcp", "office-agent__run_it"),
        (f"{hub.url}/agents/office-agent/mcp", "run_it"),
    )
    for url, tool in places:
        async with connect(url, mode, authorization=f"Bearer {narrow}") as client:
            refused = await client.call_tool(tool)
            assert refused.is_error
            assert texts(refused) == [
                "run_it runs code and wants a token with the scope runs_code — "
                "create one: retinue token new --scope mesh --scope runs_code"
            ]
        async with connect(url, mode) as client:
            (text,) = texts(await client.call_tool(tool))
            assert text.startswith("run_it runs code and wants a token — call it with")
        async with connect(url, mode, authorization=f"Bearer {wide}") as client:
            assert texts(await client.call_tool(tool)) == ["ran"]


async def test_a_session_is_no_use_to_another_caller(system: System, wire: Wire) -> None:
    served = await system.start_agent(office_agent())
    url = f"{served.url}/mcp"
    accept = "application/json, text/event-stream"
    opened = await wire.post(url, initialize(), accept=accept, authorization=system.token)
    session = opened.headers["mcp-session-id"]
    asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    stranger = await wire.post(url, asked, accept=accept, mcp_session_id=session)
    lost = await wire.post(url, asked, accept=accept, mcp_session_id="0" * 32)
    assert (stranger.status, stranger.body) == (lost.status, lost.body) == (404, lost.body)
    owner = await wire.post(url, asked, accept=accept, mcp_session_id=session, authorization=system.token)
    assert owner.status == 200


@pytest.mark.parametrize(("header", "value"), [("host", "evil.example"), ("origin", "http://evil.example")])
async def test_a_strangers_page_is_refused(system: System, wire: Wire, header: str, value: str) -> None:
    served = await system.start_agent(office_agent())
    reply = await wire.post(
        f"{served.url}/mcp", initialize(), accept="application/json, text/event-stream", **{header: value}
    )
    assert reply.status == 403


async def test_a_skill_that_wants_no_object_is_called_inside_one(system: System) -> None:
    class Sums(Agent):
        async def execute_skill(self, skill_id: str, params: Any) -> Any:
            return sum(params)

    numbers = {"type": "array", "items": {"type": "integer"}}
    skill = Skill("sum", input_schema=numbers, output_schema={"type": "integer"}, visibility="exposed")
    served = await system.start_agent(Sums("sums-agent", skills=[skill]))
    async with connect(served, "auto") as client:
        tool = (await client.list_tools()).tools[0]
        assert tool.input_schema["properties"] == {"input": numbers}
        assert tool.meta == {"retinue/skill": "sum", "retinue/wrapped": ["input", "result"]}
        result: CallToolResult = await client.call_tool("sum", {"input": [1, 2, 3]})
        assert result.structured_content == {"result": 6}


async def test_the_authors_names_are_listed_where_they_are_wanted(system: System) -> None:
    system.settings = Settings(mcp=McpTable(names="seed"))
    served = await system.start_agent(office_agent())
    async with connect(served, "auto") as client:
        assert (await client.list_tools()).tools[0].name == "fs:read_file"
        assert texts(await client.call_tool("fs:read_file", {"path": "x"})) == ["# x"]


@pytest.mark.parametrize("mode", MODES)
@requirement("S-14")
async def test_a_chain_that_is_too_deep_is_refused_with_its_path(system: System, mode: str) -> None:
    served = await system.start_agent(office_agent())
    meta: Any = {"X-OpenStarry-Trace-ID": "a-trace", "X-OpenStarry-Trace-Depth": 6}
    async with connect(served, mode) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("numbers", meta=meta)
        assert refused.value.code == -33007
        data: Any = refused.value.error.data
        assert (data["trace_id"], data["depth"], data["max_depth"]) == ("a-trace", 6, 5)


async def test_the_guards_refusal_is_a_result_where_that_is_wanted(system: System) -> None:
    system.settings = Settings(mcp=McpTable(guard_as_tool_error=True))
    served = await system.start_agent(office_agent())
    meta: Any = {"X-OpenStarry-Trace-ID": "a-trace", "X-OpenStarry-Trace-Depth": 6}
    async with connect(served, "auto") as client:
        result = await client.call_tool("numbers", meta=meta)
        assert result.is_error
        assert result.meta is not None
        assert result.meta["retinue/error"]["depth"] == 6


def initialize(version: str = "2025-11-25") -> dict[str, Any]:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


@requirement("S-15")
async def test_only_a_process_of_the_mesh_is_told_what_a_call_has_used(system: System, wire: Wire) -> None:
    """In ``_meta``, for its share of a budget; other clients of the agent read nothing of it."""
    agent, leaf = Agent("tree-agent"), Agent("leaf-agent")

    @agent.skill(expose=True)
    async def grow(ctx: Context) -> str:
        for _ in range(3):
            await ctx.call("be_leaf")
        return "grown"

    @leaf.skill
    async def be_leaf() -> str:
        return "leaf"

    served = await system.start_agent(agent)
    await system.start_agent(leaf)
    hub = await system.start_hub()
    signer = MeshSigner.of(system.state)
    message, headers = sessionless("tools/call", {"name": "grow"})
    plain = read_result((await wire.post(f"{served.url}/mcp", message, **headers)).body)["result"]
    assert CALLS_USED_KEY not in plain["_meta"]
    for url in (f"{served.url}/mcp", f"{hub.url}/agents/tree-agent/mcp"):
        trace = signer.sign(replace(new_trace(), calls_left=100), "tree-agent", "grow")
        signed = {name.replace("-", "_"): value for name, value in render_trace_headers(trace).items()}
        told = read_result((await wire.post(url, message, **headers, **signed)).body)["result"]
        assert find_calls_used(told["_meta"]) == 3


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {}}])
async def test_a_text_with_a_lone_surrogate_is_refused_as_no_json(
    system: System, wire: Wire, capabilities: dict[str, Any]
) -> None:
    served = await system.start_agent(office_agent())
    given = {"io.modelcontextprotocol/clientCapabilities": capabilities}
    params = {"name": "fs_read_file", "arguments": {"path": "MARK"}}
    message, headers = sessionless("tools/call", params, **given)
    body = orjson.dumps(message).replace(b"MARK", b"\\ud800")
    reply = read_result((await wire.post(f"{served.url}/mcp", body, **headers)).body)
    assert "JSON" in str(reply), reply
    assert reply.get("error", {}).get("code") != INTERNAL_ERROR
