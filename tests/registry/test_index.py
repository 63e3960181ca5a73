"""Registries without a catalog, as ghcr.io: the configured list, then the index that publishing keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from retinue.core.errors import RegistryLoginError, RegistryRefusedError
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.catalog import INDEX, parse_index_artifact
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.mirror import mirror
from retinue.oci.registry import (
    Registry,
    forget,
    list_published,
    open_registry,
    publish_card,
    publish_workflow,
    withdraw,
)
from retinue.oci.source import RegistrySource
from retinue.runtime.shelves import RegistryShelf
from retinue.web.http_client import HttpClient
from tests.registry.places import TOKEN, Place, registry_app, registry_with_tokens, with_login
from tests.registry.storm import Storm, Weather, answer
from tests.requirements import requirement
from tests.serving import serve_app

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def card(name: str) -> bytes:
    return orjson.dumps({"name": name, "url": "http://localhost:8001", "skills": [{"id": "s"}]})


async def publish(registry: Registry, name: str) -> None:
    await publish_card(registry, name, card(name), version="1", skills=["s"], created=NOON)


@pytest.fixture
def storm(tmp_path: Path) -> Storm:
    """A registry over HTTP whose catalog can be taken away."""
    return Storm(registry_app(tmp_path / "layouts"))


@asynccontextmanager
async def serving(storm: Storm) -> AsyncIterator[str]:
    """Its url, with a login."""
    async with serve_app(storm) as url:
        yield with_login(url, "retinue", TOKEN)


@requirement("P-30")
@pytest.mark.parametrize(
    "catalog",
    [answer(404), answer(405), answer(401), answer(403), answer(200, b'{"repositories": null}')],
    ids=["404", "405", "401", "403", "empty"],
)
async def test_what_was_published_is_found_without_a_catalog(
    storm: Storm, client: HttpClient, catalog: Weather
) -> None:
    storm.rules = {"GET /v2/_catalog": catalog}
    async with serving(storm) as url:
        registry = HttpRegistry(url, client)
        for name in ("plan-agent", "build-agent"):
            await publish(registry, name)
        await publish_workflow(registry, "both", b"name: both\n", created=NOON)
        reader = HttpRegistry(url, client)
        assert await list_published(reader) == ["agents/build", "agents/plan", "workflows/both"]
        reading = await RegistrySource("r", reader).read_all()
        assert [listing.record.name for listing in reading.listings] == ["build-agent", "plan-agent"]
        assert reading.problems == ()
        assert await RegistryShelf(reader).list_names() == ["both"]
        await forget(registry, "plan-agent")
        assert await list_published(reader) == ["agents/build", "workflows/both"]
        # With the catalog back, the index that lies in it is nobody's agent.
        storm.rules.clear()
        reading = await RegistrySource("r", HttpRegistry(url, client)).read_all()
        assert [listing.record.name for listing in reading.listings] == ["build-agent"]
        assert reading.problems == ()


async def test_the_configured_list_comes_before_the_index(storm: Storm, client: HttpClient) -> None:
    storm.rules = {"GET /v2/_catalog": answer(404)}
    async with serving(storm) as url:
        for name in ("plan-agent", "build-agent"):
            await publish(HttpRegistry(url, client), name)
        configured = HttpRegistry(url, client, repositories=["agents/plan", "agents/none"])
        reading = await RegistrySource("r", configured).read_all()
        assert [listing.record.name for listing in reading.listings] == ["plan-agent"]
        storm.rules.clear()
        assert "agents/build" in await list_published(configured)


async def test_with_neither_catalog_nor_index_the_refusal_is_told(storm: Storm, client: HttpClient) -> None:
    storm.rules = {"GET /v2/_catalog": answer(403, b"not here")}
    async with serving(storm) as url:
        with pytest.raises(RegistryRefusedError, match="answered 403: not here"):
            await list_published(HttpRegistry(url, client))
        storm.rules = {"GET /v2/_catalog": answer(500)}
        with pytest.raises(RegistryRefusedError, match="answered 500"):
            await list_published(HttpRegistry(url, client))


async def test_where_there_is_a_catalog_no_index_is_kept(storm: Storm, client: HttpClient) -> None:
    async with serving(storm) as url:
        registry = HttpRegistry(url, client)
        for name in ("plan-agent", "build-agent"):
            await publish(registry, name)
        assert await registry.list_tags(INDEX.repository) == []
        assert storm.count("GET /v2/_catalog") == 1


async def test_two_who_publish_at_once_are_both_in_the_index(storm: Storm, client: HttpClient) -> None:
    storm.rules = {"GET /v2/_catalog": answer(404)}
    async with serving(storm) as url:
        names = [f"agent{number}" for number in range(4)]
        for name in names:
            await publish(HttpRegistry(url, client), name)
        # Again and at once: each finds itself in the index already.
        await asyncio.gather(*(publish(HttpRegistry(url, client), name) for name in names))
        index = await HttpRegistry(url, client).pull(INDEX)
        assert parse_index_artifact(index) == [f"agents/{name}" for name in names]


async def test_an_agent_that_leaves_is_struck_out_and_its_successor_is_not(
    storm: Storm, client: HttpClient
) -> None:
    storm.rules = {"GET /v2/_catalog": answer(404)}
    async with serving(storm) as url:
        registry = HttpRegistry(url, client)
        first = await publish_card(registry, "a", card("a"), version="1", skills=[], created=NOON)
        second = await publish_card(registry, "a", card("a") + b" ", version="1", skills=[], created=NOON)
        assert second.replaced == first.digest
        await withdraw(registry, first)
        assert await list_published(registry) == ["agents/a"]
        await withdraw(registry, second)
        assert await list_published(registry) == []


@pytest.fixture
def ghcr(tmp_path: Path) -> Iterator[Place]:
    """A registry whose token server lets nobody see the catalog."""
    with registry_with_tokens(tmp_path, shows_catalog=False) as place:
        yield place


@requirement("P-30")
async def test_a_registry_that_shows_its_catalog_to_nobody_is_read_by_anybody(
    ghcr: Place, client: HttpClient, tmp_path: Path
) -> None:
    writer = open_registry(ghcr.location, client)
    with pytest.raises(RegistryLoginError):
        await writer.list_repositories()
    await publish_card(writer, "plan-agent", card("plan-agent"), version="1", skills=[], created=NOON)
    anybody = open_registry(ghcr.url, client)
    reading = await RegistrySource("r", anybody).read_all()
    assert [listing.record.name for listing in reading.listings] == ["plan-agent"]
    # A mirror of it needs no index of its own where there is a catalog, and keeps one where there is none.
    copies = LayoutRegistry(tmp_path / "copies")
    await mirror(anybody, copies)
    assert await copies.list_repositories() == ["agents/plan"]
    await publish_card(copies, "other", card("other"), version="1", skills=[], created=NOON)
    report = await mirror(copies, writer)
    assert [str(one) for one in report.copied] == ["agents/other:v1"]
    assert await list_published(anybody) == ["agents/other", "agents/plan"]
