"""Reads the calls of the last minutes for pages that count them."""

from __future__ import annotations

import asyncio
import time

from retinue.core.call import Principal
from retinue.core.record import HUB_NAME
from retinue.dashboard.asking import HubSkills, Json
from retinue.dashboard.figures import RECENT_CALLS, RECENT_S


class RecentCalls:
    """The calls of agents of the last `RECENT_S` seconds, at most the newest `RECENT_CALLS`.

    They take megabytes until they are counted, so hold ``lock`` meanwhile: one page at a time reads them.
    """

    def __init__(self, hub: HubSkills) -> None:
        self._hub = hub
        self.lock = asyncio.Lock()

    async def read(self, principal: Principal) -> list[Json]:
        """The calls, newest first."""
        listing = await self._hub.read(principal, "list_calls", {"limit": RECENT_CALLS})
        now = time.time()
        recent = (call for call in listing["calls"] if now - call["ended_at"] <= RECENT_S)
        # the hub's own skills say little, and those that follow a run take as long as they are let
        return [call for call in recent if call["agent"] != HUB_NAME]
