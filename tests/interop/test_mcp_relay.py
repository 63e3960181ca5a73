"""MCP to an agent through the hub: all that the agent can do, in both eras, as if nobody stood between."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from retinue.mesh.observing.events import Event, ToolCallEvent
from tests.interop.everything import TOOLS, WATCHED
from tests.interop.relay import Relay
from tests.requirements import requirement
from tests.system import WAIT_S

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])


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
async def test_a_tool_that_fails_says_so_in_its_own_words(relay: Relay, mode: str) -> None:
    """An ``isError`` result is the agent's own; the hub's audit knows that the call failed."""
    events: list[Event] = []
    relay.hub.process.dispatcher.admission.events.subscribe(events.append)
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
    assert [event.tool for event in events if isinstance(event, ToolCallEvent)] == ["fail", "echo"]


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
    assert relay.hub.mesh.dispatcher.admission.limits.in_flight == 0


@both_eras
async def test_with_a_token_the_tools_for_the_mesh_are_there_as_well(relay: Relay, mode: str) -> None:
    """Although the agent itself lists them to everybody."""
    async with relay.client(mode) as client:
        assert "count" not in [tool.name for tool in (await client.list_tools()).tools]
        with pytest.raises(MCPError, match="Unknown tool: count"):
            await client.call_tool("count")
    async with relay.client(mode, token=relay.system.token) as client:
        assert "count" in [tool.name for tool in (await client.list_tools()).tools]
        assert (await client.call_tool("count")).structured_content == {"count": 3}
