"""Skills that ask, tell their progress and log: over HTTP, in both eras, with the official client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    LoggingMessageNotificationParams,
    Root,
    TextContent,
)
from pydantic import FileUrl

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.errors import CannotAskError, InputRefusedError
from retinue.surfaces.mcp import channel as channel_module
from tests.mcp.clients import MODES, connect, texts
from tests.system import WAIT_S, System, Wire

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def asking_agent() -> Agent:
    agent = Agent("asking-agent", logging=True)

    @agent.skill(expose=True)
    async def greet(ctx: Context) -> str:
        try:
            answer = await ctx.elicit("Who are you?", NAME)
        except CannotAskError as error:
            return f"cannot ask: {error.capability}"
        except InputRefusedError as error:
            return f"refused: {error.message}"
        return f"Hello, {answer['name']}!"

    @agent.skill(expose=True)
    async def age(ctx: Context) -> str:
        return f"{await ctx.elicit('How old are you?', {'type': 'integer'})} years"

    @agent.skill(expose=True)
    async def several(ctx: Context) -> str:
        name, said, roots = await asyncio.gather(
            ctx.elicit("Who are you?", NAME), ctx.sample("Say hello", max_tokens=10), ctx.roots()
        )
        return f"{said} {name['name']} of {roots[0].uri}"

    @agent.skill(expose=True)
    async def work(ctx: Context) -> str:
        await ctx.progress(0.25, "a quarter")
        await ctx.log("first", level="debug")
        await ctx.log("second", data={"n": 2})
        await ctx.log("third", level="error")
        await ctx.progress(None)
        await ctx.progress(0.5)
        return "done"

    @agent.skill(expose=True, timeout_s=0.3)
    async def patient(ctx: Context) -> str:
        await ctx.elicit("Take your time", NAME)
        return "thank you"

    return agent


async def say_ada(context: Any, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada", "answer": 36})


async def decline(context: Any, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="decline")


async def answer_wrongly(context: Any, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": 7})


async def say_hello(context: Any, params: CreateMessageRequestParams) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(text="hello"), model="test")


async def say_roots(context: Any) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri=FileUrl("file:///work"))])


@pytest.mark.parametrize("mode", MODES)
async def test_a_person_is_asked_and_answers(system: System, mode: str) -> None:
    served = await system.start_agent(asking_agent())
    async with connect(served, mode, elicitation_callback=say_ada) as client:
        assert texts(await client.call_tool("greet")) == ["Hello, Ada!"]
        assert texts(await client.call_tool("age")) == ["36 years"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_person_may_decline_or_answer_what_does_not_fit(system: System, mode: str) -> None:
    served = await system.start_agent(asking_agent())
    async with connect(served, mode, elicitation_callback=decline) as client:
        assert texts(await client.call_tool("greet")) == [
            "refused: the question was answered with decline: Who are you?"
        ]
    async with connect(served, mode, elicitation_callback=answer_wrongly) as client:
        assert texts(await client.call_tool("greet"))[0].startswith("refused: the answer does not fit")


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_cannot_ask_is_not_asked(system: System, mode: str) -> None:
    served = await system.start_agent(asking_agent())
    async with connect(served, mode) as client:
        assert texts(await client.call_tool("greet")) == ["cannot ask: elicitation"]


@pytest.mark.parametrize("mode", MODES)
async def test_person_model_and_roots_are_asked_at_once(system: System, mode: str) -> None:
    served = await system.start_agent(asking_agent())
    async with connect(
        served,
        mode,
        elicitation_callback=say_ada,
        sampling_callback=say_hello,
        list_roots_callback=say_roots,
    ) as client:
        assert texts(await client.call_tool("several")) == ["hello Ada of file:///work"]


@pytest.mark.parametrize("mode", MODES)
async def test_the_clock_of_a_skill_stands_still_while_it_asks(system: System, mode: str) -> None:
    async def think(context: Any, params: ElicitRequestParams) -> ElicitResult:
        await asyncio.sleep(0.5)
        return ElicitResult(action="accept", content={"name": "Ada"})

    served = await system.start_agent(asking_agent())
    async with connect(served, mode, elicitation_callback=think) as client:
        assert texts(await client.call_tool("patient")) == ["thank you"]


@pytest.mark.parametrize("mode", MODES)
async def test_progress_only_grows(system: System, mode: str) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((round(progress, 3), total, message))

    served = await system.start_agent(asking_agent())
    async with connect(served, mode) as client:
        await client.call_tool("work", progress_callback=note)
    assert told == [(0.25, 1.0, "a quarter"), (0.25, 1.0, None), (0.5, 1.0, None)]


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


async def test_a_silent_skill_is_told_to_be_running(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "HEARTBEAT_S", 0.05)
    agent = Agent("slow-agent")
    beaten = asyncio.Event()

    @agent.skill(expose=True)
    async def sleep() -> str:
        await beaten.wait()
        return "awake"

    async def note(progress: float, total: float | None, message: str | None) -> None:
        assert message == "still running"
        beaten.set()

    served = await system.start_agent(agent)
    async with connect(served, "legacy") as client:
        assert texts(await client.call_tool("sleep", progress_callback=note)) == ["awake"]


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


async def test_a_call_that_is_not_answered_ends_with_its_door(system: System, wire: Wire) -> None:
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
        assert refused.value.error.data == {"requiredCapabilities": {"sampling": {}}}
    async with connect(served, "legacy") as client:
        result = await client.call_tool("think")
        assert result.is_error
        assert "sampling" in texts(result)[0]
