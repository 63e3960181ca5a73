"""Uploads to a registry in a folder: blobs without a manifest yet.

An upload in progress is ``<root>/.uploads/<repository with % for />/<id>.part``; a complete and verified
blob is ``…/<64 hex>``. The leading dot keeps the folder out of the catalog, because it is not a valid
repository name. Abandoned uploads are removed after an hour, which the monotonic clock measures: an upload in
progress outlives a clock that is set.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from retinue.core.errors import BusyError, DigestMismatchError, ReferenceNotFoundError, TooLargeError
from retinue.oci.codec.artifacts import MAX_BLOB_BYTES
from retinue.storage.files import make_folder, storage_errors, touch

UPLOADS_FOLDER = ".uploads"
KEPT_S = 3600.0
_KEPT_OF_OTHERS_S = 24 * KEPT_S
"""Age on the clock of the machine at which a file is removed by a process that has just found it."""

MAX_UPLOADS = 256
"""Maximum number of uploads in progress, so that clients cannot fill the disk with empty ones."""

_PART = ".part"
_ID = re.compile(r"[0-9a-f]{32}")
_READ_BYTES = 1024 * 1024


class Uploads:
    """The uploads of the registry below ``root``, shared by the processes that serve it.

    ``clock`` is compared with the times of files, ``monotonic`` measures how long they have been unchanged.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._folder = root / UPLOADS_FOLDER
        self._busy: set[str] = set()
        self._found: dict[Path, tuple[float, float]] = {}
        """When each file was last written to, and since when this process has seen it like that."""

    async def begin(self, repository: str) -> str:
        """Begin an upload; returns its id. Raises BusyError, StorageFullError."""
        return await asyncio.to_thread(self._begin, repository)

    def size_bytes(self, repository: str, upload: str) -> int:
        """Bytes received so far. Raises ReferenceNotFoundError."""
        path = self._part(repository, upload)
        try:
            return path.stat().st_size
        except FileNotFoundError:  # a thread has just completed or refused it
            raise _unknown(repository, upload) from None

    async def append(self, repository: str, upload: str, chunks: AsyncIterator[bytes]) -> int:
        """Append chunks; returns the new size in bytes. Bytes received before a failure are kept.

        Raises ReferenceNotFoundError, also when the upload is cancelled meanwhile, TooLargeError, BusyError
        when another request is appending or completing, StorageFullError.
        """
        path = self._part(repository, upload)
        with self._writing(upload):
            with storage_errors(path), path.open("ab") as file:
                size = file.tell()
                async for chunk in chunks:
                    size += len(chunk)
                    if size > MAX_BLOB_BYTES:
                        raise TooLargeError("the blob", MAX_BLOB_BYTES)
                    await asyncio.to_thread(file.write, chunk)
                is_cancelled = os.fstat(file.fileno()).st_nlink == 0
            if is_cancelled:
                raise _unknown(repository, upload)
            return size

    async def finish(self, repository: str, upload: str, digest: str) -> None:
        """Complete the upload as a blob.

        Raises DigestMismatchError and removes it when the digest does not match; ReferenceNotFoundError,
        also when it is cancelled meanwhile; BusyError when another request is appending or completing.
        """
        path = self._part(repository, upload)
        # no request may append between the check of the digest and the new name
        with self._writing(upload):
            try:
                await asyncio.to_thread(self._finish, path, digest)
            except FileNotFoundError:
                raise _unknown(repository, upload) from None

    def cancel(self, repository: str, upload: str) -> None:
        """Delete an upload in progress. Raises ReferenceNotFoundError."""
        self._part(repository, upload).unlink(missing_ok=True)

    def find(self, repository: str, digest: str) -> Path | None:
        """The file of a complete blob that is not in the layout yet; None when absent."""
        path = self._blob(repository, digest)
        return path if path.is_file() else None

    def adopt(self, repository: str, digest: str, content: Path) -> bool:
        """Link a blob of another repository; False when it has been removed meanwhile."""
        path = self._blob(repository, digest)
        with storage_errors(path):
            make_folder(path.parent)
            try:
                os.link(content, path)
                os.utime(path)
            except FileExistsError:
                return True
            except FileNotFoundError:
                return False
        return True

    def drop(self, repository: str, digest: str) -> None:
        """Remove a blob that is now in the layout."""
        self._blob(repository, digest).unlink(missing_ok=True)
        with suppress(OSError):  # not empty: it contains other uploads
            self._blob(repository, digest).parent.rmdir()

    def _begin(self, repository: str) -> str:
        in_progress = self._sweep()
        if in_progress >= MAX_UPLOADS:
            raise BusyError(f"{in_progress} uploads are in progress", 60.0)
        upload = secrets.token_hex(16)
        path = self._home(repository) / f"{upload}{_PART}"
        with storage_errors(path):
            while True:
                make_folder(path.parent)
                try:
                    touch(path, exist_ok=False)
                except FileNotFoundError:
                    continue  # `drop` has just removed the empty folder
                return upload

    def _finish(self, path: Path, digest: str) -> None:
        hasher = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                hasher.update(piece)
        if f"sha256:{hasher.hexdigest()}" != digest:
            path.unlink(missing_ok=True)
            raise DigestMismatchError("the upload", digest, f"sha256:{hasher.hexdigest()}")
        try:
            path.replace(path.with_name(digest.removeprefix("sha256:")))
        except FileNotFoundError:  # cancelled meanwhile
            raise
        except OSError:
            with storage_errors(path):
                raise

    def _sweep(self) -> int:
        """Remove old files; returns the number of uploads in progress."""
        uploads: dict[Path, tuple[float, float]] = {}
        in_progress, now = 0, self._monotonic()
        for home in _list_folder(self._folder):
            for path in _list_folder(home):
                with suppress(OSError):  # another process may have removed it
                    written_at = path.stat().st_mtime
                    known = self._found.get(path)
                    since = known[1] if known is not None and known[0] == written_at else now
                    if now - since > KEPT_S or self._clock() - written_at > _KEPT_OF_OTHERS_S:
                        path.unlink()
                        continue
                    uploads[path] = written_at, since
                    in_progress += path.suffix == _PART
        self._found = uploads
        return in_progress

    @contextmanager
    def _writing(self, upload: str) -> Iterator[None]:
        """One writer at a time. Raises BusyError."""
        if upload in self._busy:
            raise BusyError(f"another request is writing to upload {upload}", 1.0)
        self._busy.add(upload)
        try:
            yield
        finally:
            self._busy.discard(upload)

    def _part(self, repository: str, upload: str) -> Path:
        path = self._home(repository) / f"{upload}{_PART}"
        if _ID.fullmatch(upload) is None or not path.is_file():
            raise _unknown(repository, upload)
        return path

    def _blob(self, repository: str, digest: str) -> Path:
        return self._home(repository) / digest.removeprefix("sha256:")

    def _home(self, repository: str) -> Path:
        return self._folder / repository.replace("/", "%")


def _unknown(repository: str, upload: str) -> ReferenceNotFoundError:
    return ReferenceNotFoundError(repository, f"upload {upload[:64]}")


def _list_folder(folder: Path) -> list[Path]:
    """List a folder; empty when it does not exist."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
