"""Fixtures shared by the tests of this folder."""

from tests.services import docker_registry_url, registry_3_url

__all__ = ["docker_registry_url", "registry_3_url"]
