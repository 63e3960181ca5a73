"""Handles client disconnects in plain ASGI endpoints, and reads whole request bodies.

`CancelOnDisconnect` cancels the handler of a request. `DisconnectCallbacks` runs callbacks for handlers that
must not be cancelled as a whole. `PiecesResponse` closes the source of a body that is sent in pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Self

import structlog
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from retinue.core.errors import OutOfMemoryError, RetinueError
from retinue.mesh.time_limit import Alarm

WATCH_AFTER_S = 0.05
"""Quick calls end before this and pay for no watching task."""

_CALLBACKS = "retinue.disconnect_callbacks"
_log = structlog.get_logger("retinue.web")


class CancelOnDisconnect(Alarm):
    """Context manager that cancels the current task when the client disconnects.

    It starts to watch after ``watch_after_s``.
    """

    __slots__ = ("_gone", "_receive", "_task", "_watch_after_s", "_watcher")

    def __init__(self, receive: Receive, watch_after_s: float = WATCH_AFTER_S) -> None:
        super().__init__()
        self._receive = receive
        self._watch_after_s = watch_after_s
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._task = task
        self.set(self._loop.time() + self._watch_after_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool:
        self.unset()
        if self._watcher is not None:
            self._watcher.cancel()
        # Swallow only the cancellation that this watch caused.
        return self._gone and kind is asyncio.CancelledError and self._task.uncancel() == 0

    def ring(self) -> None:
        self._watcher = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()


class DisconnectCallbacks:
    """The disconnect callbacks of one request, stored in its scope by `watch`."""

    __slots__ = ("_callbacks",)

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    @staticmethod
    def of(scope: Scope) -> DisconnectCallbacks:
        """The callbacks of a request; an unused instance when the request is not watched."""
        found = scope.get(_CALLBACKS)
        return found if isinstance(found, DisconnectCallbacks) else DisconnectCallbacks()

    def add(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def remove(self, callback: Callable[[], None]) -> None:
        self._callbacks.remove(callback)

    def run(self) -> None:
        for callback in list(self._callbacks):
            callback()


async def read_body(receive: Receive) -> bytes | None:
    """Read the whole body; None when the client disconnected before its end. Raises OutOfMemoryError."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        return bytes(message.get("body", b""))
    chunks: list[bytes] = []
    while message["type"] == "http.request":
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            try:
                return b"".join(chunks)
            except MemoryError:
                raise OutOfMemoryError from None
        message = await receive()
    return None


def replay(message: Message, receive: Receive) -> Receive:
    """``receive`` of a request whose first message was read already: it gives that one again."""
    is_given = False

    async def receive_again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return message

    return receive_again


def watch(scope: Scope, receive: Receive) -> Receive:
    """Wrap ``receive``: run the callbacks of the request when the client disconnects.

    It costs no task, because streaming responses read ``receive`` until the disconnect anyway.
    """
    callbacks = scope[_CALLBACKS] = DisconnectCallbacks()

    async def receive_watched() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            callbacks.run()
        return message

    return receive_watched


class PiecesResponse(StreamingResponse):
    """A response in pieces that closes their source also when the client goes away.

    An error after the head ends the connection before the announced length, and is logged.
    """

    def __init__(
        self, first: bytes, rest: AsyncGenerator[bytes, None], status: int, headers: Mapping[str, str]
    ):
        super().__init__(_chain(first, rest), status, headers)
        self._rest = rest

    @classmethod
    async def begin(
        cls, pieces: AsyncGenerator[bytes, None], status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Self:
        """The response, after its first piece was read; raises what that raises."""
        return cls(await anext(pieces, b""), pieces, status, headers or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            try:
                await super().__call__(scope, receive, send)
            except RetinueError as error:
                _log.warning("response cut off", path=scope["path"], error=error.message)


async def _chain(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield first
    async for piece in rest:
        yield piece
