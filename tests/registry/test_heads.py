"""A hub's catalog tells what every tag means, so that another hub asks only for what is new."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.catalog import CATALOG_TYPE, parse_heads
from retinue.oci.codec.reference import Reference
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import forget, publish_card
from retinue.oci.source import RegistrySource
from retinue.web.http_client import HttpClient
from tests.registry.places import registry_app
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import open_wire

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Counted:
    """Notes the paths that were asked for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.paths.append(scope["path"])
        await self._app(scope, receive, send)


@pytest.fixture
def layout(tmp_path: Path) -> LayoutRegistry:
    return LayoutRegistry(tmp_path)


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    return Counted(registry_app(tmp_path))


@pytest.fixture
async def url(counted: Counted) -> AsyncIterator[str]:
    async with serve_app(counted) as served:
        yield served


async def publish(layout: LayoutRegistry, name: str, tag: str = "v1", version: str = "1.0.0") -> None:
    card = orjson.dumps({"name": name, "url": "http://localhost:8001", "version": version, "skills": []})
    await publish_card(layout, name, card, version=version, skills=[], created=NOON, tag=tag)


@requirement("P-30")
async def test_a_first_reading_is_two_requests_and_the_next_one(
    layout: LayoutRegistry, counted: Counted, url: str, client: HttpClient
) -> None:
    for name in ("a", "b", "c"):
        await publish(layout, name)
    source = RegistrySource("hub", HttpRegistry(url, client))
    first = await source.read_all()
    assert [listing.key for listing in first.listings] == ["agents/a", "agents/b", "agents/c"]
    assert counted.paths == ["/v2/_catalog", "/v2/_manifests"]
    counted.paths.clear()
    again = await source.read_all()
    assert (again.listings, again.unchanged) == (
        (),
        {(one.key, one.tag): one.digest for one in first.listings},
    )
    assert counted.paths == ["/v2/_catalog"]
    counted.paths.clear()
    await publish(layout, "a", tag="v2", version="2.0.0")
    await forget(layout, "b")
    reading = await source.read_all(thorough=False)
    assert [(one.key, one.tag) for one in reading.listings] == [("agents/a", "v2")]
    assert reading.unchanged.keys() == {("agents/a", "v1"), ("agents/c", "v1")}
    assert counted.paths == ["/v2/_catalog", "/v2/_manifests"]


async def test_a_damaged_repository_is_named_and_the_others_are_told(
    layout: LayoutRegistry, url: str, client: HttpClient, tmp_path: Path
) -> None:
    await publish(layout, "a")
    await publish(layout, "b")
    (tmp_path / "agents" / "a" / "index.json").write_bytes(b"{half")
    catalog = await HttpRegistry(url, client).read_catalog()
    assert catalog.repositories == ("agents/a", "agents/b")
    digest = await layout.find_digest(Reference("agents/b", tag="v1"))
    assert catalog.heads == {"agents/b": {"v1": digest}}


async def test_each_page_tells_its_own_and_others_get_the_plain_catalog(
    layout: LayoutRegistry, url: str
) -> None:
    await publish(layout, "a")
    await publish(layout, "b")
    async with open_wire() as wire:
        page = await wire.get(f"{url}/v2/_catalog?n=1", accept=f"{CATALOG_TYPE}, application/json")
        assert page.headers["content-type"] == CATALOG_TYPE
        assert (page.json["repositories"], list(page.json["heads"])) == (["agents/a"], ["agents/a"])
        plain = await wire.get(f"{url}/v2/_catalog")
        assert plain.headers["content-type"] == "application/json"
        assert plain.json == {"repositories": ["agents/a", "agents/b"]}


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {"heads": []},
        {"heads": {"agents/a": {"v1": "sha256:short"}}},
        {"heads": {"agents/a": ["v1"]}},
    ],
)
def test_what_is_no_list_of_heads_is_none(told: object) -> None:
    assert parse_heads(told) == {}
