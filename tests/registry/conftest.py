"""Registries of every kind, the slow ones once for all tests, and a client to ask them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from retinue.web.http_client import HttpClient
from tests.registry.places import KINDS, Place, own_endpoint, registry_with_password, registry_with_tokens
from tests.services import docker_registry, docker_registry_url

__all__ = ["docker_registry_url"]


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient() as opened:
        yield opened


@pytest.fixture(scope="session")
def place_with_password(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with registry_with_password(tmp_path_factory.mktemp("with-password")) as place:
        yield place


@pytest.fixture(scope="session")
def place_with_tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with registry_with_tokens(tmp_path_factory.mktemp("with-tokens")) as place:
        yield place


@pytest.fixture(scope="session")
def empty_docker_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A docker-registry that only the tests of this folder fill."""
    with docker_registry(tmp_path_factory.mktemp("plain")) as url:
        yield url


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """A registry of each kind in turn."""
    root = tmp_path / "layouts"
    if request.param == "layout":
        yield Place("layout", str(root), str(root))
    elif request.param == "door":
        async with own_endpoint(root) as endpoint:
            yield endpoint
    elif request.param == "plain":
        url = request.getfixturevalue("empty_docker_registry")
        yield Place("plain", url, url)
    else:
        name = "place_with_password" if request.param == "basic" else "place_with_tokens"
        yield request.getfixturevalue(name)
