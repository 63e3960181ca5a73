"""Artifacts as a part of a hub or agent: their endpoint, and the deletion of what nothing holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.routing import Route
from starlette.types import ASGIApp

from retinue.core.artifact_links import PATH
from retinue.parts.lazy import LazyApp
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.loading.artifacts import StateArtifacts
from retinue.settings_tables import ArtifactTable


class ArtifactsPart(Part):
    """Serves the artifacts of the state folder at ``/artifacts``; a worker serves none."""

    name = "artifacts"
    kinds = frozenset({"hub", "agent", "worker"})
    gives = StateArtifacts
    rank = 85
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        artifacts = process.find(StateArtifacts)  # an agent's core has it already
        if artifacts is None:
            artifacts = StateArtifacts(process.tables.get(ArtifactTable), process.state, process.http)
        try:
            yield _open(artifacts, serves=process.kind != "worker")
        finally:
            artifacts.close()


def _open(artifacts: StateArtifacts, *, serves: bool) -> Opened:
    async def make() -> ASGIApp:
        # imported at the first request, because most processes get none
        from starlette.routing import Router

        from retinue.artifacts.server import routes

        return Router(routes(lambda: artifacts.stored), redirect_slashes=False)

    app = LazyApp(make)
    routes = (
        Route(PATH, app, methods=["GET", "POST"]),
        Route(f"{PATH}/{{rest:path}}", app, methods=["GET", "POST", "DELETE"]),
    )
    return Opened(product=artifacts, routes=routes if serves else (), any_media_type=(PATH,))
