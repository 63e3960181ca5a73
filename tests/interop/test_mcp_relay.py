"""MCP to an agent through the hub: all that the agent can do, in both eras, as if nobody stood between."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.interop.everything import TOOLS, WATCHED
from tests.interop.relay import Relay
from tests.requirements import requirement
from tests.system import WAIT_S

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])


async def _answer(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"colour": "red"})


async def _think(context: Any, params: Any) -> types.CreateMessageResult:
    said = types.TextContent(type="text", text=f"{params.messages[0].content.text} is 2")
    return types.CreateMessageResult(role="assistant", content=said, model="none")


def _text(result: Any) -> str:
    return str(result.content[0].text)


@both_eras
@requirement("S-03")
async def test_a_client_lists_reads_and_calls_as_if_nobody_stood_between(relay: Relay, mode: str) -> None:
    """Tools, resources, templates, prompts and completion; the server is the agent itself."""
    async with relay.client(mode) as client:
        assert client.server_info is not None
        assert client.server_info.name == "everything"
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == [name for name in TOOLS if name != "count"]
        assert _text(await client.call_tool("echo", {"text": "hello"})) == "hello"
        assert (await client.list_resources()).resources[0].uri == "test://static"
        assert (await client.list_resource_templates()).resource_templates[0].name == "any"
        (contents,) = (await client.read_resource("test://static")).contents
        assert contents.text == "still here"  # type: ignore[union-attr]
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["greet"]
        said = (await client.get_prompt("greet", {"name": "Bo"})).messages[0].content
        assert said.text == "Hello Bo"  # type: ignore[union-attr]
        completion = await client.complete(
            types.PromptReference(type="ref/prompt", name="greet"), {"name": "name", "value": "Pa"}
        )
        assert completion.completion.values == ["Paris", "Park"]


@both_eras
async def test_progress_and_log_lines_come_while_a_call_runs(relay: Relay, mode: str) -> None:
    """In their order, before the result."""
    steps: list[tuple[float, str | None]] = []
    lines: list[Any] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, message))

    async def log(params: Any) -> None:
        lines.append(params.data)

    async with relay.client(mode, logging_callback=log, log_level="info") as client:
        result = await client.call_tool("report", progress_callback=note)
    assert _text(result) == "reported"
    assert steps == [(0, "step 0"), (1, "step 1"), (2, "step 2")]
    assert lines == ["half way"]


@both_eras
async def test_an_agent_asks_the_person_behind_the_client(relay: Relay, mode: str) -> None:
    """A request of the server's in the one era, a result that wants input in the other."""
    async with relay.client(mode, elicitation_callback=_answer) as client:
        assert _text(await client.call_tool("ask")) == "accept {'colour': 'red'}"


async def test_an_agent_asks_the_clients_model(relay: Relay) -> None:
    """Sampling goes up the stream of the call and its answer down by a message of its own."""
    async with relay.client("legacy", sampling_callback=_think) as client:
        assert _text(await client.call_tool("think")) == "1+1 is 2"


@both_eras
async def test_a_tool_that_fails_says_so_in_its_own_words(relay: Relay, mode: str) -> None:
    """An ``isError`` result is the agent's own; the hub's audit knows that the call failed."""
    async with relay.client(mode) as client:
        result = await client.call_tool("fail")
        assert (result.is_error, _text(result)) == (True, "it broke")
        assert (await client.call_tool("echo", {"text": "x"})).is_error is False
    first = "initialize" if mode == "legacy" else "server/discover"
    rows = [row for row in relay.hub.audit.recent(50) if row["type"] == "CALL:ENDED"]
    assert {(row["skill"], row["status"], row["door"]) for row in rows} >= {
        ("fail", "failed", "mcp"),
        ("echo", "done", "mcp"),
        (first, "done", "mcp"),
    }
    ran = [row["tool"] for row in relay.hub.audit.recent(50) if row["type"] == "EXEC:TOOL_CALL"]
    assert ran == ["echo", "fail"]


async def test_changes_reach_a_client_with_a_session_over_its_own_stream(relay: Relay) -> None:
    """GET stays open through the hub: list_changed and a subscribed resource."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification | types.ResourceUpdatedNotification):
            heard.put_nowait(message.method)

    async with relay.client("legacy", message_handler=hear) as client, asyncio.timeout(WAIT_S):
        await client.subscribe_resource(WATCHED)
        await relay.everything.wait_for("GET")
        await client.call_tool("touch")
        found = {await heard.get(), await heard.get()}
    assert found == {"notifications/resources/updated", "notifications/tools/list_changed"}


async def test_changes_reach_a_client_that_listens(relay: Relay) -> None:
    """``subscriptions/listen`` stays open, and is no call that could run out of time."""
    async with (
        relay.client("auto") as client,
        client.listen(tools_list_changed=True, resource_subscriptions=[WATCHED]) as events,
        asyncio.timeout(WAIT_S),
    ):
        await client.call_tool("touch")
        found = [type(await anext(events)).__name__ for _ in range(2)]
    assert set(found) == {"ToolsListChanged", "ResourceUpdated"}
    assert relay.hub.mesh.dispatcher.limits._in_flight == 0


@both_eras
async def test_a_client_that_cancels_ends_the_call_at_the_agent(relay: Relay, mode: str) -> None:
    """By a message in the one era, by the end of the stream in the other."""
    begun = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        begun.set()

    async with relay.client(mode) as client, asyncio.timeout(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.call_tool("hang", {"as": f"hang-{mode}"}, progress_callback=note))
            await begun.wait()
            tasks.cancel_scope.cancel()
        await relay.everything.wait_for(f"hang-{mode}", method=False)


@both_eras
async def test_a_hidden_tool_and_a_missing_one_answer_alike(relay: Relay, mode: str) -> None:
    """Without a token only what is exposed is there; with one the mesh's own as well."""
    async with relay.client(mode) as client:
        for name in ("count", "nope"):
            with pytest.raises(MCPError) as caught:
                await client.call_tool(name)
            error = caught.value.error
            assert (error.code, error.message, error.data) == (-32602, f"Unknown tool: {name}", None)
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "count" not in names
    async with relay.client(mode, token=relay.system.token) as client:
        assert "count" in [tool.name for tool in (await client.list_tools()).tools]
        assert (await client.call_tool("count")).structured_content == {"count": 3}
