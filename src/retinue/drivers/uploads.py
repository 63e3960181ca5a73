"""Blobs on their way into a registry in a folder: what came through the door and no manifest names yet.

``<root>/.uploads/<repository, / as %>/<id>.part`` while bytes arrive, ``…/<64 hex>`` once they are whole
and verified. The leading dot keeps it out of the catalog: no repository can have such a name. What
nobody came back for is removed an hour later.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from retinue.core.errors import BusyError, DigestMismatchError, ReferenceNotFoundError, TooLargeError
from retinue.drivers.files import storage_errors
from retinue.protocols.oci.artifacts import MAX_BLOB_BYTES

UPLOADS_FOLDER = ".uploads"
KEPT_S = 3600.0
MAX_UPLOADS = 256
"""Uploads under way at the same time, so that the folder cannot be filled by beginning ever new ones."""

_PART = ".part"
_ID = re.compile(r"[0-9a-f]{32}")
_READ_BYTES = 1024 * 1024


class Uploads:
    """The uploads of the registry below ``root``, shared by the processes that serve it."""

    def __init__(self, root: Path) -> None:
        self._folder = root / UPLOADS_FOLDER
        self._busy: set[str] = set()

    async def begin(self, repository: str) -> str:
        """The id of a new, empty upload. Raises BusyError, StorageFullError."""
        return await asyncio.to_thread(self._begin, repository)

    def size_bytes(self, repository: str, upload: str) -> int:
        """How much of it is here. Raises ReferenceNotFoundError."""
        return self._part(repository, upload).stat().st_size

    async def append(self, repository: str, upload: str, chunks: AsyncIterator[bytes]) -> int:
        """Add what arrives; gives the new size in bytes. What arrived before a failure stays.

        Raises ReferenceNotFoundError, TooLargeError, BusyError when another request is adding to it,
        StorageFullError.
        """
        path = self._part(repository, upload)
        if upload in self._busy:
            raise BusyError(f"upload {upload} is being written to", 1.0)
        self._busy.add(upload)
        try:
            with storage_errors(path), path.open("ab") as file:
                size = file.tell()
                async for chunk in chunks:
                    size += len(chunk)
                    if size > MAX_BLOB_BYTES:
                        raise TooLargeError("the blob", MAX_BLOB_BYTES)
                    await asyncio.to_thread(file.write, chunk)
            return size
        finally:
            self._busy.discard(upload)

    async def finish(self, repository: str, upload: str, digest: str) -> None:
        """Take it as the blob of this digest; else it is gone. Raises DigestMismatchError."""
        path = self._part(repository, upload)
        await asyncio.to_thread(self._finish, path, digest)

    def cancel(self, repository: str, upload: str) -> None:
        """Throw it away. Raises ReferenceNotFoundError."""
        self._part(repository, upload).unlink(missing_ok=True)

    def find(self, repository: str, digest: str) -> Path | None:
        """The file of a blob that is whole and not in the layout yet."""
        path = self._blob(repository, digest)
        return path if path.is_file() else None

    def adopt(self, repository: str, digest: str, content: Path) -> bool:
        """Take a blob of another repository, without copying; False when it has gone meanwhile."""
        path = self._blob(repository, digest)
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(content, path)
                os.utime(path)
            except FileExistsError:
                return True
            except FileNotFoundError:
                return False
        return True

    def drop(self, repository: str, digest: str) -> None:
        """Forget a blob that is in the layout now."""
        self._blob(repository, digest).unlink(missing_ok=True)
        with suppress(OSError):  # other uploads keep the folder alive
            self._blob(repository, digest).parent.rmdir()

    def _begin(self, repository: str) -> str:
        under_way = self._sweep()
        if under_way >= MAX_UPLOADS:
            raise BusyError(f"{under_way} uploads are under way", 60.0)
        upload = secrets.token_hex(16)
        path = self._home(repository) / f"{upload}{_PART}"
        with storage_errors(path):
            while True:
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    path.touch(exist_ok=False)
                except FileNotFoundError:
                    continue  # ``drop`` has just removed the empty folder
                return upload

    def _finish(self, path: Path, digest: str) -> None:
        found = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                found.update(piece)
        if f"sha256:{found.hexdigest()}" != digest:
            path.unlink(missing_ok=True)
            raise DigestMismatchError("the upload", digest, f"sha256:{found.hexdigest()}")
        with storage_errors(path):
            path.replace(path.with_name(digest.removeprefix("sha256:")))

    def _sweep(self) -> int:
        """Remove what is too old; gives the number of uploads under way."""
        oldest, under_way = time.time() - KEPT_S, 0
        for home in _list(self._folder):
            for path in _list(home):
                with suppress(OSError):  # whatever another process removed first is gone as well
                    if path.stat().st_mtime < oldest:
                        path.unlink()
                    elif path.suffix == _PART:
                        under_way += 1
        return under_way

    def _part(self, repository: str, upload: str) -> Path:
        path = self._home(repository) / f"{upload}{_PART}"
        if _ID.fullmatch(upload) is None or not path.is_file():
            raise ReferenceNotFoundError(repository, f"upload {upload[:64]}")
        return path

    def _blob(self, repository: str, digest: str) -> Path:
        return self._home(repository) / digest.removeprefix("sha256:")

    def _home(self, repository: str) -> Path:
        return self._folder / repository.replace("/", "%")


def _list(folder: Path) -> list[Path]:
    """What is in a folder; nothing when it has just gone."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
