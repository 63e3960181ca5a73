"""The artifacts of an agent's process: those of its hub, or of its state folder."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.core.errors import UnknownArtifactError
from retinue.mesh.artifacts import Artifact, Content
from retinue.storage.artifacts.state_artifacts import StateArtifacts
from retinue.storage.mesh_key import joined_token
from retinue.storage.state import State, find_hub_url
from retinue.web.http_client import HttpClient
from retinue.web.mesh_tokens import is_hub_of

if TYPE_CHECKING:  # most processes save no file
    from retinue.artifacts.client import ArtifactServer, HubArtifacts


class JoinedArtifacts:
    """The artifacts of an agent: an `ArtifactStore`.

    They are those of the hub that the agent is joined to. Without a hub, or with that of its own state, they
    are in the state folder. What the state folder has is read from there.
    """

    def __init__(self, own: StateArtifacts, state: State, hub_url: str | None, http: HttpClient) -> None:
        self._own = own
        self._state = state
        self._hub_url = hub_url
        self._http = http
        self._hub: HubArtifacts | None = None

    async def save(
        self,
        content: Content,
        media_type: str | None = None,
        *,
        caller: str,
        name: str | None = None,
        run: str | None = None,
    ) -> Artifact:
        store = self._find_hub() or self._own
        return replace(await store.save(content, media_type, caller=caller, name=name, run=run), _store=self)

    async def find(self, digest: str) -> Artifact:
        try:
            return replace(await self._own.find(digest), _store=self)
        except UnknownArtifactError:
            hub = self._find_hub()
            if hub is None:
                raise self._explain(digest) from None
        return replace(await hub.find(digest), _store=self)

    async def open(self, digest: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        hub = self._find_hub()
        is_here = hub is None or await self._is_here(digest)
        store = self._own if hub is None or is_here else hub
        try:
            async with aclosing(store.open(digest, start, end)) as pieces:
                async for piece in pieces:
                    yield piece
        except UnknownArtifactError:
            raise self._explain(digest) from None

    async def export(self, artifact: Artifact, path: str | PathLike[str]) -> Path:
        from retinue.storage.artifacts.export import export_artifact

        return await export_artifact(replace(artifact, _store=self), path)

    async def _is_here(self, digest: str) -> bool:
        try:
            await self._own.find(digest)
        except UnknownArtifactError:
            return False
        return True

    def _find_hub(self) -> HubArtifacts | None:
        """The artifacts of a hub elsewhere; None without one. Raises StateError."""
        url = self._hub_url or find_hub_url(self._state)
        if url is None or is_hub_of(self._state, url):
            return None
        if self._hub is None:
            from retinue.artifacts.client import HubArtifacts

            self._hub = HubArtifacts(self._choose)
        return self._hub

    async def _choose(self) -> ArtifactServer:
        from retinue.artifacts.client import ArtifactServer

        url = self._hub_url or find_hub_url(self._state) or ""
        token = joined_token(self._state.keys, url)
        headers = {} if token is None else {"authorization": f"Bearer {token}"}

        async def open_uploader() -> HttpClient:
            return self._http

        return ArtifactServer(url, self._http, headers, open_uploader)

    def _explain(self, digest: str) -> UnknownArtifactError:
        url = self._hub_url or find_hub_url(self._state)
        where = f"the state folder {self._state.root}" + (f" and the hub {url}" if url else "")
        return UnknownArtifactError(
            digest,
            remedy=f"it is not in {where}: it was deleted, or another hub has it; join that hub (--join), "
            "or share a registry (artifacts.registry)",
        )
