"""Saved files in the image layouts of a state's registry: `retinue.storage.artifacts.blobs.Blobs`.

Content arrives in ``.uploads/retinue-artifacts``, in a file that its writer holds a lock on, so that what a
killed process left is removed by the next one. It is linked into its layout when it is complete.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import stat
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from retinue.core.errors import BusyError, StateDamagedError, TooLargeError, UnknownArtifactError
from retinue.oci.codec.manifest import (
    EMPTY_CONFIG,
    EMPTY_JSON,
    MANIFEST_TYPE,
    parse_manifest,
    render_manifest,
)
from retinue.oci.codec.reference import digest_of
from retinue.oci.codec.saved_files import SAVED_FILES, manifest_of, shard_of, tag_of
from retinue.oci.layout.image_layout import ImageLayout, StoredPackage
from retinue.oci.layout.uploads import UPLOADS_FOLDER
from retinue.storage.artifacts.blobs import PIECE_BYTES, read_range
from retinue.storage.artifacts.index import StoredArtifact
from retinue.storage.files import file_mode, make_folder, storage_errors

MAX_STAGED = 64
"""How many files may arrive at once, so that clients cannot fill the disk with unfinished ones."""

_LOCK_TIMEOUT_S = 10.0
_NEW_S = 60.0
"""An empty file of this age belongs to no process that has just created it."""


class LayoutFiles:
    """The saved files below ``root``, the folder of a state's registry."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._staging = root / UPLOADS_FOLDER / SAVED_FILES
        self._staged = 0

    async def stage(self, pieces: AsyncIterator[bytes], limit_bytes: int) -> StagedFile:
        if self._staged >= MAX_STAGED:
            raise BusyError(f"{self._staged} artifacts are being saved", 1.0)
        self._staged += 1
        try:
            staged = await asyncio.to_thread(self._begin)
            try:
                async for piece in pieces:
                    if staged.size_bytes + len(piece) > limit_bytes:
                        raise TooLargeError("the artifact", limit_bytes, remedy="raise artifacts.max_bytes")
                    if piece:
                        await asyncio.to_thread(staged.append, piece)
                await asyncio.to_thread(staged.complete)
            except BaseException:
                staged.remove()
                raise
        finally:
            self._staged -= 1
        return staged

    async def find(self, digest: str) -> StoredArtifact | None:
        return await asyncio.to_thread(self._find, digest)

    async def open(self, digest: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        file = await asyncio.to_thread(self._open, digest)
        async with aclosing(read_range(file, start, end)) as pieces:
            async for piece in pieces:
                yield piece

    def displace(self, digests: Sequence[str]) -> None:
        by_shard: defaultdict[str, list[str]] = defaultdict(list)
        for digest in digests:
            by_shard[shard_of(digest)].append(tag_of(digest))
        for shard, tags in by_shard.items():
            self.layout(shard).remove_all(tags)

    async def delete(self, digests: Sequence[str]) -> None:
        """Nothing: `displace` has removed the files."""

    async def list_digests(self) -> list[str]:
        return await asyncio.to_thread(self._list_digests)

    def layout(self, shard: str) -> ImageLayout:
        """The layout of one repository of saved files."""
        return ImageLayout(self._root / shard, shard, lock_timeout_s=_LOCK_TIMEOUT_S)

    # in threads

    def _begin(self) -> StagedFile:
        with storage_errors(self._staging):
            make_folder(self._staging)
            self._sweep()
            path = self._staging / f"{secrets.token_hex(16)}.part"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, file_mode(self._staging))
            file = os.fdopen(descriptor, "r+b", buffering=0)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return StagedFile(self, path, file)

    def _sweep(self) -> None:
        """Remove the files of processes that are gone: nobody holds their lock."""
        for path in self._staging.glob("*.part"):
            with suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # a file that was just created may not be locked yet
                if file.seek(0, os.SEEK_END) or _is_old(file):
                    path.unlink()

    def _find(self, digest: str) -> StoredArtifact | None:
        stored = self.layout(shard_of(digest)).find_manifest(tag_of(digest))
        if stored is None:
            return None
        manifest = parse_manifest(stored.content, where=digest)
        layer = next((layer for layer in manifest.layers if layer.digest == digest), None)
        if layer is None:
            return None
        return StoredArtifact(digest, layer.size_bytes, layer.media_type, layer.title, 0.0)

    def _open(self, digest: str) -> BinaryIO:
        path = self.layout(shard_of(digest)).path_of(digest)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise UnknownArtifactError(digest) from None
        except OSError as error:
            raise self._damaged(path, error.strerror or str(error)) from error
        file = os.fdopen(descriptor, "rb")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            file.close()
            raise self._damaged(path, "it is not a file")
        return file

    def _list_digests(self) -> list[str]:
        digests: list[str] = []
        with suppress(FileNotFoundError):
            for folder in sorted((self._root / SAVED_FILES).iterdir()):
                index = self.layout(f"{SAVED_FILES}/{folder.name}").read_index()
                digests += [f"sha256:{tag}" for tag in ([] if index is None else index.tags)]
        return digests

    @staticmethod
    def _damaged(path: Path, problem: str) -> StateDamagedError:
        return StateDamagedError(str(path), problem, remedy="delete the artifact and save it again")


class StagedFile:
    """A file that arrives: `retinue.storage.artifacts.blobs.Staged`."""

    def __init__(self, files: LayoutFiles, path: Path, file: Any) -> None:
        self.digest = ""
        self.size_bytes = 0
        self._files = files
        self._path = path
        self._file = file
        self._hasher = sha256()

    def append(self, piece: bytes) -> None:
        """Write a piece. Raises StorageFullError."""
        with storage_errors(self._path):
            view = memoryview(piece)
            while view:
                view = view[self._file.write(view[:PIECE_BYTES]) :]
        self._hasher.update(piece)
        self.size_bytes += len(piece)

    def complete(self) -> None:
        """All of it has arrived: write it to the disk. Raises StorageFullError."""
        with storage_errors(self._path):
            os.fsync(self._file.fileno())
        self.digest = f"sha256:{self._hasher.hexdigest()}"

    async def prepare(self, media_type: str, name: str | None) -> None:
        """Nothing: `place` stores it."""

    def place(self, media_type: str, name: str | None) -> None:
        shard = shard_of(self.digest)
        layout = self._files.layout(shard)
        if (
            layout.find_manifest(tag_of(self.digest)) is not None
            and layout.find_file(self.digest) is not None
        ):
            return
        manifest = manifest_of(self.digest, self.size_bytes, media_type, name)
        raw = render_manifest(manifest)
        blobs: dict[str, bytes | Path] = {EMPTY_CONFIG.digest: EMPTY_JSON, self.digest: self._path}
        layout.write(
            tag_of(self.digest), StoredPackage(manifest, raw, digest_of(raw), MANIFEST_TYPE, blobs), None
        )

    async def is_there(self) -> bool:
        return True  # it was placed in the transaction of the index

    async def discard(self, *, is_stored: bool) -> None:
        await asyncio.to_thread(self.remove)

    def remove(self) -> None:
        """Remove the file that arrived; its content stays where it was placed."""
        self._path.unlink(missing_ok=True)
        self._file.close()


def _is_old(file: BinaryIO) -> bool:
    return time.time() - os.fstat(file.fileno()).st_mtime > _NEW_S
