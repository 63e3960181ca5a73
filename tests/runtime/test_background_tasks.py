"""What the hub does by itself: it notices agents that come, fall ill, die and come back, without a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.runtime.parts.upkeep import BackgroundTasks
from retinue.web.http_client import HttpClient
from tests.mesh.scripted import make_listing
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import WAIT_S


class CardEndpoint:
    """An agent's card endpoint that a test can make ill."""

    def __init__(self) -> None:
        self.status = 200
        self.app = Starlette(routes=[Route("/agent-card", self._show)])

    async def _show(self, request: Request) -> Response:
        card = {"name": "plan-agent", "url": "http://127.0.0.1:1", "version": "1", "skills": []}
        return JSONResponse(card, self.status)


@pytest.fixture
async def directory() -> AsyncIterator[Directory]:
    directory = Directory(MemoryListings())
    agent_stats = AgentStatsTable()
    async with HttpClient() as http:
        upkeep = BackgroundTasks(directory, agent_stats, http, refresh_s=0.02, probe_timeout_s=5)
        work = asyncio.create_task(upkeep.run())
        yield directory
        work.cancel()
        await asyncio.wait([work])


@requirement("P-30")
async def test_health_is_noticed_from_available_to_unreachable_and_back_without_a_call(
    directory: Directory,
) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()
    endpoint = CardEndpoint()

    def note(change: ListingChange) -> None:
        if change.kind == "changed":
            seen.put_nowait(change.entry.health)

    directory.subscribe(note)
    async with serve_app(endpoint.app) as url:
        directory.upsert(make_listing("plan-agent", url=url))
        assert await asyncio.wait_for(seen.get(), WAIT_S) == "healthy"
        endpoint.status = 502
        assert await asyncio.wait_for(seen.get(), WAIT_S) == "degraded"
        assert await asyncio.wait_for(seen.get(), WAIT_S) == "unreachable"
        assert directory.get("plan-agent").last_error == "its card endpoint answers with status 502"
        endpoint.status = 401
        assert await asyncio.wait_for(seen.get(), WAIT_S) == "healthy"
