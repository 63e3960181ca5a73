"""``ctx.mcp``: a skill uses the tools, resources and prompts of agents and of servers at a URL."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from mcp.shared.exceptions import MCPError

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.errors import InvalidParametersError, RetinueError
from retinue.settings import Settings
from retinue.settings_tables import AccessTable, ImportsTable, ImportTable, TraceTable
from tests.mcp.clients import connect, texts
from tests.mcp.upstream.library_server import LISTED, Library
from tests.mcp.upstream.test_passing import serve, until
from tests.requirements import requirement
from tests.system import WAIT_S, Served, System

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


def reader_agent() -> Agent:
    """An agent whose skill uses all that a server offers."""
    agent = Agent("reader-agent")

    @agent.skill(expose=True)
    async def tour(server: str, ctx: Context) -> dict[str, Any]:
        async with ctx.mcp(server) as lib:
            prompt = await lib.get_prompt("re:view", {"book": "Emma"})
            return {
                "tools": [one.id for one in await lib.list_tools()],
                "linked": (await lib.ask_tool("link")).parts[1].value["uri"],
                "resources": [one.uri for one in await lib.list_resources()],
                "text": await lib.read_text(LISTED),
                "prompts": [one.name for one in await lib.list_prompts()],
                "said": [one.part.value for one in prompt.messages],
                "values": list(await lib.complete("re:view", "book", "Em")),
            }

    @agent.skill(expose=True)
    async def read(server: str, uri: str, ctx: Context) -> str:
        async with ctx.mcp(server) as lib:
            return await lib.read_text(uri)

    @agent.skill(expose=True)
    async def many(server: str, times: int, ctx: Context) -> int:
        async with ctx.mcp(server) as lib:
            for _ in range(times):
                await lib.read_text(LISTED)
        return times

    @agent.skill(expose=True)
    async def wait(server: str, ctx: Context) -> str:
        async with ctx.mcp(server, timeout_s=0.3) as lib:
            return str(await lib.call_tool("hang"))

    @agent.skill(expose=True)
    async def ask(server: str, ctx: Context) -> str:
        async with ctx.mcp(server) as lib:
            return str(await lib.call_tool("who"))

    return agent


TOUR = {
    "tools": ["link"],
    "linked": "demo://only-linked",
    "resources": [LISTED, "item://{+id}{?page}"],
    "text": "as it was",
    "prompts": ["re:view"],
    "said": ["Review Emma.", "Gladly."],
    "values": ["re:view book Em…"],
}


async def start(system: System, library: Library, **settings: Any) -> Served:
    """A hub that imports the library as ``lib``, and the agent."""
    url = await serve(system, library)
    imports = ImportsTable.model_validate({"lib": ImportTable(url=url)})
    system.settings = Settings(imports=imports, **settings)
    hub = await system.start_hub()

    async def is_ready() -> bool:
        found = hub.mesh.directory.find("lib")
        return found is not None and found.health == "healthy"

    await until(is_ready)
    return await system.start_agent(reader_agent())


@requirement("S-03")
async def test_a_skill_uses_an_imported_server_by_its_name_through_the_hub(system: System) -> None:
    served = await start(system, Library())
    async with connect(served) as client:
        result = await client.call_tool("tour", {"server": "lib"})
        assert result.structured_content == TOUR


@pytest.mark.parametrize("era", ["handshake", "sessionless"])
async def test_a_skill_uses_a_server_by_its_url(system: System, era: str) -> None:
    library = Library()
    url = await serve(system, library, era)
    served = await system.start_agent(reader_agent())
    async with connect(served) as client:
        result = await client.call_tool("tour", {"server": url})
        assert result.structured_content == TOUR
    assert any("trace" in key.lower() for key in library.metas[-1])


async def test_without_a_hub_a_skill_uses_another_agent_directly(system: System) -> None:
    other = Agent("other-agent")

    @other.resource("notes://today")
    async def today() -> str:
        return "for the mesh"

    @other.skill(expose=True)
    async def who(ctx: Context) -> str:
        return str(await ctx.elicit("Who?", str))

    @other.skill
    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    await system.start_agent(other)
    served = await system.start_agent(reader_agent())

    async def answer(context: Any, params: Any) -> Any:
        from mcp_types import ElicitResult

        return ElicitResult(action="accept", content={"answer": "Ada"})

    async with connect(served, elicitation_callback=answer) as client:
        given = {"server": "other-agent", "uri": "notes://today"}
        assert texts(await client.call_tool("read", given)) == ["for the mesh"]
        assert texts(await client.call_tool("ask", {"server": "other-agent"})) == ["Ada"]
        late = await client.call_tool("wait", {"server": "other-agent"})
        assert late.is_error
        assert "timeout_s of this ctx.mcp" in texts(late)[0]
        missing = await client.call_tool("read", {"server": "nobody", "uri": "a:b"})
        assert missing.is_error
        assert "nobody" in texts(missing)[0]


def desk_agent() -> Agent:
    """An agent whose resource and prompt read from another one."""
    agent = Agent("desk-agent")

    @agent.resource("desk://by/{server}", expose=True)
    async def desk(server: str, ctx: Context) -> str:
        async with ctx.mcp(server) as lib:
            return await lib.read_text("notes://today")

    @agent.prompt(expose=True)
    async def brief(server: str, ctx: Context) -> str:
        async with ctx.mcp(server) as lib:
            return "Sum up: " + await lib.read_text("notes://today")

    @agent.resource("called://by/{agent}", expose=True)
    async def called(agent: str, ctx: Context) -> str:
        return str(await ctx.call("note", {}, agent=agent))

    return agent


def notes_agent() -> Agent:
    agent = Agent("notes-agent")

    @agent.resource("notes://today")
    async def today() -> str:
        return "for the mesh"

    @agent.skill
    async def note() -> str:
        return "a note"

    return agent


@requirement("S-03")
async def test_resource_and_prompt_functions_use_servers_as_skills_do(system: System) -> None:
    await system.start_agent(notes_agent())
    served = await system.start_agent(desk_agent())
    async with connect(served) as client:
        read = await client.read_resource("desk://by/notes-agent")
        assert read.contents[0].text == "for the mesh"  # type: ignore[union-attr]
        prompt = await client.get_prompt("brief", {"server": "notes-agent"})
        assert prompt.messages[0].content.text == "Sum up: for the mesh"  # type: ignore[union-attr]
        called = await client.read_resource("called://by/notes-agent")
        assert called.contents[0].text == "a note"  # type: ignore[union-attr]


@pytest.mark.parametrize("uri", ["desk://by/notes-agent", "called://by/notes-agent"])
async def test_resource_functions_call_only_what_the_agent_may_call(system: System, uri: str) -> None:
    system.settings = Settings(access={"desk-agent": AccessTable(send=("lib",))})
    await system.start_agent(notes_agent())
    served = await system.start_agent(desk_agent())
    async with connect(served) as client:
        with pytest.raises(MCPError, match="desk-agent may not call"):
            await client.read_resource(uri)


async def test_requests_to_a_server_count_in_the_budget_of_the_chain(system: System) -> None:
    served = await start(system, Library(), trace=TraceTable(calls=5))
    async with connect(served) as client:
        enough = await client.call_tool("many", {"server": "lib", "times": 3})
        assert not enough.is_error
        with pytest.raises(MCPError, match="no calls left in this trace"):
            await client.call_tool("many", {"server": "lib", "times": 9})


@pytest.mark.parametrize("place", ["name", "url"])
async def test_the_time_of_the_caller_ends_a_request_to_a_server(system: System, place: str) -> None:
    is_cancelled = asyncio.Event()
    other, patient, caller = Agent("other-agent"), Agent("patient-agent"), Agent("caller-agent")

    @other.skill(expose=True)
    async def hang(ctx: Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            is_cancelled.set()
            raise
        return ""

    @patient.skill(expose=True)
    async def wait_long(server: str, ctx: Context) -> str:
        async with ctx.mcp(server, timeout_s=600) as lib:
            return str(await lib.call_tool("hang"))

    @caller.skill(expose=True)
    async def hurry(server: str, ctx: Context) -> str:
        return str(await ctx.call("wait_long", {"server": server}, timeout_s=1))

    served = [await system.start_agent(one) for one in (other, patient, caller)]
    server = f"{served[0].url}/mcp" if place == "url" else "other-agent"
    async with connect(served[2]) as client:
        result = await client.call_tool("hurry", {"server": server})
    assert result.is_error
    assert "wait_long did not answer within 1 s" in texts(result)[0]
    async with asyncio.timeout(WAIT_S):
        await is_cancelled.wait()


async def test_a_send_list_also_holds_for_servers(system: System) -> None:
    library = Library()
    access = {"reader-agent": AccessTable(send=("lib/*",))}
    served = await start(system, library, access=access)
    url = await serve(system, Library("other"))
    async with connect(served) as client:
        allowed = await client.call_tool("read", {"server": "lib", "uri": LISTED})
        assert texts(allowed) == ["as it was"]
        for server in (url, "other-agent"):
            refused = await client.call_tool("read", {"server": server, "uri": LISTED})
            assert refused.is_error
            assert "may not call the MCP server" in texts(refused)[0]


async def test_headers_for_the_name_of_an_agent_are_refused() -> None:
    from retinue.mcp.upstream.servers import MeshServers
    from retinue.web.http_client import HttpClient

    async def route(name: str) -> Any:
        raise NotImplementedError

    async with HttpClient() as http:
        with pytest.raises(InvalidParametersError, match="headers belong to a URL") as caught:
            async with MeshServers(http, route, "1.0").connect("lib", {"authorization": "Bearer x"}):
                pass
        assert isinstance(caught.value, RetinueError)


async def test_requests_to_an_agent_say_the_team_of_the_agent_that_asks() -> None:
    from retinue.core.call import Principal
    from retinue.core.errors import ExecutionFailedError
    from retinue.core.record import AgentRecord, Listing
    from retinue.mcp.upstream.servers import MeshServers
    from retinue.mesh.channel import NullChannel
    from retinue.mesh.servers import ServerRequest

    client, principal = Mock(), Principal("word", "agent")
    client.post.side_effect = ExecutionFailedError("nobody is there")

    async def route(name: str) -> Any:
        return Listing(AgentRecord(name), "hub", "http://127.0.0.1:1"), client

    for team in ("news", ""):
        async with MeshServers(Mock(), route, "1.0", team=team).connect("lib", {}) as ask:
            with pytest.raises(ExecutionFailedError, match="nobody is there"):
                await ask(ServerRequest("call", "tell"), Mock(), principal, NullChannel())
    assert [call.args[3].team for call in client.post.call_args_list] == ["news", ""]
