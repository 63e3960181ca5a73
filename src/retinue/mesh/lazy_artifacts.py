"""A store of artifacts that is made at its first use, because most processes save no file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from os import PathLike
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.mesh.artifacts import Artifact, ArtifactStore, Content

S = TypeVar("S", bound="ArtifactStore")


class LazyArtifacts(Generic[S]):
    """The store that ``make`` makes: an `ArtifactStore`."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self.made: S | None = None
        """The store; None before its first use."""

    @property
    def store(self) -> S:
        """The store, made by the first who needs it."""
        if self.made is None:
            self.made = self._make()
        return self.made

    async def save(
        self,
        content: Content,
        media_type: str | None = None,
        *,
        caller: str,
        name: str | None = None,
        run: str | None = None,
    ) -> Artifact:
        return await self.store.save(content, media_type, caller=caller, name=name, run=run)

    async def find(self, digest: str) -> Artifact:
        return await self.store.find(digest)

    async def open(self, digest: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        async with aclosing(self.store.open(digest, start, end)) as pieces:
            async for piece in pieces:
                yield piece

    async def export(self, artifact: Artifact, path: str | PathLike[str]) -> Path:
        return await self.store.export(artifact, path)
