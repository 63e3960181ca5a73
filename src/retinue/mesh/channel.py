"""The channel back to a caller while its call runs: progress, text, log lines and questions.

The time limit of a call is paused while its caller is asked a question, because a person needs longer than a
program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from retinue.core.call import TextPiece
from retinue.core.errors import CannotAskError, InputRequiredError
from retinue.mesh.time_limit import TimeLimit

LogLevel = Literal["debug", "info", "warning", "error"]


Capability = Literal["progress", "log", "elicitation", "sampling", "roots"]
"""Reports that the client of a call receives, and questions that it can answer."""

ASKABLE: frozenset[Capability] = frozenset({"elicitation", "sampling", "roots"})
"""Questions that a client can answer; the answer may take longer than any program."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Root:
    """A folder or other place that the caller works in; ``uri`` is usually a ``file://`` URI."""

    uri: str
    name: str | None = None


class Channel(Protocol):
    """The services of an endpoint for a running skill.

    ``key`` names a question within its call, for clients that answer in a later request.
    """

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of this caller; empty where no client listens."""

    @property
    def is_sessionless(self) -> bool:
        """Whether its client answers in later requests (MCP 2026-07-28): ask it several questions at once."""

    async def progress(self, fraction: float | None, message: str = "") -> None:
        """Report the progress of the call: ``fraction`` is 0 … 1, or None when unknown."""

    async def stream_text(self, piece: TextPiece) -> None:
        """Send a piece of the text that the skill writes; it goes to callers that receive progress."""

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        """Send one log line to the caller."""

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        """Ask the person behind the call; the answer fits ``schema``.

        Raises CannotAskError or InputRequiredError where the client cannot ask a person, and
        InputRefusedError where the person declines.
        """

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        """Ask the caller's own model; raises CannotAskError where it has none."""

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        """The places that the caller works in; raises CannotAskError where it does not list them."""


HOW_TO_BE_ASKED = (
    "call it where a person can be asked: with retinue call in a terminal, or from an MCP client that "
    "supports elicitation"
)


class NullChannel:
    """The channel of endpoints without a way back: progress and logs are dropped, questions fail."""

    capabilities: frozenset[Capability] = frozenset()
    is_sessionless = False

    async def progress(self, fraction: float | None, message: str = "") -> None:
        return None

    async def stream_text(self, piece: TextPiece) -> None:
        return None

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        return None

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        raise InputRequiredError(f"input required: {message}", remedy=HOW_TO_BE_ASKED)

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        raise CannotAskError("sampling")

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        raise CannotAskError("roots")


class PausingChannel:
    """The channel of one attempt; ``limit`` is paused while a question is open.

    The endpoint limits how long a question may stay open.
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

    @property
    def is_sessionless(self) -> bool:
        return self._channel.is_sessionless

    async def progress(self, fraction: float | None, message: str = "") -> None:
        await self._channel.progress(fraction, message)

    async def stream_text(self, piece: TextPiece) -> None:
        await self._channel.stream_text(piece)

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        await self._channel.log(level, message, data)

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        with self._paused():
            return await self._channel.elicit(message, schema, key=key)

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        with self._paused():
            return await self._channel.sample(prompt, max_tokens=max_tokens, key=key)

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        with self._paused():
            return await self._channel.roots(key=key)

    @contextmanager
    def _paused(self) -> Iterator[None]:
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


async def run_within(timeout_s: float, channel: Channel, work: Callable[[Channel], Awaitable[T]]) -> T:
    """Await ``work`` for at most ``timeout_s`` seconds, in which its open questions do not count.

    Raises TimeoutError.
    """
    limit = TimeLimit(timeout_s)
    with limit:
        return await work(PausingChannel(channel, limit))
