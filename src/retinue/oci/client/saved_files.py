"""Saved files in an OCI registry elsewhere: `retinue.storage.artifacts.blobs.Blobs`.

Content goes to the registry in chunks as it comes. Each state of a mesh has a manifest of its own for a file,
so that the registry keeps the blob until the last of them is deleted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final

import structlog

from retinue.core.errors import ReferenceNotFoundError, RegistryError, TooLargeError, UnknownArtifactError
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec import file_flows
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.manifest import EMPTY_CONFIG, EMPTY_JSON, OCTETS_TYPE, render_manifest
from retinue.oci.codec.reference import Reference, digest_of
from retinue.oci.codec.saved_files import manifest_of, tag_of
from retinue.storage.artifacts.index import StoredArtifact

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""How much is sent or read at a time."""

_log = structlog.get_logger("retinue.artifacts")


class RegistryFiles:
    """The saved files in ``repository`` of a registry; ``own_id`` is the id of this state."""

    def __init__(self, registry: HttpRegistry, repository: str, own_id: Callable[[], str]) -> None:
        self.registry = registry
        self.repository = repository
        self._own_id = own_id

    async def stage(self, pieces: AsyncIterator[bytes], limit_bytes: int) -> StagedUpload:
        staged = StagedUpload(self)
        try:
            waiting = bytearray()
            async for piece in pieces:
                if staged.size_bytes + len(waiting) + len(piece) > limit_bytes:
                    raise TooLargeError("the artifact", limit_bytes, remedy="raise artifacts.max_bytes")
                waiting += piece
                while len(waiting) >= CHUNK_BYTES:
                    await staged.send(bytes(waiting[:CHUNK_BYTES]))
                    del waiting[:CHUNK_BYTES]
            await staged.send(bytes(waiting))
        except BaseException:
            await staged.discard(is_stored=True)  # nothing but the upload
            raise
        return staged

    async def find(self, digest: str) -> StoredArtifact | None:
        size = await self.registry.run(file_flows.find_size(self.repository, digest))
        return None if size is None else StoredArtifact(digest, size, OCTETS_TYPE, None, 0.0)

    async def open(self, digest: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        for at in range(start, end, CHUNK_BYTES):
            last = min(at + CHUNK_BYTES, end)
            flow = file_flows.read_range(self.repository, digest, at, last)
            piece = await self.registry.run(flow)
            if piece is None:
                raise UnknownArtifactError(digest)
            yield piece

    def displace(self, digests: Sequence[str]) -> None:
        """Nothing: `delete` asks the registry."""

    async def delete(self, digests: Sequence[str]) -> None:
        for digest in digests:
            try:
                await self.remove(digest)
            except RegistryError as error:
                _log.warning("the content of an artifact stays in its registry", reason=error.message)

    async def list_digests(self) -> list[str]:
        """None: the registry has the files of other states, too."""
        return []

    async def remove(self, digest: str) -> None:
        """Delete the manifest of this state, if it is there."""
        with suppress(ReferenceNotFoundError):
            await self.registry.delete(self.repository, self.tag_of(digest))

    def tag_of(self, digest: str) -> str:
        """The tag of this state's manifest for a file."""
        return f"{tag_of(digest)}-{self._own_id()}"

    async def push_manifest(self, digest: str, size_bytes: int, media_type: str, name: str | None) -> None:
        """Store the manifest of this state for a file that was uploaded."""
        manifest = manifest_of(digest, size_bytes, media_type, name, state=self._own_id())
        raw = render_manifest(manifest)
        package = Package(manifest, raw, digest_of(raw), {EMPTY_CONFIG.digest: EMPTY_JSON})
        await self.registry.push_package(self.repository, self.tag_of(digest), package)


class StagedUpload:
    """An upload in progress: `retinue.storage.artifacts.blobs.Staged`."""

    def __init__(self, files: RegistryFiles) -> None:
        self.size_bytes = 0
        self._files = files
        self._hasher = sha256()
        self._upload: str | None = None
        self._is_pushed = False

    @property
    def digest(self) -> str:
        """The digest of what was sent."""
        return f"sha256:{self._hasher.hexdigest()}"

    async def send(self, chunk: bytes) -> None:
        """Send the next chunk; an empty one only begins the upload."""
        run = self._files.registry.run
        if self._upload is None:
            self._upload = await run(file_flows.begin_upload(self._files.repository))
        if chunk:
            self._upload = await run(file_flows.send_chunk(self._upload, self.size_bytes, chunk))
            self._hasher.update(chunk)
            self.size_bytes += len(chunk)

    async def prepare(self, media_type: str, name: str | None) -> None:
        assert self._upload is not None
        await self._files.registry.run(file_flows.end_upload(self._upload, self.digest))
        self._upload = None
        await self._files.push_manifest(self.digest, self.size_bytes, media_type, name)
        self._is_pushed = True

    def place(self, media_type: str, name: str | None) -> None:
        """Nothing: `prepare` has stored it."""

    async def is_there(self) -> bool:
        reference = Reference(self._files.repository, tag=self._files.tag_of(self.digest))
        return await self._files.registry.find_digest(reference) is not None

    async def discard(self, *, is_stored: bool) -> None:
        # the error that led here says more
        with suppress(RegistryError):
            if self._upload is not None:
                await self._files.registry.run(file_flows.cancel_upload(self._upload))
            if self._is_pushed and not is_stored:
                await self._files.remove(self.digest)
