"""Skills that ask, tell their progress and log: over HTTP, in both eras, with the official client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import (
    ElicitRequestParams,
    ElicitResult,
    LoggingMessageNotificationParams,
)
from starlette.routing import Router

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.authoring.local import local_dispatcher
from retinue.core.errors import InputRefusedError
from retinue.mcp.server.lazy_server import mcp_route
from retinue.runtime.endpoints.agent_mcp import agent_server
from retinue.settings_tables import LimitTable, McpTable
from retinue.web.security import SecurityMiddleware
from tests.mcp.clients import MODES, connect, texts
from tests.serving import serve_app
from tests.system import WAIT_S, System, Wire

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def asking_agent() -> Agent:
    agent = Agent("asking-agent", logging=True)

    @agent.skill(expose=True)
    async def greet(ctx: Context) -> str:
        try:
            answer = await ctx.elicit("Who are you?", NAME)
        except InputRefusedError as error:
            return f"refused: {error.message}"
        return f"Hello, {answer['name']}!"

    @agent.skill(expose=True)
    async def age(ctx: Context) -> str:
        return f"{await ctx.elicit('How old are you?', {'type': 'integer'})} years"

    @agent.skill(expose=True)
    async def work(ctx: Context) -> str:
        await ctx.log("first", level="debug")
        await ctx.log("second", data={"n": 2})
        await ctx.log("third", level="error")
        return "done"

    return agent


async def answer_wrongly(context: Any, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": 7})


@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_that_does_not_fit_the_question_is_refused(system: System, mode: str) -> None:
    served = await system.start_agent(asking_agent())
    async with connect(served, mode, elicitation_callback=answer_wrongly) as client:
        assert texts(await client.call_tool("greet"))[0].startswith("refused: the answer does not fit")
    hub = await system.start_hub()
    async with connect(f"{hub.url}/mcp", mode, elicitation_callback=answer_wrongly) as client:
        text = texts(await client.call_tool("asking-agent__greet"))[0]
        assert text.startswith("refused: the answer does not fit"), text


async def test_log_lines_reach_a_client_from_the_level_that_it_set(system: System) -> None:
    told: list[tuple[str, Any]] = []

    async def note(params: LoggingMessageNotificationParams) -> None:
        told.append((params.level, params.data))

    served = await system.start_agent(asking_agent())
    async with connect(served, "legacy", logging_callback=note) as client:
        await client.call_tool("work")
        assert told == [("info", {"message": "second", "n": 2}), ("error", "third")]
        told.clear()
        with pytest.warns(MCPDeprecationWarning, match="logging"):
            await client.set_logging_level("error")
        await client.call_tool("work")
        assert told == [("error", "third")]


async def test_a_silent_skill_is_told_to_be_running() -> None:
    agent = Agent("slow-agent")
    beaten = asyncio.Event()

    @agent.skill(expose=True)
    async def sleep() -> str:
        await beaten.wait()
        return "awake"

    async def note(progress: float, total: float | None, message: str | None) -> None:
        assert message == "still running"
        beaten.set()

    limit_bytes = LimitTable().body_bytes
    mcp = agent_server(agent, local_dispatcher(agent), None, McpTable(), limit_bytes, heartbeat_s=0.05)
    app = SecurityMiddleware(Router(routes=[mcp_route(mcp)]))
    try:
        async with serve_app(app) as url, connect(f"{url}/mcp", "legacy") as client:
            assert texts(await client.call_tool("sleep", progress_callback=note)) == ["awake"]
    finally:
        await mcp.aclose()


# further on


@pytest.mark.parametrize("mode", MODES)
async def test_without_a_hub_an_agent_further_on_asks_the_same_client(system: System, mode: str) -> None:
    told: list[str | None] = []
    further = Agent("further-agent")

    @further.skill
    async def ask_further(ctx: Context) -> str:
        await ctx.progress(0.5, "further on")
        return str((await ctx.elicit("Who are you?", NAME))["name"])

    agent = Agent("first-agent")

    @agent.skill(expose=True)
    async def pass_on(ctx: Context) -> str:
        return f"Hello, {await ctx.call('ask_further')}!"

    async def answer(context: Any, params: ElicitRequestParams) -> ElicitResult:
        assert params.message == "Who are you?"
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    await system.start_agent(further)
    served = await system.start_agent(agent)
    async with connect(served, mode, elicitation_callback=answer) as client:
        assert texts(await client.call_tool("pass_on", progress_callback=note)) == ["Hello, Ada!"]
    assert told == ["further on"]


# the state of a question (2026-07-28)


async def ask(wire: Wire, url: str, **params: Any) -> Any:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    }
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "greet", "arguments": {}, "_meta": meta, **params},
    }
    reply = await wire.post(
        f"{url}/mcp",
        body,
        accept="application/json, text/event-stream",
        mcp_protocol_version="2026-07-28",
        mcp_method="tools/call",
        mcp_name=params.get("name", "greet"),
        **({} if "token" not in params else {"authorization": params.pop("token")}),
    )
    return reply.json


ANSWER = {"question-1": {"action": "accept", "content": {"name": "Ada"}}}


async def test_a_state_resumes_its_call_once(system: System, wire: Wire) -> None:
    served = await system.start_agent(asking_agent())
    asked = (await ask(wire, served.url))["result"]
    assert (asked["resultType"], list(asked["inputRequests"])) == ("input_required", ["question-1"])
    state = asked["requestState"]
    done = await ask(wire, served.url, requestState=state, inputResponses=ANSWER)
    assert done["result"]["content"][0]["text"] == "Hello, Ada!"
    again = await ask(wire, served.url, requestState=state, inputResponses=ANSWER)
    assert again["error"]["code"] == -32602


async def test_a_state_is_no_use_for_another_call_or_when_changed(system: System, wire: Wire) -> None:
    served = await system.start_agent(asking_agent())
    state = (await ask(wire, served.url))["result"]["requestState"]
    other = await ask(wire, served.url, name="age", requestState=state, inputResponses=ANSWER)
    changed = await ask(wire, served.url, requestState=f"{state}x", inputResponses=ANSWER)
    assert other["error"] == changed["error"]
    assert "requestState names no call" in changed["error"]["message"]


async def test_an_answer_to_another_question_is_no_answer(system: System, wire: Wire) -> None:
    served = await system.start_agent(asking_agent())
    first = (await ask(wire, served.url))["result"]
    wrong = {"another": {"action": "accept", "content": {"name": "Ada"}}}
    second = (await ask(wire, served.url, requestState=first["requestState"], inputResponses=wrong))["result"]
    assert second["inputRequests"] == first["inputRequests"]
    assert second["requestState"] != first["requestState"]


async def test_a_question_may_be_answered_before_it_is_asked(system: System, wire: Wire) -> None:
    served = await system.start_agent(asking_agent())
    done = await ask(wire, served.url, inputResponses=ANSWER)
    assert done["result"]["content"][0]["text"] == "Hello, Ada!"


async def test_a_call_that_is_not_answered_ends_with_its_endpoint(system: System, wire: Wire) -> None:
    agent = Agent("waiting-agent")
    ended = asyncio.Event()

    @agent.skill("greet", expose=True)
    async def greet(ctx: Context) -> str:
        try:
            await ctx.elicit("Who are you?", NAME)
        finally:
            ended.set()
        return "never"

    served = await system.start_agent(agent)
    await ask(wire, served.url)
    await served.stop()
    async with asyncio.timeout(WAIT_S):
        await ended.wait()


async def test_a_skill_that_needs_a_model_is_refused_by_code_where_there_is_none(system: System) -> None:
    agent = Agent("model-agent")

    @agent.skill(expose=True)
    async def think(ctx: Context) -> str:
        return await ctx.sample("think")

    served = await system.start_agent(agent)
    async with connect(served, "auto") as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("think")
        assert refused.value.code == -32021
        assert "use a client that declares the capability sampling" in str(refused.value)
        assert refused.value.error.data == {"requiredCapabilities": {"sampling": {}}}
    async with connect(served, "legacy") as client:
        result = await client.call_tool("think")
        assert result.is_error
        assert "sampling" in texts(result)[0]
