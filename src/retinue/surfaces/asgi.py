"""What doors in plain ASGI share: the whole body of a request, and a client that hangs up."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive

from retinue.mesh.time_limit import Alarm

WATCH_AFTER_S = 0.05
"""A call that takes longer is worth watching for a client that hangs up."""


class HangUpWatch(Alarm):
    """Cancels the request's own task when its client hangs up while it runs.

    Watching starts late, so that a quick call pays for no task.
    """

    __slots__ = ("_gone", "_receive", "_task", "_watcher")

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._receive = receive
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._task = task
        self.set(self._loop.time() + WATCH_AFTER_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool:
        self.unset()
        if self._watcher is not None:
            self._watcher.cancel()
        # Only the cancellation that came from here ends here.
        return self._gone and kind is asyncio.CancelledError and self._task.uncancel() == 0

    def ring(self) -> None:
        self._watcher = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()


async def read_body(receive: Receive) -> bytes | None:
    """The whole body; None when the client went away before its end."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        return bytes(message.get("body", b""))
    chunks: list[bytes] = []
    while message["type"] == "http.request":
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()
    return None
