"""Artifacts as a part of a process: their endpoint, and the deletion of what nothing holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from retinue.core.artifact_links import PATH
from retinue.core.errors import RetinueError
from retinue.mesh.observing.metrics import Figures
from retinue.parts.lazy import LazyApp
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.serving import in_background
from retinue.settings_tables import ArtifactTable
from retinue.storage.artifacts.state_artifacts import StateArtifacts

FIRST_S = 60.0
"""How long after the start of a hub the first deletion is, so that it does not slow the start."""

EVERY_S = 3_600.0

_log = structlog.get_logger("retinue.artifacts")


class ArtifactsPart(Part):
    """Serves the artifacts of the state folder at ``/artifacts`` of a hub or an agent.

    A hub deletes each hour what nothing has held for long enough.
    """

    name = "artifacts"
    kinds = frozenset({"hub", "agent"})
    needs = (StateArtifacts,)
    rank = 85
    is_required = True

    def __init__(self, *, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
        self._first_s = first_s
        self._every_s = every_s

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        artifacts = process.get(StateArtifacts)
        quota_bytes = process.tables.get(ArtifactTable).quota_bytes

        yield Opened(
            routes=_make_routes(artifacts),
            any_media_type=(PATH,),
            figures=lambda figures: _put_figures(figures, artifacts, quota_bytes),
            running=(lambda: in_background(self._collect(artifacts))) if process.kind == "hub" else None,
        )

    async def _collect(self, artifacts: StateArtifacts) -> None:
        wait_s = self._first_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = self._every_s
            if not artifacts.exists():
                continue
            try:
                await artifacts.store.collect()
            except RetinueError as error:
                _log.warning("artifacts not deleted", error=error.message)


async def _put_figures(figures: Figures, artifacts: StateArtifacts, quota_bytes: int) -> None:
    """Count the artifacts; an index that cannot be read has no figures of its contents."""
    figures.put("retinue_artifacts_quota_bytes", quota_bytes)
    read_bytes = 0 if artifacts.made is None else artifacts.made.read_bytes
    figures.put("retinue_artifacts_read_bytes_total", read_bytes)
    try:
        count, stored_bytes = await artifacts.store.measure() if artifacts.exists() else (0, 0)
    except RetinueError as error:
        _log.warning("artifacts not counted", error=error.message)
        return
    figures.put("retinue_artifacts", count)
    figures.put("retinue_artifacts_stored_bytes", stored_bytes)


def _make_routes(artifacts: StateArtifacts) -> Sequence[BaseRoute]:
    async def make() -> ASGIApp:
        # imported at the first request, because most processes get none
        from starlette.routing import Router

        from retinue.artifacts.server import routes

        return Router(routes(lambda: artifacts.store), redirect_slashes=False)

    app = LazyApp(make)
    return (
        Route(PATH, app, methods=["GET", "POST"]),
        Route(f"{PATH}/collect", app, methods=["POST"]),
        Route(f"{PATH}/{{digest}}", app, methods=["GET", "DELETE"]),
        Route(f"{PATH}/{{digest}}/holders", app, methods=["GET"]),
    )
