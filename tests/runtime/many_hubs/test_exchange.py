"""Topics look at everything again when the exchange may have missed news."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from retinue.core.errors import StateError
from retinue.mesh.health.probe_sharing import ProbeSharing
from retinue.runtime.many_hubs import exchange
from retinue.runtime.many_hubs.exchange import MeshExchange, Topic
from retinue.storage.mesh_news import MeshNews, News

LATE_S = 60.0


class CutNews(MeshNews):
    """A database that answers each exchange, and whose first connection for notifications breaks."""

    def __init__(self) -> None:
        super().__init__("postgresql://nobody@127.0.0.1:1/none", "one", "hub", None)
        self.may_break = asyncio.Event()
        self.is_broken = False

    async def exchange(self, news: Sequence[News]) -> tuple[Sequence[News], Sequence[str]]:
        return [], ["one"]

    async def wait(self, timeout_s: float) -> None:
        await self.may_break.wait()
        if not self.is_broken:
            self.is_broken = True
            raise StateError("the server has crashed")
        await asyncio.sleep(timeout_s)

    async def leave(self) -> None:
        return


class Connections(Topic):
    name = "connections"

    def __init__(self) -> None:
        self.made: asyncio.Queue[bool] = asyncio.Queue()

    async def take(self) -> Sequence[bytes]:
        return ()

    async def hear(self, body: bytes) -> None:
        return

    async def connected(self) -> None:
        self.made.put_nowait(True)


async def test_topics_are_told_when_only_the_connection_for_notifications_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "RETRY_S", 0.01)
    news, topic = CutNews(), Connections()
    task = asyncio.create_task(MeshExchange("one", news, ProbeSharing(), [topic]).run())
    try:
        async with asyncio.timeout(LATE_S):
            await topic.made.get()
            news.may_break.set()
            await topic.made.get()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
