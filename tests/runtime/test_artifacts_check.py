"""The row of artifacts in ``retinue doctor``: unreadable folders, wrong digests, a quota nearly used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from retinue.mesh.artifacts import Artifact
from retinue.oci.codec.saved_files import SAVED_FILES
from retinue.parts.part import Check
from retinue.runtime.checks.artifacts import check_artifacts
from retinue.runtime.factories import state_artifacts
from retinue.settings import Settings
from retinue.settings_tables import ArtifactTable
from retinue.storage.state import State
from retinue.web.http_client import HttpClient

MIB = 1024 * 1024


class Place:
    """A state folder whose artifacts may take 1 MiB."""

    def __init__(self, root: Path, http: HttpClient) -> None:
        self.state = State(root)
        self._settings = Settings(artifacts=ArtifactTable(quota_bytes=MIB))
        self._http = http

    async def save(self, content: bytes) -> Artifact:
        artifacts = state_artifacts(self._settings, self.state, self._http)
        try:
            return await artifacts.save(content, caller="ann")
        finally:
            artifacts.close()

    def find_file(self, artifact: Artifact) -> Path:
        (path,) = self.state.registry.rglob(artifact.digest.removeprefix("sha256:"))
        return path

    async def check(self) -> Check:
        return await check_artifacts(self._settings, self.state, self._http)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with HttpClient() as http:
        yield Place(tmp_path / "state", http)


async def test_artifacts_that_have_their_digests_are_well(place: Place) -> None:
    assert (await place.check()).found == "none saved"
    assert not place.state.artifacts.exists(), "a check creates nothing"
    await place.save(b"one")
    check = await place.check()
    assert (check.status, check.found) == ("ok", "1 take 0% of artifacts.quota_bytes; 1 verified")


async def test_content_that_changed_or_is_missing_is_named_with_its_digest(place: Place) -> None:
    changed, missing = await place.save(b"one"), await place.save(b"two")
    place.find_file(changed).write_bytes(b"ONE")
    check = await place.check()
    assert check.status == "fail"
    assert check.found == f"the content of {changed.digest} does not match its digest"
    place.find_file(missing).unlink()
    check = await place.check()
    assert check.found == f"the content of {missing.digest} is missing (and 1 more)"
    assert "save the file again" in check.remedy


async def test_a_quota_that_is_nearly_used_is_a_warning(place: Place) -> None:
    await place.save(bytes(MIB * 92 // 100))
    check = await place.check()
    assert (check.status, check.found) == ("warn", "1 take 92% of artifacts.quota_bytes")


async def test_a_folder_or_an_index_that_cannot_be_read_fails(place: Place) -> None:
    await place.save(b"one")
    folder = place.state.registry / SAVED_FILES
    folder.rename(folder.with_name("moved"))
    folder.write_bytes(b"")
    check = await place.check()
    assert (check.status, "cannot be read" in check.found) == ("fail", True)
    folder.unlink()
    place.state.artifacts.write_bytes(b"no database" * 1000)
    check = await place.check()
    assert (check.status, "is damaged" in check.found) == ("fail", True)
