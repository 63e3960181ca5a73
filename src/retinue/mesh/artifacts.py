"""Artifacts as programs and skills use them, and the port of the stores that hold them.

An `Artifact` is a link with the store that it is read from. It is a type of JSON Schema (`FORMAT`), so a
parameter of a skill may be one; as JSON it is the link alone.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from os import PathLike
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from retinue.core.artifact_links import (
    LINK_SCHEMA,
    TEXT_PREFIX,
    UNKNOWN_TYPE,
    read_link,
    render_link,
)
from retinue.core.errors import DigestMismatchError, InvalidRequestError, TooLargeError, UnknownArtifactError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

Content = bytes | str | PathLike[str] | AsyncIterator[bytes]
"""What is saved: bytes, the path of a file, or bytes as they come. A ``str`` is a path."""

MAX_READ_BYTES = 256 * 1024 * 1024
"""`Artifact.read` refuses more, which belongs into a file or is read in pieces."""

STORE_KEY = "retinue.artifacts"
"""The key of the store in the context of a pydantic validation."""

_BUFFER_BYTES = 1024 * 1024


class ArtifactStore(Protocol):
    """Holds artifacts by their digest: the store of a state folder, and that of a hub elsewhere.

    Every method may raise StateError, RegistryError and the errors of a connection.
    """

    async def save(
        self,
        content: Content,
        media_type: str | None = None,
        *,
        caller: str,
        name: str | None = None,
        run: str | None = None,
    ) -> Artifact:
        """Store content, in pieces as they come; returns the link once it is stored.

        Without ``media_type`` it is that of the file's name. ``caller`` is who saves; its quota counts.
        ``run`` is the run, or the chain of calls, that the artifact is part of: the deletion of that run ends
        the hold of this save. Raises TooLargeError, QuotaExceededError and StorageFullError; then nothing is
        stored.
        """
        ...

    async def find(self, digest: str) -> Artifact:
        """The artifact with its size, media type and name. Raises UnknownArtifactError."""
        ...

    def open(self, digest: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """The bytes from ``start`` up to, not including, ``end``, in pieces.

        The pieces end with the content. Raises UnknownArtifactError.
        """
        ...

    async def export(self, artifact: Artifact, path: str | PathLike[str]) -> Path:
        """Write an artifact to a file, or into a folder under its name; returns the file's path.

        The file appears when it is complete and its digest is right; a file in a folder is never replaced.
        """
        ...


class _LinkSerializer:
    """The serializer of an artifact for pydantic, made at its first use."""

    def __get__(self, artifact: object, owner: type | None = None) -> Any:
        return _link_serializer()


@cache
def _link_serializer() -> Any:
    from pydantic_core import SchemaSerializer, core_schema

    serialization = core_schema.plain_serializer_function_ser_schema(Artifact.to_json)
    return SchemaSerializer(core_schema.any_schema(serialization=serialization))


@dataclass(frozen=True, slots=True)
class Artifact:
    """A stored file: a link with its digest, its ``size`` in bytes (None = unknown), media type and name.

    Skills return it, and take it as a parameter of this type. ``read``, ``save`` and ``open`` get the content
    from the hub or the state folder in pieces; an artifact made of a link alone has no content to read.
    """

    # the fields have the names of the link, so that JSON made of an artifact is its link
    artifact: str
    size: int | None = None
    media_type: str = UNKNOWN_TYPE
    name: str | None = None
    _store: ArtifactStore | None = field(default=None, repr=False, compare=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False, compare=False)
    __pydantic_serializer__ = _LinkSerializer()

    @classmethod
    def of(cls, link: Any, store: ArtifactStore | None = None) -> Artifact:
        """The artifact of a link in any of its forms. Raises InvalidRequestError."""
        if isinstance(link, Artifact):
            return link if store is None else replace(link, _store=store)
        digest, size, media_type, name = read_link(link)
        return cls(digest, size, media_type or UNKNOWN_TYPE, name, store)

    @property
    def digest(self) -> str:
        """The digest of the content: ``sha256:`` and 64 hex digits."""
        return self.artifact

    @property
    def link(self) -> str:
        """The link as text, for people and models."""
        return TEXT_PREFIX + self.digest

    def to_json(self) -> dict[str, Any]:
        """The link as a JSON object."""
        return render_link(self.digest, self.size, self.media_type, self.name)

    async def details(self) -> Artifact:
        """The artifact as its store knows it, for a link that names the digest alone."""
        return await self._read_from().find(self.digest)

    async def read(self, start: int = 0, end: int | None = None) -> bytes:
        """The content, or its bytes from ``start`` up to ``end``. Raises UnknownArtifactError.

        Raises TooLargeError for more than 256 MiB, and DigestMismatchError for content that was changed.
        """
        content = bytearray()
        async with self.open(start, end) as pieces:
            async for piece in pieces:
                content += piece
                if len(content) > MAX_READ_BYTES:
                    remedy = "save it to a file, or read it in pieces: open()"
                    raise TooLargeError("the artifact", MAX_READ_BYTES, remedy=remedy)
        return bytes(content)

    def open(self, start: int = 0, end: int | None = None) -> ArtifactPieces:
        """The content in pieces: ``async with artifact.open() as pieces: async for piece in pieces: …``."""
        pieces = self._read_from().open(self.digest, start, end)
        return ArtifactPieces(verified(pieces, self.digest) if start == 0 and end is None else pieces)

    async def save(self, path: str | PathLike[str]) -> Path:
        """Write the content to a file, or into a folder under the name of the artifact; returns the path.

        A file of the folder is never replaced.
        """
        return await self._read_from().export(self, path)

    def sync(self) -> SyncArtifact:
        """The artifact for a function that runs in a thread, such as a synchronous skill.

        Raises InvalidRequestError in a coroutine, and for an artifact that is no argument of a skill.
        """
        loop = self._loop
        if loop is None or _is_in_loop():
            raise InvalidRequestError(
                "sync() is for the arguments of a skill that is no coroutine function",
                remedy="await the methods of the artifact, or use connect_sync",
            )
        return SyncArtifact(
            self, lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result()
        )

    def _read_from(self) -> ArtifactStore:
        if self._store is None:
            raise UnknownArtifactError(
                self.digest,
                remedy="nothing tells where its content is: in a program write mesh.artifact(link), "
                "in a skill declare the parameter as Artifact",
            )
        return self._store

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        from pydantic_core import PydanticCustomError, core_schema

        def validate(value: Any, info: Any) -> Artifact:
            store = info.context.get(STORE_KEY) if isinstance(info.context, dict) else None
            try:
                artifact = cls.of(value, store)
                return replace(artifact, _loop=asyncio.get_running_loop()) if _is_in_loop() else artifact
            except InvalidRequestError as error:
                raise PydanticCustomError("artifact", "{problem}", {"problem": error.message}) from None

        return core_schema.with_info_plain_validator_function(
            validate,
            serialization=core_schema.plain_serializer_function_ser_schema(cls.to_json),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(LINK_SCHEMA)


class ArtifactPieces:
    """The pieces of an artifact, as an asynchronous context manager and iterator."""

    def __init__(self, pieces: AsyncGenerator[bytes, None]) -> None:
        self._pieces = pieces

    async def __aenter__(self) -> AsyncGenerator[bytes, None]:
        return self._pieces

    async def __aexit__(self, *exc_info: object) -> None:
        await self._pieces.aclose()


class SyncArtifact:
    """An artifact whose methods wait for their result, for threads and programs without an event loop."""

    def __init__(self, artifact: Artifact, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._artifact = artifact
        self._run = run

    def __repr__(self) -> str:
        return f"Sync{self._artifact!r}"

    @property
    def digest(self) -> str:
        """The digest of the content: ``sha256:`` and 64 hex digits."""
        return self._artifact.digest

    @property
    def size(self) -> int | None:
        """The size of the content in bytes; None if the link does not tell it."""
        return self._artifact.size

    @property
    def media_type(self) -> str:
        """The media type that the saver named."""
        return self._artifact.media_type

    @property
    def name(self) -> str | None:
        """The file name that the saver gave."""
        return self._artifact.name

    @property
    def link(self) -> str:
        """The link as text."""
        return self._artifact.link

    @property
    def artifact(self) -> Artifact:
        """The artifact as a value, for arguments and results."""
        return self._artifact

    def to_json(self) -> dict[str, Any]:
        """The link as a JSON object."""
        return self._artifact.to_json()

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """As `Artifact.read`."""
        return cast(bytes, self._run(self._artifact.read(start, end)))

    def save(self, path: str | PathLike[str]) -> Path:
        """As `Artifact.save`."""
        return cast("Path", self._run(self._artifact.save(path)))

    def open(self) -> BinaryIO:
        """The content as a file to read, which loads pieces of it as they are read; it can seek.

        It does not verify the digest, because it need not read all of the content.
        """
        size = self._artifact.size
        if size is None:
            size = self._run(self._artifact.details()).size
        return cast(BinaryIO, io.BufferedReader(_Pieces(self, size or 0), _BUFFER_BYTES))


class _Pieces(io.RawIOBase):
    """The content of an artifact as a raw file, of which each read is a request."""

    def __init__(self, artifact: SyncArtifact, size: int) -> None:
        self._artifact = artifact
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative position {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        piece = self._artifact.read(self._at, end)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


async def verified(pieces: AsyncGenerator[bytes, None], digest: str) -> AsyncGenerator[bytes, None]:
    """The pieces of a whole content; raises DigestMismatchError at the end for another digest."""
    hasher = sha256()
    async with aclosing(pieces):
        async for piece in pieces:
            hasher.update(piece)
            yield piece
    digest_read = f"sha256:{hasher.hexdigest()}"
    if digest_read != digest:
        raise DigestMismatchError("the artifact", digest, digest_read)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def with_links(value: Any) -> Any:
    """A value with the links of artifacts in place of them, in lists and mappings too."""
    if isinstance(value, Artifact | SyncArtifact):
        return value.to_json()
    if isinstance(value, Mapping):
        return (
            {key: with_links(part) for key, part in value.items()} if _has_artifact(value.values()) else value
        )
    if isinstance(value, list | tuple):
        return [with_links(part) for part in value] if _has_artifact(value) else value
    return value


def _has_artifact(values: Iterable[Any], levels: int = 2) -> bool:
    """Whether there is an artifact among the values, or a few levels below them."""
    for value in values:
        if isinstance(value, Artifact | SyncArtifact):
            return True
        if levels and isinstance(value, Mapping | list | tuple):
            parts = value.values() if isinstance(value, Mapping) else value
            if _has_artifact(parts, levels - 1):
                return True
    return False
