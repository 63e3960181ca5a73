"""The artifacts of a program's hub, whose client is loaded with the first file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # most programs use no file
    from retinue.artifacts.client import ArtifactServer, HubArtifacts
    from retinue.mesh.artifacts import Artifact, Content


class LazyArtifacts:
    """The artifacts of the hub that ``choose`` names: an `ArtifactStore`."""

    def __init__(self, choose: Callable[[], Awaitable[ArtifactServer]]) -> None:
        self._choose = choose
        self._hub: HubArtifacts | None = None

    @property
    def hub(self) -> HubArtifacts:
        """The client of the hub."""
        if self._hub is None:
            from retinue.artifacts.client import HubArtifacts

            self._hub = HubArtifacts(self._choose)
        return self._hub

    async def save(
        self,
        content: Content,
        media_type: str | None = None,
        *,
        caller: str = "",
        name: str | None = None,
        run: str | None = None,
    ) -> Artifact:
        return await self.hub.save(content, media_type, caller=caller, name=name, run=run)

    async def find(self, digest: str) -> Artifact:
        return await self.hub.find(digest)

    async def open(self, digest: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        async with aclosing(self.hub.open(digest, start, end)) as pieces:
            async for piece in pieces:
                yield piece

    async def export(self, artifact: Artifact, path: str | PathLike[str]) -> Path:
        return await self.hub.export(artifact, path)
