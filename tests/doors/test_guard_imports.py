"""The guard over loops through a server of somebody else, which forwards the trace or does not."""

from __future__ import annotations

from typing import Any

import aiohttp
import mcp_types as types
import pytest
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from starlette.requests import Request

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.mcp.upstream.open_calls import MAX_IN_FLIGHT
from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from retinue.web.codec.trace import TRACE_KEYS
from tests.mcp.clients import read_result, sessionless
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import System, Wire

SDK = ServerRequestContext[Any, Any]


class Foreign:
    """A server whose tool calls the agent again at the hub; ``forwards`` is what it takes along."""

    def __init__(self, forwards: str) -> None:
        self.hub = ""
        self._forwards = forwards
        self.server: Server[Any] = Server("foreign", on_list_tools=self._list, on_call_tool=self._call)

    async def _list(self, context: SDK, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="again", input_schema={"type": "object"})])

    async def _call(self, context: SDK, params: types.CallToolRequestParams) -> types.CallToolResult:
        request = context.request
        assert isinstance(request, Request)
        given = {key: one for key, one in request.headers.items() if key.lower() in TRACE_KEYS}
        meta = {key: one for key, one in (context.meta or {}).items() if key.lower() in TRACE_KEYS}
        message, headers = sessionless(
            "tools/call",
            {"name": "agent-a__ask_a", "arguments": {}},
            **(meta if self._forwards == "only _meta" else {}),
        )
        wire = {name.replace("_", "-"): value for name, value in headers.items()}
        if self._forwards == "only headers":
            wire |= given
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.hub}/mcp", json=message, headers=wire) as answer,
        ):
            reply = read_result(await answer.read())
        if "error" in reply:
            return types.CallToolResult(
                content=[types.TextContent(text=reply["error"]["message"])], is_error=True
            )
        result = reply["result"]
        text = types.TextContent(text=result["content"][0]["text"])
        return types.CallToolResult(content=[text], is_error=bool(result.get("isError")))


def agent_that_calls(server: str | None, depths: list[int]) -> Agent:
    """Its skill calls a tool of the foreign server: as a skill, or of ``ctx.mcp(server)``."""
    agent = Agent("agent-a")

    @agent.skill("ask_a", expose=True)
    async def ask(ctx: Context) -> Any:
        depths.append(ctx.trace.depth)
        if server is None:
            return await ctx.call("again", agent="foreign")
        async with ctx.mcp(server) as foreign:
            return await foreign.call_tool("again")

    return agent


@requirement("S-15")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("reached", ["as a skill", "ctx.mcp by its name", "ctx.mcp by its URL"])
@pytest.mark.parametrize("forwards", ["nothing", "only headers", "only _meta"])
async def test_a_loop_through_a_foreign_server_ends(
    system: System, wire: Wire, forwards: str, reached: str
) -> None:
    depths: list[int] = []
    foreign = Foreign(forwards)
    url = await system.stack.enter_async_context(serve_app(foreign.server.streamable_http_app())) + "/mcp"
    is_import = reached != "ctx.mcp by its URL"
    if is_import:
        imports = ImportsTable.model_validate({"foreign": ImportTable(url=url)})
        system.settings = Settings(imports=imports)
    hub = await system.start_hub()
    foreign.hub = hub.url
    by = {"as a skill": None, "ctx.mcp by its name": "foreign", "ctx.mcp by its URL": url}
    served = await system.start_agent(agent_that_calls(by[reached], depths))
    if is_import:
        await hub.wait_until_healthy("foreign")
    await hub.mesh.directory.refresh()
    reply = await wire.call(served.url, "ask_a", x_openstarry_trace_id="loop")
    said = reply.error["message"]
    if forwards == "nothing":
        assert set(depths) == {0}
        assert len(depths) <= MAX_IN_FLIGHT + 1
        server = "foreign" if is_import else url
        assert f"requests to server {server} are in flight" in said, said
    else:
        # each round is two hops: to the server, and from it
        assert depths == [0, 2, 4]
        assert "hop 6 of at most 5" in said
