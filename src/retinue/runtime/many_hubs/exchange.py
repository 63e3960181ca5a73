"""Exchanges news with the other members of a mesh, for as long as the process serves."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from retinue.core.errors import RetinueError, StateError
from retinue.mesh.health.probe_sharing import ProbeSharing
from retinue.storage.mesh_news import DEAD_S, MeshNews, News

BEAT_S = 2.0
"""Seconds between two signs of life."""

GATHER_S = 0.2
"""How long news are gathered before they are sent together."""

CLEAN_S = 60.0
RETRY_S = 2.0
MAX_UNSENT = 1_000
"""Messages that wait for the database; the oldest ones are dropped."""

_log = structlog.get_logger("retinue.many_hubs")


class Topic(ABC):
    """One kind of news. ``wake`` is set by the exchange, and is called when there is something to send."""

    name: str
    wake: Callable[[], None] = staticmethod(lambda: None)

    @abstractmethod
    async def take(self) -> Sequence[bytes]:
        """The messages to send now."""

    @abstractmethod
    async def hear(self, body: bytes) -> None:
        """Take the message of another member; one of an unknown form is ignored.

        It must not wait for anything, because the member gives no sign of life meanwhile.
        """

    async def connected(self) -> None:
        """Called after a connection was made, because messages may have been missed."""
        return


class MeshExchange:
    """The exchange of the member ``own`` over ``news``; `run` goes on until it is cancelled.

    While the database does not answer, the process probes all agents itself.
    """

    def __init__(self, own: str, news: MeshNews, sharing: ProbeSharing, topics: Sequence[Topic]) -> None:
        self._own = own
        self._news = news
        self._sharing = sharing
        self._topics = {topic.name: topic for topic in topics}
        self._due = asyncio.Event()
        self._unsent: deque[News] = deque(maxlen=MAX_UNSENT)
        self._is_connected = False
        self._may_miss_news = True
        self._answered_at = 0.0
        for topic in topics:
            topic.wake = self._due.set

    async def run(self) -> None:
        """Exchange news until cancelled, and leave the mesh."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._listen())
                group.create_task(self._repeat())
        finally:
            try:
                async with asyncio.timeout(RETRY_S):
                    await self._news.leave()
            except (StateError, TimeoutError):
                _log.debug("left without a word")
            await self._news.aclose()

    async def _listen(self) -> None:
        while True:
            try:
                await self._news.wait(BEAT_S)
            except StateError:
                self._may_miss_news = True
                await asyncio.sleep(RETRY_S)
            self._due.set()

    async def _repeat(self) -> None:
        cleaned_at = time.monotonic()
        while True:
            self._due.clear()
            try:
                await self.exchange()
                if time.monotonic() - cleaned_at >= CLEAN_S:
                    cleaned_at = time.monotonic()
                    await self._news.clean()
            except StateError as error:
                self._lose(error.message)
                await asyncio.sleep(RETRY_S)
                continue
            except Exception as error:  # noqa: BLE001 - one failed exchange must not end the others
                _log.exception("exchange with other hubs failed")
                self._lose(str(error))
                await asyncio.sleep(RETRY_S)
                continue
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._due.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(GATHER_S)

    async def exchange(self) -> None:
        """Send what there is, and hear what others have sent; raises StateError."""
        if self._may_miss_news:
            self._may_miss_news = False
            for topic in self._topics.values():
                await topic.connected()
        for topic in self._topics.values():
            self._unsent += [News(topic.name, body) for body in await topic.take()]
        heard, members = await self._news.exchange(list(self._unsent))
        self._unsent.clear()
        self._answered_at = time.monotonic()
        if not self._is_connected:
            self._is_connected = True
            _log.info("hears of the mesh", members=len(members))
        self._sharing.set_members(self._own, members)
        for news in heard:
            listener = self._topics.get(news.topic)
            try:
                if listener is not None:
                    await listener.hear(news.body)
            except (RetinueError, ValueError, KeyError, TypeError) as error:
                _log.warning("news not understood", topic=news.topic, error=str(error))

    def _lose(self, problem: str) -> None:
        self._may_miss_news = True
        if self._is_connected:
            self._is_connected = False
            _log.warning("no news of other hubs", error=problem)
        if time.monotonic() - self._answered_at > DEAD_S:
            self._sharing.set_members(self._own, ())
