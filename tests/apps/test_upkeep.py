"""What the hub does by itself: it notices agents that come, fall ill, die and come back, without a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.apps.upkeep import Upkeep
from retinue.drivers.http import HttpClient
from retinue.mesh.directory import Directory
from retinue.mesh.holdings import Change
from retinue.mesh.listings import MemoryListings
from retinue.mesh.pulse import Pulses
from tests.mesh.scripted import make_listing
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import WAIT_S


class CardDoor:
    """An agent's card door that a test can make ill."""

    def __init__(self) -> None:
        self.status = 200
        self.app = Starlette(routes=[Route("/agent-card", self._show)])

    async def _show(self, request: Request) -> Response:
        card = {"name": "plan-agent", "url": "http://127.0.0.1:1", "version": "1", "skills": []}
        return JSONResponse(card, self.status)


@pytest.fixture
async def directory() -> AsyncIterator[Directory]:
    directory = Directory(MemoryListings())
    pulses = Pulses()
    async with HttpClient() as http:
        upkeep = Upkeep(directory, pulses, http, refresh_s=0.02, probe_timeout_s=5)
        work = asyncio.create_task(upkeep.run())
        yield directory
        work.cancel()
        await asyncio.wait([work])


@requirement("P-30")
async def test_health_is_noticed_from_available_to_unreachable_and_back_without_a_call(
    directory: Directory,
) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()
    door = CardDoor()

    def note(change: Change) -> None:
        if change.kind == "changed":
            seen.put_nowait(change.entry.health)

    directory.subscribe(note)
    async with serve_app(door.app) as url:
        directory.upsert(make_listing("plan-agent", url=url))
        assert await asyncio.wait_for(seen.get(), WAIT_S) == "healthy"
        door.status = 502
        assert await asyncio.wait_for(seen.get(), WAIT_S) == "degraded"
        assert await asyncio.wait_for(seen.get(), WAIT_S) == "unreachable"
        assert directory.get("plan-agent").last_error == "its card door answers with status 502"
        door.status = 401
        assert await asyncio.wait_for(seen.get(), WAIT_S) == "healthy"
