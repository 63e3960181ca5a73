"""Makes values and ASGI apps at their first use, because most processes never need them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Generic, TypeVar

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

T = TypeVar("T")


class EndedError(RuntimeError):
    """The first use came after the end."""


class Lazy(Generic[T]):
    """A value that is entered once, at its first use; close it with `aclose`.

    ``make`` gives the value as a context, which `aclose` leaves. ``end`` of the value is called by `end`. A
    ``make`` that raises is tried again at the next use.
    """

    def __init__(
        self, make: Callable[[], AbstractAsyncContextManager[T]], end: Callable[[T], None] | None = None
    ) -> None:
        self._make = make
        self._end = end
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self.made: T | None = None
        """The value; None before its first use and after `aclose`."""
        self.is_ended = False

    async def open(self) -> T:
        """The value, made by the first of all callers; raises EndedError if that would be after the end."""
        if self.made is not None:
            return self.made
        async with self._opening:
            if self.made is None:
                if self.is_ended:
                    raise EndedError("the first use came after the end")
                made = await self._stack.enter_async_context(self._make())
                if self.is_ended and self._end is not None:
                    self._end(made)
                self.made = made
            return self.made

    def end(self) -> None:
        """End the value's current work, also while it opens, so that the process can stop."""
        self.is_ended = True
        if self.made is not None and self._end is not None:
            self._end(self.made)

    async def aclose(self) -> None:
        """End and leave the value; an opening that began before is awaited and left, too."""
        self.end()
        async with self._opening:
            await self._stack.aclose()
            self.made = None


class LazyApp:
    """An ASGI app that is made at its first request; while the process drains it answers 503."""

    def __init__(
        self, make: Callable[[], Awaitable[ASGIApp]], is_draining: Callable[[], bool] = lambda: False
    ) -> None:
        self._make = make
        self._is_draining = is_draining
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._is_draining():
                raise EndedError("the process drains")
            if self._app is None:
                self._app = await self._make()
        except EndedError:
            await Response("this server is stopping", 503)(scope, receive, send)
            return
        await self._app(scope, receive, send)
