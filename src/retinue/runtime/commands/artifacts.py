"""The artifacts of a command: those of its hub, or of its state folder if no hub runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

from retinue.client.hub_choice import HubChoice, choose_known
from retinue.client.hub_dispatch import HubDispatch
from retinue.settings import Settings
from retinue.storage.state import State, find_hub_url

if TYPE_CHECKING:
    from retinue.artifacts.client import HubArtifacts
    from retinue.mesh.artifacts import Artifact, Content
    from retinue.storage.artifacts.store import StoredArtifacts

CALLER = "local"
"""Who saves without a hub; a hub gives programs of its state the same name."""


@asynccontextmanager
async def open_artifacts(
    settings: Settings, state: State, hub: HubChoice | None = None
) -> AsyncIterator[HubArtifacts | OwnArtifacts]:
    """The artifacts of ``hub``, else of the hub that processes of the state use, else of the state itself."""
    if hub is None and (url := find_hub_url(state)) is not None:
        hub = choose_known(state, url)
    if hub is not None:
        from retinue.artifacts.client import HubArtifacts

        chosen = hub
        dispatch = HubDispatch(lambda: chosen, state)
        try:
            yield HubArtifacts(dispatch.find_artifact_server)
        finally:
            await dispatch.aclose()
        return
    # imported here, because a command that has a hub does not need these slow imports
    from retinue.runtime.commands.own_mesh import open_own_mesh
    from retinue.storage.artifacts.state_artifacts import StateArtifacts

    async with open_own_mesh(settings, state) as process:
        yield OwnArtifacts(process.get(StateArtifacts).store)


class OwnArtifacts:
    """The artifacts of a state folder, with the methods and results of `HubArtifacts`."""

    def __init__(self, store: StoredArtifacts) -> None:
        self._store = store

    async def save(
        self, content: Content, media_type: str | None = None, *, name: str | None = None
    ) -> Artifact:
        return await self._store.save(content, media_type, caller=CALLER, name=name)

    async def find(self, digest: str) -> Artifact:
        return await self._store.find(digest)

    async def export(self, artifact: Artifact, path: str | PathLike[str]) -> Any:
        return await self._store.export(artifact, path)

    async def list_all(
        self, *, everyone: bool = False, after: float | None = None, limit: int = 100
    ) -> dict[str, Any]:
        from retinue.artifacts.server import list_artifacts

        return await list_artifacts(self._store, None if everyone else CALLER, after=after, limit=limit)

    async def show(self, digest: str) -> dict[str, Any]:
        from retinue.artifacts.server import show_artifact

        return await show_artifact(self._store, digest)

    async def delete(self, digest: str, *, everyone: bool = False) -> bool:
        return await self._store.delete(digest, caller=None if everyone else CALLER)

    async def collect(self) -> dict[str, Any]:
        collected = await self._store.collect()
        return {"count": collected.count, "bytes": collected.size_bytes}
