"""Twelve hundred agents are all found: more than one page of a catalog, in every kind of registry."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import CopyableRegistry, open_registry, publish_card
from retinue.oci.source import RegistrySource
from retinue.web.http_client import HttpClient
from tests.registry.places import Place, own_endpoint
from tests.requirements import requirement

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MESH = frozenset({"exposed", "mesh"})
AGENTS = 1200
CONCURRENT = 16


def _card(number: int) -> tuple[str, bytes]:
    name = f"many{number:04}"
    skills = [{"id": "create_plan"}, {"id": f"only_of_{name}"}]
    return name, orjson.dumps(
        {"name": name, "url": "http://localhost:8001", "version": "1.0.0", "skills": skills}
    )


async def _publish_all(registry: CopyableRegistry) -> None:
    waiting = iter(range(AGENTS))

    async def work() -> None:
        for number in waiting:
            name, card = _card(number)
            await publish_card(registry, name, card, version="1.0.0", skills=[], created=NOON)

    await asyncio.gather(*(work() for _ in range(CONCURRENT)))


async def _check_all(registry: CopyableRegistry) -> None:
    directory = Directory(MemoryListings(), [RegistrySource("many", registry)])
    found = await directory.resolve_skill("create_plan", MESH)
    assert [one.name for one in found] == [_card(number)[0] for number in range(AGENTS)]
    for number in (0, 999, 1000, 1199):
        (one,) = await directory.resolve_skill(f"only_of_{_card(number)[0]}", MESH)
        whole = await directory.open(one)
        assert whole is not None
        assert whole.raw == _card(number)[1]
    assert directory.problems() == ()
    await directory.aclose()


@requirement("P-02")
@requirement("P-30")
async def test_twelve_hundred_agents_behind_the_hubs_own_endpoint_are_all_found(
    tmp_path: Path, client: HttpClient
) -> None:
    layout = LayoutRegistry(tmp_path)
    await _publish_all(layout)
    async with own_endpoint(tmp_path) as endpoint:
        await _check_all(open_registry(endpoint.url, client))


@requirement("P-30")
@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_twelve_hundred_agents_are_all_found_in_every_registry(
    place: Place, client: HttpClient
) -> None:
    registry = open_registry(place.location, client)
    await _publish_all(registry)
    await _check_all(registry)
