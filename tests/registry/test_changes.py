"""A hub hears of changes of another hub's registry at once; other registries are read as before."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import orjson
from starlette.applications import Starlette

from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import forget, publish_card
from retinue.oci.source import RegistrySource
from retinue.runtime.parts.upkeep import RegistryWatch
from retinue.web.http_client import HttpClient
from tests.registry.places import registry_app
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import WAIT_S
from tests.time_bounds import Stopwatch

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


async def publish(layout: LayoutRegistry, name: str) -> None:
    card = orjson.dumps({"name": name, "url": "http://localhost:8001", "version": "1.0.0", "skills": []})
    await publish_card(layout, name, card, version="1.0.0", skills=[], created=NOON, tag="v1")


async def until(directory: Directory, name: str, *, listed: bool) -> None:
    """Wait until an agent is listed, or no longer, within two seconds."""
    stopwatch = Stopwatch()
    async with asyncio.timeout(WAIT_S):
        while (directory.find_named(name) is not None) != listed:
            await asyncio.sleep(0.01)
    stopwatch.check(2)


@requirement("P-30")
async def test_an_agent_that_another_hub_lists_is_known_within_two_seconds(
    tmp_path: Path, client: HttpClient
) -> None:
    layout = LayoutRegistry(tmp_path)
    await publish(layout, "first")
    async with serve_app(registry_app(tmp_path)) as url:
        registry = HttpRegistry(url, client)
        directory = Directory(MemoryListings(), [RegistrySource("hub", registry)])
        watching = asyncio.create_task(RegistryWatch(directory, "hub", registry.wait_for_change).run())
        await until(directory, "first", listed=True)
        await publish(layout, "second")
        await until(directory, "second", listed=True)
        await forget(layout, "first")
        await until(directory, "first", listed=False)
        watching.cancel()
        await asyncio.wait([watching])
        await directory.aclose()


async def test_a_registry_that_tells_of_no_changes_is_left(client: HttpClient) -> None:
    async with serve_app(Starlette()) as url:
        registry = HttpRegistry(url, client)
        assert await registry.wait_for_change("") is None
        directory = Directory(MemoryListings(), [RegistrySource("hub", registry)])
        await asyncio.wait_for(RegistryWatch(directory, "hub", registry.wait_for_change).run(), WAIT_S)
        await directory.aclose()
