"""Fixtures of the driver tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services import docker_registry


@pytest.fixture(scope="session")
def docker_registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One docker-registry for all tests; each works in repositories of its own."""
    with docker_registry(tmp_path_factory.mktemp("docker-registry")) as url:
        yield url
