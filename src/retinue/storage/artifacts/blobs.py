"""The port of the places that hold the content of artifacts, and reading what is saved in pieces."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Protocol

from retinue.core.errors import InvalidRequestError
from retinue.mesh.artifacts import Content
from retinue.storage.artifacts.index import StoredArtifact

PIECE_BYTES = 1024 * 1024
"""How much is read, written and hashed at a time."""


class Staged(Protocol):
    """Content that has arrived whole and is not stored yet; one of `prepare` and `place` stores it."""

    @property
    def digest(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    async def prepare(self, media_type: str, name: str | None) -> None:
        """Store it where that takes requests; nothing for a folder."""
        ...

    def place(self, media_type: str, name: str | None) -> None:
        """Store it where that takes no request, in the transaction of the index; it blocks on disk I/O."""
        ...

    async def is_there(self) -> bool:
        """Whether the stored content is still there, which another process may have deleted meanwhile."""
        ...

    async def discard(self, *, is_stored: bool) -> None:
        """Remove what is left of it; without ``is_stored`` also what `prepare` stored."""
        ...


class Blobs(Protocol):
    """Holds content by digest: in image layouts of the state's registry, or in an OCI registry."""

    async def stage(self, pieces: AsyncIterator[bytes], limit_bytes: int) -> Staged:
        """Take content as it comes, at most ``limit_bytes``.

        Raises TooLargeError, StorageFullError, BusyError, and RegistryError; then nothing is left of it.
        """
        ...

    async def find(self, digest: str) -> StoredArtifact | None:
        """Size, media type and name of content by its digest; None if it is not there."""
        ...

    def open(self, digest: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The bytes from ``start`` up to ``end``, in pieces. Raises UnknownArtifactError."""
        ...

    def displace(self, digests: Sequence[str]) -> None:
        """Remove content where that takes no request, in the transaction of the index."""
        ...

    async def delete(self, digests: Sequence[str]) -> None:
        """Remove content where that takes requests; nothing for a folder."""
        ...

    async def list_digests(self) -> list[str]:
        """The digests of all content of this state, which may take no request; a registry lists none."""
        ...


async def iterate_content(content: Content) -> AsyncGenerator[bytes, None]:
    """Content in pieces. Raises InvalidRequestError for a path that is no file."""
    if isinstance(content, bytes | bytearray | memoryview):
        view = memoryview(content)
        for at in range(0, len(view), PIECE_BYTES):
            yield bytes(view[at : at + PIECE_BYTES])
    elif isinstance(content, str | PathLike):
        file = await asyncio.to_thread(_open_file, Path(content))
        try:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece
        finally:
            await asyncio.to_thread(file.close)
    elif isinstance(content, AsyncIterable):
        async for piece in content:
            yield piece
    else:
        raise InvalidRequestError(
            f"the content is a {type(content).__name__}",
            remedy="give bytes, the path of a file, or an asynchronous iterator of bytes",
        )


def measure(content: Content) -> int | None:
    """The size of content in bytes; None if it comes in pieces, or cannot be read. It blocks on disk I/O."""
    if isinstance(content, bytes | bytearray | memoryview):
        return len(content)
    if isinstance(content, str | PathLike):
        with suppress(OSError):
            return Path(content).stat().st_size
    return None


def file_name_in(content: Content) -> str | None:
    """The name of the file that is saved; None for bytes."""
    return Path(content).name if isinstance(content, str | PathLike) else None


async def read_range(file: BinaryIO, start: int, end: int) -> AsyncGenerator[bytes, None]:
    """The bytes of an open file from ``start`` up to ``end``, in pieces; it is closed at the end."""
    try:
        await asyncio.to_thread(file.seek, start)
        left = end - start
        while left > 0 and (piece := await asyncio.to_thread(file.read, min(left, PIECE_BYTES))):
            left -= len(piece)
            yield piece
    finally:
        file.close()


def _open_file(path: Path) -> BinaryIO:
    try:
        # a named pipe would block until somebody writes into it
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    except OSError as error:
        raise InvalidRequestError(
            f"{path} cannot be read: {error.strerror}", remedy="give the path of a file"
        ) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InvalidRequestError(f"{path} is not a file", remedy="give the path of a file")
    return file
