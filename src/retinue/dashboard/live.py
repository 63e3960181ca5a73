"""Live updates: a stream of ticks while something happens; on a tick the page reads itself again.

Nothing is observed while no stream is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.types import Receive, Scope, Send

from retinue.dashboard.rendering import HEADERS

TICK_S = 1.0
"""The least time between two ticks."""

IDLE_S = 3.0
"""A tick without a cause, for what changes by itself: ages, agents that do not answer."""

MAX_STREAMS = 200

Subscribe = Callable[[Callable[[], None]], Callable[[], None]]
"""Calls the function at each change; returns what ends it."""


class LiveUpdates:
    """The open streams of one hub."""

    def __init__(self, subscribe: Subscribe) -> None:
        self._subscribe = subscribe
        self._unsubscribe: Callable[[], None] | None = None
        self._waiting: set[asyncio.Event] = set()
        self._is_ended = False

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._waiting)

    def end(self) -> None:
        """End all streams, which would keep the server from stopping."""
        self._is_ended = True
        self._wake()

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send ticks until the browser or the server ends."""
        headers = {**HEADERS, "content-type": "text/event-stream", "x-accel-buffering": "no"}
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": encoded})
        sending = asyncio.create_task(self._send_ticks(send))
        leaving = asyncio.create_task(_await_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            leaving.cancel()

    async def _send_ticks(self, send: Send) -> None:
        number = 0
        async for _ in self._iterate_ticks():
            number += 1
            body = f"id: {number}\ndata: tick\n\n".encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _iterate_ticks(self) -> AsyncIterator[None]:
        if len(self._waiting) >= MAX_STREAMS:
            return
        changed = asyncio.Event()
        self._waiting.add(changed)
        if self._unsubscribe is None:
            self._unsubscribe = self._subscribe(self._wake)
        try:
            while not self._is_ended:
                try:
                    async with asyncio.timeout(IDLE_S):
                        await changed.wait()
                except TimeoutError:
                    yield
                    continue
                changed.clear()
                yield
                if not self._is_ended:
                    await asyncio.sleep(TICK_S)
        finally:
            self._waiting.discard(changed)
            if not self._waiting and self._unsubscribe is not None:
                self._unsubscribe()
                self._unsubscribe = None

    def _wake(self) -> None:
        for changed in self._waiting:
            changed.set()


async def _await_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
