"""Artifacts in memory, for tests of skills and workflows."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from hashlib import sha256
from os import PathLike
from pathlib import Path

from retinue.core.artifact_links import check_media_type, clean_name
from retinue.core.errors import UnknownArtifactError
from retinue.mesh.artifacts import Artifact, Content
from retinue.storage.artifacts.blobs import file_name_in, iterate_content
from retinue.storage.artifacts.export import export_artifact
from retinue.storage.artifacts.store import guess_type


class MemoryArtifacts:
    """An `ArtifactStore` that keeps everything, as long as it lives."""

    def __init__(self) -> None:
        self._stored: dict[str, tuple[Artifact, bytes]] = {}

    @property
    def digests(self) -> list[str]:
        """The digests of what is stored, in the order in which it came."""
        return list(self._stored)

    async def save(
        self,
        content: Content,
        media_type: str | None = None,
        *,
        caller: str = "local",
        name: str | None = None,
        run: str | None = None,
    ) -> Artifact:
        file_name = name or file_name_in(content)
        plain = None if file_name is None else clean_name(file_name)
        kind = check_media_type(media_type or guess_type(plain))
        whole = b"".join([piece async for piece in iterate_content(content)])
        artifact = Artifact(f"sha256:{sha256(whole).hexdigest()}", len(whole), kind, plain, self)
        self._stored.setdefault(artifact.digest, (artifact, whole))
        return artifact

    async def find(self, digest: str) -> Artifact:
        return self._get(digest)[0]

    async def open(self, digest: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        content = self._get(digest)[1][start:end]
        if content:
            yield content

    async def export(self, artifact: Artifact, path: str | PathLike[str]) -> Path:
        return await export_artifact(replace(artifact, _store=self), path)

    def _get(self, digest: str) -> tuple[Artifact, bytes]:
        if digest not in self._stored:
            raise UnknownArtifactError(digest)
        return self._stored[digest]
