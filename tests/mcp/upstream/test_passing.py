"""Resources, templates, prompts and completion of imported servers, through a hub, by the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    BlobResourceContents,
    PromptReference,
    ResourceLink,
    ResourceTemplateReference,
    ResourceUpdatedNotification,
    TextContent,
    TextResourceContents,
)

from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from tests.mcp.clients import MODES, connect
from tests.mcp.upstream.library_server import LINKED, LISTED, Library, serve_library
from tests.system import WAIT_S, Hub, System

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

ERAS = ("handshake", "sessionless")


@dataclass
class World:
    """A hub with the library, imported as ``lib``."""

    library: Library
    hub: Hub

    @property
    def own(self) -> str:
        return f"{self.hub.url}/agents/lib/mcp"

    @property
    def whole(self) -> str:
        return f"{self.hub.url}/mcp"


@pytest.fixture(params=ERAS)
async def world(request: pytest.FixtureRequest, system: System) -> World:
    library = Library()
    url = await serve(system, library, request.param)
    return await start_world(system, library, {"lib": ImportTable(url=url)})


async def serve(system: System, library: Library, era: str = "handshake") -> str:
    """Serve a library until after the hub has ended."""
    return await system.stack.enter_async_context(serve_library(library, era))


async def start_world(system: System, library: Library, tables: dict[str, ImportTable]) -> World:
    system.settings = Settings(imports=ImportsTable.model_validate(tables))
    hub = await system.start_hub()
    for name in tables:
        await hub.wait_until_healthy(name)
    return World(library, hub)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await holds():
            await asyncio.sleep(0.01)


async def read_text(client: Client, uri: str) -> str:
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    assert content.uri == uri
    return content.text


@pytest.mark.parametrize("mode", MODES)
async def test_at_its_own_endpoint_a_server_keeps_its_names(world: World, mode: str) -> None:
    async with connect(world.own, mode) as client:
        listed = (await client.list_resources()).resources
        assert [(one.uri, one.mime_type) for one in listed] == [(LISTED, "text/plain")]
        templates = (await client.list_resource_templates()).resource_templates
        assert [(one.uri_template, one.mime_type) for one in templates] == [("item://{+id}{?page}", None)]
        assert await read_text(client, LISTED) == "as it was"
        (image,) = (await client.read_resource("item://a/b?page=2")).contents
        assert isinstance(image, BlobResourceContents)
        assert (image.uri, image.mime_type, image.blob) == ("item://a/b?page=2", "image/png", "cG5n")
        (prompt,) = (await client.list_prompts()).prompts
        assert prompt.name == "re:view"
        assert prompt.arguments is not None
        assert prompt.arguments[0].required
        await check_prompt(client, "re:view")
        await check_completion(client, PromptReference(name="re:view"), "re:view")
        await check_completion(
            client, ResourceTemplateReference(uri="item://{+id}{?page}"), "item://{+id}{?page}"
        )
        with pytest.raises(MCPError, match="Resource not found") as refused:
            await client.read_resource("demo://missing")
        assert refused.value.error.data == {"uri": "demo://missing"}


async def check_prompt(client: Client, name: str) -> None:
    found = await client.get_prompt(name, {"book": "Emma"})
    assert found.description == "A review"
    said = [(one.role, one.content.text) for one in found.messages if isinstance(one.content, TextContent)]
    assert said == [("user", "Review Emma."), ("assistant", "Gladly.")]


async def check_completion(
    client: Client, ref: PromptReference | ResourceTemplateReference, known: str
) -> None:
    found = await client.complete(ref, {"name": "book", "value": "Em"})
    assert found.completion.values == [f"{known} book Em…"]


@pytest.mark.parametrize("mode", MODES)
async def test_at_the_hub_the_names_of_a_server_follow_its_own(world: World, mode: str) -> None:
    async with connect(world.whole, mode) as client:
        listed = {one.uri for one in (await client.list_resources()).resources}
        assert f"agent:lib/{LISTED}" in listed
        templates = {one.uri_template for one in (await client.list_resource_templates()).resource_templates}
        assert "agent:lib/item://{+id}{?page}" in templates
        assert await read_text(client, f"agent:lib/{LISTED}") == "as it was"
        assert await read_text(client, LISTED) == "as it was"
        prompts = {one.name: one.title for one in (await client.list_prompts()).prompts}
        assert prompts["lib__re_view"] == "re:view"
        for name in ("lib__re_view", "lib__re:view", "lib.re:view"):
            await check_prompt(client, name)
        await check_completion(client, PromptReference(name="lib__re_view"), "re:view")
        template = ResourceTemplateReference(uri="agent:lib/item://{+id}{?page}")
        await check_completion(client, template, "item://{+id}{?page}")
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource("agent:lib/demo://missing")
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource("agent:other/demo://static")


async def test_a_link_in_the_result_of_a_tool_is_read_at_the_hub(world: World) -> None:
    async with connect(world.whole) as client:
        result = await client.call_tool("lib__link")
        link = result.content[1]
        assert isinstance(link, ResourceLink)
        assert (link.uri, link.title) == (LINKED, "Linked")
        assert await read_text(client, link.uri) == "found by a link"


async def test_a_read_carries_the_trace_and_is_a_row_of_the_audit(world: World) -> None:
    async with connect(world.own) as client:
        await client.read_resource(LISTED)
    meta = world.library.metas[-1]
    assert any("trace" in key.lower() for key in meta)
    row = world.hub.audit.recent(1)[0]
    assert (row["skill"], row["agent"], row["status"]) == (f"resource {LISTED}", "lib", "done")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", ["own", "whole"])
async def test_changes_of_resources_and_lists_reach_the_client(world: World, mode: str, at: str) -> None:
    uri = LISTED if at == "own" else f"agent:lib/{LISTED}"
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with following(getattr(world, at), mode, uri, heard):
        await change_until_heard(world.library, heard, uri)
        await world.library.add("demo://new", "n")
        async with asyncio.timeout(WAIT_S):
            while await heard.get() != "list":
                pass
    async with connect(getattr(world, at), mode) as client:
        listed = {one.uri for one in (await client.list_resources()).resources}
        assert uri.replace(LISTED, "demo://new") in listed


async def change_until_heard(library: Library, heard: asyncio.Queue[str], uri: str) -> None:
    """Change the resource until the client hears of it: subscriptions travel through the hub."""
    async with asyncio.timeout(WAIT_S):
        for number in range(1_000):
            await library.change(LISTED, f"text {number}")
            try:
                async with asyncio.timeout(0.1):
                    while await heard.get() != uri:
                        pass
                    return
            except TimeoutError:
                continue


@asynccontextmanager
async def following(url: str, mode: str, uri: str, heard: asyncio.Queue[str]) -> AsyncIterator[None]:
    """A client that follows ``uri`` and puts what it hears into a queue: a URI, or ``list``."""

    async def note(message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            await heard.put(message.params.uri)
        elif type(message).__name__ == "ResourceListChangedNotification":
            await heard.put("list")

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(url, mode, message_handler=note))
        if mode == "legacy":
            await client.list_resources()
            await client.subscribe_resource(uri)
            yield
            return
        listening = await stack.enter_async_context(
            client.listen(resources_list_changed=True, resource_subscriptions=[uri])
        )

        async def read() -> None:
            async for event in listening:
                await heard.put(getattr(event, "uri", "list"))

        reading = asyncio.create_task(read())
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def test_two_servers_with_the_same_names_are_told_apart(system: System) -> None:
    first, second = Library("one"), Library("two")
    second.texts[LISTED] = "of the second"
    one, two = await serve(system, first), await serve(system, second)
    world = await start_world(system, first, {"one": ImportTable(url=one), "two": ImportTable(url=two)})
    async with connect(world.whole) as client:
        assert await read_text(client, f"agent:one/{LISTED}") == "as it was"
        assert await read_text(client, f"agent:two/{LISTED}") == "of the second"
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource(LISTED)
        names = {one.name for one in (await client.list_prompts()).prompts}
        assert {"one__re_view", "two__re_view"} <= names


async def test_what_a_private_import_has_is_not_for_clients(system: System) -> None:
    library = Library()
    url = await serve(system, library)
    world = await start_world(system, library, {"lib": ImportTable(url=url, visibility="mesh")})
    async with connect(world.whole) as client:
        assert not any("demo://" in one.uri for one in (await client.list_resources()).resources)
        for uri in (LISTED, f"agent:lib/{LISTED}"):
            with pytest.raises(MCPError, match="Resource not found"):
                await client.read_resource(uri)
    async with connect(world.whole, authorization=system.token) as client:
        assert await read_text(client, f"agent:lib/{LISTED}") == "as it was"


async def test_a_server_that_is_down_is_an_error_that_names_it(system: System) -> None:
    library = Library()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_library(library))
        world = await start_world(system, library, {"lib": ImportTable(url=url)})
        await stack.aclose()
        async with connect(world.own) as client:
            with pytest.raises(MCPError, match="lib"):
                await client.read_resource(LISTED)
