"""Stops the clock of a call while its caller is being asked: a person needs longer than a program."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from retinue.mesh.channel import Capability, Channel, LogLevel, Root
from retinue.mesh.time_limit import TimeLimit


class PatientChannel:
    """The channel of one attempt; ``limit`` does not run while a question is open.

    How long a question may stay open is the door's affair.
    """

    __slots__ = ("_channel", "_left_s", "_limit", "_open")

    def __init__(self, channel: Channel, limit: TimeLimit) -> None:
        self._channel = channel
        self._limit = limit
        self._open = 0
        self._left_s = 0.0

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._channel.capabilities

    async def progress(self, fraction: float | None, message: str = "") -> None:
        await self._channel.progress(fraction, message)

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        await self._channel.log(level, message, data)

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        with self._waiting():
            return await self._channel.elicit(message, schema, key=key)

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        with self._waiting():
            return await self._channel.sample(prompt, max_tokens=max_tokens, key=key)

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        with self._waiting():
            return await self._channel.roots(key=key)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        when = self._limit.when
        if not self._open and when is not None and not self._limit.expired:
            self._left_s = when - loop.time()
            self._limit.reschedule(None)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open and not self._limit.expired:
                self._limit.reschedule(loop.time() + self._left_s)
