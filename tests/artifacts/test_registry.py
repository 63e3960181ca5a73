"""Artifacts whose content is in an OCI registry elsewhere, shared by several states."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from retinue.core.errors import (
    InvalidSettingError,
    QuotaExceededError,
    RegistryUnreachableError,
    TooLargeError,
    UnknownArtifactError,
)
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.client.saved_files import CHUNK_BYTES
from retinue.runtime.factories import state_artifacts
from retinue.settings import Settings
from retinue.storage.artifacts.store import StoredArtifacts
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from tests.ports import reserved_port
from tests.registry.places import Place, own_endpoint
from tests.services import docker_registry, get_program

LARGE = bytes(range(256)) * 4096 * 9  # more than two chunks
REPOSITORY = "files/of-the-mesh"


@pytest.fixture(params=["door", "docker-registry"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "door":
        async with own_endpoint(tmp_path / "registry") as place:
            yield place
    else:
        with docker_registry(tmp_path) as url:
            yield Place("plain", url, url)


@asynccontextmanager
async def opened(folder: Path, place: Place, **limits: object) -> AsyncIterator[StoredArtifacts]:
    """The artifacts of a state that has its content in the registry."""
    settings = Settings(artifacts={"registry": place.location, "repository": REPOSITORY, **limits})
    async with HttpClient() as http:
        artifacts = state_artifacts(settings, State(folder), http)
        try:
            yield artifacts.store
        finally:
            artifacts.close()


async def list_tags(place: Place) -> list[str]:
    async with HttpClient() as http:
        return await HttpRegistry(place.location, http).list_tags(REPOSITORY)


async def test_content_is_sent_in_chunks_and_read_by_range(tmp_path: Path, place: Place) -> None:
    assert len(LARGE) > 2 * CHUNK_BYTES
    async with opened(tmp_path / "a", place) as store:
        artifact = await store.save(LARGE, "text/plain", caller="ann", name="large.txt")
        assert artifact.digest == f"sha256:{sha256(LARGE).hexdigest()}"
        assert await artifact.read() == LARGE
        assert (
            await artifact.read(CHUNK_BYTES - 3, CHUNK_BYTES + 3) == LARGE[CHUNK_BYTES - 3 : CHUNK_BYTES + 3]
        )
        empty = await store.save(b"", caller="ann")
        assert await empty.read() == b""
    # nothing of it is on this machine
    assert not (tmp_path / "a" / "registry").exists()


async def test_another_state_of_the_registry_reads_what_was_saved(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path / "a", place) as ours, opened(tmp_path / "b", place) as theirs:
        artifact = await ours.save(b"content", "text/plain", caller="ann")
        found = await theirs.find(artifact.digest)
        assert (found.size, await found.read()) == (7, b"content")
        with pytest.raises(UnknownArtifactError):
            await theirs.find(f"sha256:{'0' * 64}")


async def test_each_state_has_a_manifest_that_keeps_the_blob(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path / "a", place) as ours, opened(tmp_path / "b", place) as theirs:
        artifact = await ours.save(b"content", caller="ann")
        await theirs.save(b"content", caller="bob")
        assert len(await list_tags(place)) == 2
        await ours.delete(artifact.digest, caller="ann")
        assert len(await list_tags(place)) == 1
        assert await (await theirs.find(artifact.digest)).read() == b"content"


async def test_the_garbage_collection_of_a_registry_keeps_artifacts_and_removes_deleted_ones(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "registry"
    folder.mkdir()
    with docker_registry(folder) as url:
        async with opened(tmp_path / "a", Place("plain", url, url)) as store:
            kept = await store.save(b"kept" * 1000, caller="ann")
            gone = await store.save(b"gone" * 1000, caller="ann")
            await store.delete(gone.digest, caller="ann")
    command = [
        get_program("docker-registry"),
        "garbage-collect",
        "--delete-untagged",
        str(folder / "registry.yml"),
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert f"blob eligible for deletion: {gone.digest}" in output.decode()
    with docker_registry(folder) as url:
        async with opened(tmp_path / "a", Place("plain", url, url)) as store:
            assert await (await store.find(kept.digest)).read() == b"kept" * 1000


async def test_refused_content_leaves_no_manifest(tmp_path: Path, place: Place) -> None:
    limits = {"max_bytes": 6 * 1024 * 1024, "caller_bytes": 1024 * 1024, "quota_bytes": 1024 * 1024}
    async with opened(tmp_path / "a", place, **limits) as store:
        with pytest.raises(QuotaExceededError):
            await store.save(bytes(5 * 1024 * 1024), caller="ann")
        for number in range(3):
            await store.save(str(number).encode() * 300_000, caller="ann")
        with pytest.raises(QuotaExceededError):
            await store.save(b"3" * 300_000, caller="ann")
        tags = await list_tags(place)
        assert len(tags) == len(await store.list_all())


async def test_too_large_content_is_refused_while_it_is_sent(tmp_path: Path, place: Place) -> None:
    async with opened(tmp_path / "a", place, max_bytes=5 * 1024 * 1024) as store:
        with pytest.raises(TooLargeError):
            await store.save(LARGE, caller="ann")
        assert await list_tags(place) == []


async def test_a_registry_that_is_away_is_told(tmp_path: Path) -> None:
    with reserved_port() as port:
        place = Place("plain", "", f"http://127.0.0.1:{port}")
        async with opened(tmp_path, place) as store:
            with pytest.raises(RegistryUnreachableError):
                await store.save(b"content", caller="ann")


async def test_a_folder_is_no_registry_for_artifacts(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match="is a folder"):
        async with opened(tmp_path, Place("layout", "", str(tmp_path / "folder"))):
            pass
