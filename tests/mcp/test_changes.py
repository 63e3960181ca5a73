"""Lists that change reach connected clients of both eras, and each hears only of what it sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    ToolListChangedNotification,
)

from retinue.authoring.agent import Agent
from retinue.runtime.loading.reloading import watch_lists
from retinue.runtime.loading.targets import load_target
from tests.mcp.clients import connect
from tests.seeds.seed_004 import write_coder
from tests.system import WAIT_S, Served, System

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
"""The client's own remark that subscriptions of the handshake era are of the past."""


class Heard:
    """What a connected client was told, in order."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self._news = asyncio.Condition()

    async def note(self, message: Any) -> None:
        names = {
            ToolListChangedNotification: "tools",
            ResourceListChangedNotification: "resources",
            PromptListChangedNotification: "prompts",
        }
        if type(message) in names:
            await self.add(names[type(message)])
        elif isinstance(message, ResourceUpdatedNotification):
            await self.add(message.params.uri)

    async def add(self, kind: str) -> None:
        async with self._news:
            self.kinds.append(kind)
            self._news.notify_all()

    async def wait_for(self, *kinds: str) -> None:
        async with asyncio.timeout(WAIT_S), self._news:
            await self._news.wait_for(lambda: set(kinds) <= set(self.kinds))


@asynccontextmanager
async def listening(
    served: Served, mode: str, *, authorization: str | None = None, uris: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Client, Heard]]:
    """A client that listens: to its GET stream, or to a subscription of the sessionless era."""
    heard = Heard()
    options: dict[str, Any] = {"message_handler": heard.note} if mode == "legacy" else {}
    async with connect(served, mode, authorization=authorization, **options) as client:
        if mode == "legacy":
            for uri in uris:
                await client.subscribe_resource(uri)
            # the answer to a request proves that the connection is noted; its stream opens beside it
            await client.list_tools()
            yield client, heard
            return
        subscribed = client.listen(
            tools_list_changed=True,
            resources_list_changed=True,
            prompts_list_changed=True,
            resource_subscriptions=list(uris),
        )
        async with subscribed as events:

            async def read() -> None:
                async for event in events:
                    kind = type(event).__name__.removesuffix("ListChanged").lower()
                    await heard.add(getattr(event, "uri", kind))

            reading = asyncio.create_task(read())
            try:
                yield client, heard
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


async def answer() -> str:
    return "answer"


async def page(day: str) -> str:
    return day


def changing_agent() -> Agent:
    agent = Agent("changing-agent")
    agent.skill("first", expose=True)(answer)
    agent.resource("notes://today", expose=True, live=True)(answer)
    agent.resource("notes://{day}/page", expose=True, live=True)(page)
    agent.resource("notes://secret", live=True)(answer)
    return agent


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_new_skills_resources_and_prompts_are_told(system: System, mode: str) -> None:
    agent = changing_agent()
    served = await system.start_agent(agent)
    async with listening(served, mode) as (client, heard):
        agent.skill("second", expose=True)(answer)
        await heard.wait_for("tools")
        assert [tool.name for tool in (await client.list_tools()).tools] == ["first", "second"]
        agent.resource("notes://more", expose=True)(answer)
        await heard.wait_for("resources")
        agent.prompt("ask", expose=True)(answer)
        await heard.wait_for("prompts")
        assert [one.name for one in (await client.list_prompts()).prompts] == ["ask"]
        agent.forget_skill("second")
        assert [tool.name for tool in (await client.list_tools()).tools] == ["first"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_what_a_client_does_not_see_is_not_told_to_it(system: System, mode: str) -> None:
    agent = changing_agent()
    served = await system.start_agent(agent)
    async with (
        listening(served, mode) as (_, stranger),
        listening(served, mode, authorization=system.token) as (_, member),
    ):
        agent.skill("for_the_mesh")(answer)
        await member.wait_for("tools")
        agent.skill("for_all", expose=True)(answer)
        await stranger.wait_for("tools")
        assert stranger.kinds == ["tools"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_subscribers_are_told_that_a_resource_reads_otherwise(system: System, mode: str) -> None:
    agent = changing_agent()
    served = await system.start_agent(agent)
    async with listening(served, mode, uris=("notes://today", "notes://monday/page")) as (_, heard):
        await asyncio.to_thread(agent.resource_changed, "notes://today")
        await heard.wait_for("notes://today")
        agent.resource_changed("notes://tuesday/page")
        agent.resource_changed("notes://secret")
        agent.resource_changed("notes://monday/page")
        await heard.wait_for("notes://monday/page")
        assert heard.kinds == ["notes://today", "notes://monday/page"]


async def test_a_subscription_that_ended_is_told_nothing(system: System) -> None:
    agent = changing_agent()
    served = await system.start_agent(agent)
    async with listening(served, "legacy", uris=("notes://today",)) as (client, heard):
        await client.unsubscribe_resource("notes://today")
        agent.resource_changed("notes://today")
        agent.skill("second", expose=True)(answer)
        await heard.wait_for("tools")
        assert heard.kinds == ["tools"]


async def test_a_hidden_resource_cannot_be_subscribed_to_any_more_than_a_missing_one(system: System) -> None:
    served = await system.start_agent(changing_agent())
    async with connect(served, "legacy") as client:
        for uri in ("notes://secret", "notes://nope"):
            with pytest.raises(MCPError) as refused:
                await client.subscribe_resource(uri)
            assert (refused.value.code, refused.value.message) == (-32602, "Resource not found")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_lists_of_an_agent_json_take_effect_while_clients_are_connected(
    system: System, tmp_path: Path, mode: str
) -> None:
    file = write_coder(tmp_path, mcp={"expose_tools": ["git:*"]})
    target = load_target(str(file))
    served = await system.start_agent(target.agent)
    said: list[str] = []
    async with watch_lists(target, said.append), listening(served, mode) as (client, heard):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["git_status"]
        write_coder(tmp_path, mcp={"expose_tools": ["fs:read_file"], "expose_resources": ["profile"]})
        await heard.wait_for("tools", "resources")
        assert [tool.name for tool in (await client.list_tools()).tools] == ["fs_read_file"]
        with pytest.raises(MCPError, match="Unknown tool: git:status"):
            await client.call_tool("git:status")
        assert [one.name for one in (await client.list_resources()).resources] == ["profile"]
    assert said == ["agent.json: lists reloaded"]


async def test_a_broken_agent_json_changes_nothing_and_slips_of_the_pen_are_told(
    system: System, tmp_path: Path
) -> None:
    file = write_coder(tmp_path, mcp={"expose_tools": ["git:*", "fs:raed_file"]})
    target = load_target(str(file))
    said: asyncio.Queue[str] = asyncio.Queue()

    async def heard() -> str:
        async with asyncio.timeout(WAIT_S):
            return await said.get()

    async with watch_lists(target, said.put_nowait):
        assert await heard() == (
            "warning: mcp.expose_tools: 'fs:raed_file' matches nothing of this agent; "
            "did you mean fs:read_file, fs:write_file?"
        )
        file.write_text("{ broken")
        assert "keeping the previous lists" in await heard()
        facts = {"name": "openstarry-coder", "entry": "plugins.py:agent", "mcp": {"expose_tols": []}}
        file.write_bytes(orjson.dumps(facts))
        assert "unknown key" in await heard()
    exposed = [skill.id for skill in target.agent.skills if skill.visibility == "exposed"]
    assert exposed == ["git:status"]


async def test_ended_connections_are_forgotten(system: System) -> None:
    agent = changing_agent()
    served = await system.start_agent(agent)
    for _ in range(3):
        async with connect(served, "legacy") as client:
            await client.list_tools()
    agent.skill("second", expose=True)(answer)
    async with connect(served, "legacy") as client:
        assert len((await client.list_tools()).tools) == 2
