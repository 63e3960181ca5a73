"""Sends an answer to the caller as text while the model writes it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from retinue.authoring.context import Context

PROGRESS_S = 0.25
"""The least time between two pieces of an answer that are sent to the caller."""

FLUSH_S = 1.0
"""How long the answer waits at most for a caller that is slow to take its last pieces."""


class AnswerStream:
    """Sends an answer as text while it is written: in pieces, not more often than `PROGRESS_S`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._pending: list[str] = []
        self._begins = True
        self._sent_at = -PROGRESS_S
        self._sending: asyncio.Task[None] | None = None
        self._is_complete = asyncio.Event()
        self.size_bytes = 0

    def begin(self) -> None:
        """Begin the text: an attempt writes it from its start."""
        self._pending = []
        self._begins = True

    async def take(self, piece: str) -> None:
        """Send a piece now, or with the next ones."""
        self.size_bytes += len(piece.encode())
        self._pending.append(piece)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_later())
            await asyncio.sleep(0)  # the first piece goes at once

    async def finish(self) -> None:
        """Send the rest: the whole answer is there."""
        self._is_complete.set()
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=FLUSH_S)
            if self._pending and self._sending.done():
                self._sending = asyncio.create_task(self._send_later())
                await asyncio.wait([self._sending], timeout=FLUSH_S)

    def stop(self) -> None:
        """Stop sending: the call has ended."""
        if self._sending is not None:
            self._sending.cancel()

    async def _send_later(self) -> None:
        wait_s = self._sent_at + PROGRESS_S - time.monotonic()
        if wait_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._is_complete.wait()
        text = "".join(self._pending)
        self._pending = []
        if text:
            begins, self._begins = self._begins, False
            self._sent_at = time.monotonic()
            await self._context.stream_text(text, begins=begins)
